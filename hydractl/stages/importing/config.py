"""Configuration of `import`. Importing this module does not load torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from hydractl.errors import UsageError
from hydractl.model_source import arch_folder
from hydractl.prediction.class_names import FORMS
from hydractl.provenance.command_config import IF_CHANGED, CommandConfig
from hydractl.settings import (
    PLACEHOLDERS,
    Constraint,
    Role,
    Setting,
    by_default,
    check,
    configured,
    flag,
    options_of,
    required,
    setting,
    typed_options,
)
from hydractl.stages import options as shared

ENDINGS = re.compile(r"(\.pth\.tar|(\.[a-z]+)?\.index(\.[\w-]+)?\.json|\.[^.]*)$")
"""File name suffixes of weights."""
OWN_TOKENIZER = "`--tokenizer` has no effect: the folder `{config.folder}` has its own tokenizer"


def name_of(source: str) -> str:
    """Return the name of a file without folder and suffix: `best` for `run/best.pth.tar`."""
    name = Path(source).name
    return ENDINGS.sub("", name) or name


def parse_rename(text: str) -> tuple[tuple[str, str], ...]:
    """Parse `OLD=NEW`, and return a tuple with one pair (OLD, NEW). Dots at both ends are removed.

    Raises:
        UsageError: If a part is missing.
    """
    old, _, new = (part.strip(".") for part in text.partition("="))
    if not old or not new:
        raise UsageError(f"`--rename {text}`: expected OLD=NEW", hint="for example `--rename fc=head`")
    return ((old, new),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportConfig(CommandConfig):
    """Options of `import`."""

    COMMAND: ClassVar[str] = "import"
    COMMON = ("out", "arch", "num_classes", "labels", "tokenizer", "ema", "rename", "img_size", "force")

    sources: tuple[str, ...] = required(
        Setting(
            "Weights that a training script saved: .pth, .pth.tar, .pt, .ckpt, .bin, .safetensors, or the .index.json of shards.",
            positional=True,
            metavar="WEIGHTS",
            shows_default=False,
            role=Role.FILE,
        )
    )
    out: Path = required(replace(shared.OUT_MODEL, placeholders=PLACEHOLDERS))
    """Contains `{name}` or `{i}` if there are several files."""
    arch: str | None = setting(
        None,
        "Architecture: a timm name, a transformers model type (`bert`, `vit`), or a folder with a config.json (default: the saved one).",
        metavar="NAME[::K=V,...]",
        role=Role.CONTENT,
    )
    num_classes: int | None = setting(
        None,
        "Number of classes; weights without a classifier get a random one.",
        low=1,
        metavar="N",
    )
    """None uses the number of labels, or the number of the architecture."""
    head_seed: int | None = by_default(
        None,
        replace(
            shared.HEAD_SEED,
            help="Replace the classifier by a random one with this seed.",
        ),
    )
    """None uses seed 0 for a missing classifier, and keeps an existing classifier."""
    pooling: str | None = by_default(None, shared.POOLING)
    images: shared.Images = by_default(shared.Images(), shared.IMAGES)
    labels: str | None = setting(
        None,
        f"Class names: {FORMS}.",
        metavar="PATH",
        role=Role.CONTENT,
    )
    tokenizer: Path | None = setting(
        None,
        "Tokenizer of a text model: a folder or a tokenizer.json.",
        metavar="PATH",
        role=Role.CONTENT,
        excludes=(
            Constraint("ambiguity_hint", message=OWN_TOKENIZER, hint="{config.ambiguity_hint}"),
            Constraint("folder", message=OWN_TOKENIZER, hint="leave out `--tokenizer`"),
        ),
    )
    ema: bool = flag(
        Setting(
            "Import the exponential moving average of the weights.", panel="Tensors", excludes="weights_key"
        )
    )
    weights_key: str | None = setting(
        None,
        "Import the weights under this key or prefix, for example `teacher`.",
        panel="Tensors",
        metavar="KEY",
    )
    rename: tuple[tuple[str, str], ...] = by_default(
        (),
        Setting(
            "Rename tensors whose names start with OLD, for example `fc=head`; may be repeated.",
            panel="Tensors",
            parse=parse_rename,
            repeated=True,
            metavar="OLD=NEW",
            shows_default=False,
        ),
    )
    force: bool = flag(shared.FORCE)
    if_changed: bool = flag(IF_CHANGED)

    def __post_init__(self) -> None:
        check(self)
        self.output_files()

    @property
    def source(self) -> str:
        """First file. Configurations from `one_by_one` have only this file."""
        return self.sources[0]

    @override
    def output_files(self) -> tuple[Path, ...]:
        """Return the path of each base, with `{name}` replaced by the file's name and `{i}` by its number.

        Raises:
            UsageError: If two bases would have the same path.
        """
        if not any(part in self.out.name for part in PLACEHOLDERS):
            outputs = (self.out,) * len(self.sources)
        else:
            names = (self.out.name.replace("{i}", str(i)) for i in range(len(self.sources)))
            outputs = tuple(
                self.out.with_name(name.replace("{name}", name_of(source)))
                for name, source in zip(names, self.sources, strict=True)
            )
        if len({*outputs}) < len(outputs):
            raise UsageError(
                f"{len(outputs)} files need {len(outputs)} different output names, but `-o "
                f"{self.out}` gives several the same",
                hint=(
                    "put `{name}` or `{i}` into the name, before its suffix: `-o '{name}.st'`, `-o 'base-{i}.st'`"
                ),
            )
        return outputs

    def one_by_one(self) -> Iterator[ImportConfig]:
        """Yield a separate configuration for each file."""
        option_values, outputs = typed_options(self), self.output_files()
        for source, out in zip(self.sources, outputs, strict=True):
            if option_values is None:
                yield replace(self, sources=(source,), out=out)
            else:
                values_by_name = dict.fromkeys(option.name for option in options_of(ImportConfig))
                values_by_name |= {option.name: value for option, value in option_values}
                yield configured(ImportConfig, values_by_name | {"sources": [source], "out": out})

    @property
    def ambiguity_hint(self) -> str | None:
        """Hint if `--arch` may be a folder or an architecture; None if the option is clear."""
        from hydractl.families.registry import ambiguity_hint  # noqa: PLC0415 - `--help` loads no pydantic

        return None if self.arch is None or self.folder is None else ambiguity_hint(self.arch)

    @property
    def folder(self) -> Path | None:
        """Folder with the architecture; None if `--arch` is a name."""
        return arch_folder(self.arch)
