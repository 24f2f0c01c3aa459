"""Registration of the models with the libraries."""

from __future__ import annotations


def after(name: str) -> None:
    """Register the models with a module's registry."""
    if name == "timm.models":
        from timm.models import register_model  # noqa: PLC0415 - loaded by now

        from hydractl.auto.timm_model import hydractl  # noqa: PLC0415 - only where it is wanted

        register_model(hydractl)
        return
    from hydractl.auto.config import HydraConfig  # noqa: PLC0415 - as above

    if name.endswith(".configuration_auto"):
        from transformers.models.auto.configuration_auto import AutoConfig  # noqa: PLC0415 - as above

        AutoConfig.register(HydraConfig.model_type, HydraConfig, exist_ok=True)
    elif name.endswith(".image_processing_auto"):
        from transformers.models.auto.image_processing_auto import AutoImageProcessor  # noqa: PLC0415 - as above

        from hydractl.auto.image_processor import HydraImageProcessor  # noqa: PLC0415 - as above

        processor_classes: dict[str, type] = dict.fromkeys(("pil", "torchvision"), HydraImageProcessor)
        AutoImageProcessor.register(HydraConfig, image_processor_classes=processor_classes, exist_ok=True)
    else:
        from transformers.models.auto import modeling_auto  # noqa: PLC0415 - as above

        from hydractl.auto import models  # noqa: PLC0415 - as above

        modeling_auto.AutoModelForImageClassification.register(
            HydraConfig, models.HydraForImageClassification, exist_ok=True
        )
        modeling_auto.AutoModelForSequenceClassification.register(
            HydraConfig, models.HydraForSequenceClassification, exist_ok=True
        )
        modeling_auto.AutoModelForTokenClassification.register(
            HydraConfig, models.HydraForTokenClassification, exist_ok=True
        )
