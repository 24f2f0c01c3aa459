"""Which classes a zero-shot model tells apart: their names, and the prompts made of them.

A class's embedding is the mean of its prompts' embeddings over the templates (Radford et al. 2021, section 3.1.4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hydractl.checkpoint import Checkpoint, ScratchFolder, write_tensors
from hydractl.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hydractl.families.opening import OpenModel
    from hydractl.families.tower import Model, Towers
    from hydractl.manifest import Tokenization

DEFAULT_TEMPLATE = "A photo of a {label}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """Names of classes, in the order of the logits, and templates for prompts.

    Raises:
        UsageError: If a name is empty or stands twice, or a template does not hold `{label}`.
    """

    names: tuple[str, ...]
    templates: tuple[str, ...] = (DEFAULT_TEMPLATE,)

    def __post_init__(self) -> None:
        if not self.names or not all(self.names):
            raise UsageError(
                "a class has no name", hint="`--classes cat,dog`, or a file with one name a line"
            )
        if len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise UsageError(f"the class `{twice}` is named twice")
        for template in self.templates:
            if "{label}" not in template:
                raise UsageError(
                    f"the template `{template}` does not hold {{label}}",
                    hint=f'`--template "{DEFAULT_TEMPLATE}"`',
                )

    @property
    def texts(self) -> list[str]:
        """Every prompt: class after class, each with all templates."""
        return [template.replace("{label}", name) for name in self.names for template in self.templates]


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """What a user says of classes: their names, templates, both, or nothing."""

    names: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()

    @classmethod
    def parse(cls, names: str | None, templates: Sequence[str] | None) -> Self:
        """Return what `--classes` (`a,b,c`, or a file with one name a line) and `--template` say.

        Raises:
            UsageError: If the file cannot be read, a name is empty or twice there, or a template has no `{label}`.
        """
        found: Sequence[str] = ()
        if names is not None:
            path = Path(names)
            if path.is_file():
                try:
                    lines = path.read_text(encoding="utf-8").splitlines()
                except (OSError, UnicodeDecodeError) as error:
                    raise UsageError(f"{path}: cannot be read as a list of class names: {error}") from error
                found = [line.strip() for line in lines if line.strip()]
            else:
                found = [name.strip() for name in names.split(",")]
            Classes(names=tuple(found))
        Classes(names=("any",), templates=tuple(templates or (DEFAULT_TEMPLATE,)))
        return cls(names=tuple(found), templates=tuple(templates or ()))

    def classes(self, opened: OpenModel, *, data: Sequence[str] = ()) -> Classes | None:
        """Return the classes that a zero-shot model shall tell apart, or None if nothing names any.

        Names are those given, else those that the checkpoint stores, else the data's; templates likewise, and the usual
        one at last.

        Raises:
            UsageError: If classes are named for a model that has its own.
        """
        prompting = opened.header.prompting
        if prompting is None:
            if self.names or self.templates:
                raise UsageError(
                    f"{opened.reference}: has classes of its own; `--classes` and `--template` are for zero-shot models"
                )
            return None
        names = self.names or opened.header.labels or tuple(data)
        templates = self.templates or prompting.templates or (DEFAULT_TEMPLATE,)
        return Classes(names=names, templates=templates) if names else None

    def classes_of_all(self, models: Sequence[OpenModel], *, data: Sequence[str] = ()) -> Classes | None:
        """Return the classes that the zero-shot ones of several models shall tell apart; see `classes`."""
        zero_shot = [m for m in models if m.header.prompting is not None] or models
        return self.classes(next((m for m in zero_shot if m.header.labels), zero_shot[0]), data=data)


NOTHING_NAMED = Naming()


def ask(model: Model, opened: OpenModel, classes: Classes | None) -> None:
    """Let a base or member answer about classes with both of its towers, so that heads of either matter."""
    from hydractl.families.zero_shot import Contrast  # noqa: PLC0415 - opening a file must not load torch

    answer = model.answer
    if classes is not None and isinstance(answer, Contrast):
        answer.ask(_prompts(opened, classes), templates=len(classes.templates))


def settle(model: Towers, opened: OpenModel, classes: Classes | None) -> None:
    """Run the text towers once, so that a base, member or hydra answers about classes with its vision side alone.

    A checkpoint that stores these classes has done so already.
    """
    stored = opened.header.prompting
    same = (
        stored and classes and (opened.header.labels, stored.templates) == (classes.names, classes.templates)
    )
    if classes is None or same:
        return
    from hydractl.families.zero_shot import settle_classes  # noqa: PLC0415 - as above

    settle_classes(model, _prompts(opened, classes), templates=len(classes.templates))


def with_classes(opened: OpenModel, classes: Classes) -> OpenModel:
    """Return a zero-shot base or member that stores its embeddings of the classes."""
    from hydractl.families.opening import load_model  # noqa: PLC0415 - as above
    from hydractl.families.zero_shot import CLASS_EMBEDDINGS, settle_classes  # noqa: PLC0415 - as above

    prompting = opened.header.prompting
    if prompting is None:
        raise UsageError(f"{opened.reference}: has classes of its own; `--classes` is for zero-shot models")
    model = load_model(opened)
    settle_classes(model, _prompts(opened, classes), templates=len(classes.templates))
    found: torch.Tensor = model.library_state()[CLASS_EMBEDDINGS]
    folder = ScratchFolder()
    path = folder.path / "classes.st"
    with path.open("wb") as file:
        write_tensors(file, {CLASS_EMBEDDINGS: found}, header=None)
    header = opened.header.model_copy(
        update={
            "labels": classes.names,
            "prompting": prompting.model_copy(update={"templates": classes.templates}),
        }
    )
    checkpoint = opened.checkpoint.joined(Checkpoint.open(path), scratch=folder)
    return replace(opened, checkpoint=checkpoint, header=header)


def _prompts(opened: OpenModel, classes: Classes) -> dict[str, torch.Tensor]:
    from hydractl.data.tokenize import encode_texts  # noqa: PLC0415 - as above

    prompting = opened.header.prompting
    if prompting is None:
        raise CheckpointError(f"{opened.reference}: has no text tower")
    how: Tokenization = prompting.tokenization
    return encode_texts(classes.texts, how)
