"""The configuration of members and hydras in transformers."""

from __future__ import annotations

from transformers import PreTrainedConfig

from hydractl.hub.layout import TYPE


class HydraConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]  # transformers is untyped here
    """What `config.json` says; `hydractl` in it is the checkpoint's header."""

    model_type = TYPE
