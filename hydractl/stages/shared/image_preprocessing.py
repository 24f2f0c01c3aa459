"""How images are read, where no file beside a model says it or a user says otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.manifest.header import Header, Preprocess
from hydractl.messages import counted
from hydractl.progress import Progress
from hydractl.settings import long_option

if TYPE_CHECKING:
    from hydractl.families.load import OpenModel
    from hydractl.stages.shared.settings import Images


def override_preprocessing(header: Header, images: Images, *, where: str) -> Header:
    """Return a model's header with what a user says of images in the place of what it says itself.

    Args:
        header: The model's.
        images: What is said; what is not stays.
        where: What messages call the model.

    Raises:
        UsageError: If the model reads texts, or has not as many channels as there are means or standard deviations.
    """
    how, image_options = header.preprocess, images.options()
    if not image_options:
        return header
    if not isinstance(how, Preprocess):
        raise UsageError(
            f"`{long_option(next(iter(image_options)))}` is for images, but {where} reads texts",
            hint="leave it out",
        )
    channels = how.input_size[0]
    update: dict[str, object] = {}
    for name in ("mean", "std"):
        values: tuple[float, ...] | None = getattr(images, name)
        if values is None:
            continue
        if len(values) not in {1, channels}:
            raise UsageError(
                f"`--{name}`: {len(values)} numbers, but {where} reads images with {counted(channels, 'channel')}",
                hint="give one number for all channels, or one per channel",
            )
        update[name] = values * channels if len(values) == 1 else values
    if images.img_size is not None:
        update["input_size"] = (channels, *images.img_size)
    says_statistics = images.mean is not None and images.std is not None
    return header.model_copy(
        update={
            "preprocess": how.model_copy(update=update),
            "assumed": header.assumed and not says_statistics,
        }
    )


def check_takes(header: Header, *, where: str) -> None:
    """Refuse images of another size than a model was made for, if it does not take them.

    Args:
        header: The model's, with what is said of images; see `told`.
        where: What messages call the model.

    Raises:
        UsageError: If it does not take them.
    """
    from hydractl.families.load import takes_images  # noqa: PLC0415 - the options of commands load no torch

    how = header.preprocess
    if isinstance(how, Preprocess) and not takes_images(header):
        _, height, width = how.input_size
        raise UsageError(
            f"`--img-size`: {where} does not accept images of {height}x{width} pixels",
            hint="leave it out; for random weights and bare files of timm models use `NAME::img_size=N`",
        )


def warn_of_folder(opened: OpenModel, progress: Progress) -> None:
    """Warn of what a library's folder says and the user may not expect."""
    for note in opened.notes:
        progress.warn(f"{opened.reference}: {note}")


def warn_assumed(opened: OpenModel, progress: Progress) -> None:
    """Warn as `warn_of_folder` does, and of how images are read where nothing says it."""
    warn_of_folder(opened, progress)
    how = opened.header.preprocess
    if not opened.header.assumed or not isinstance(how, Preprocess):
        return
    _, height, width = how.input_size
    mean, std = (",".join(f"{x:.4g}" for x in values) for values in (how.mean, how.std))
    progress.warn(
        f"{opened.reference}: its image preprocessing is assumed, the usual one of such models: "
        f"{height}x{width} pixels, {how.interpolation}, crop {how.crop_pct:g}, mean {mean}, std {std} (change it with "
        "`--img-size`, `--mean` and `--std` of `finetune` and `import`)"
    )


def reading_images(opened: OpenModel, images: Images) -> OpenModel:
    """Return a model that reads images as a user says; see `told`."""
    return replace(opened, header=override_preprocessing(opened.header, images, where=opened.reference))
