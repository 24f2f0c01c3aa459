"""Class names of zero-shot models: from the user, the checkpoint or the data."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hydractl.data.reference import MIN_CLASSES, first_twice, normal
from hydractl.errors import CheckpointError, UsageError
from hydractl.messages import counted, did_you_mean_path
from hydractl.strict_json import NotJSONError, parse

if TYPE_CHECKING:
    import torch

    from hydractl.families.open_model import OpenModel
    from hydractl.families.tower import Model, Towers
    from hydractl.manifest.header import Header, Tokenization


DEFAULT_TEMPLATE = "A photo of a {label}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """Class names in the order of the logits, and prompt templates.

    Raises:
        UsageError: If a name is empty or repeated, or a template does not contain `{label}`.
    """

    names: tuple[str, ...]
    templates: tuple[str, ...] = (DEFAULT_TEMPLATE,)

    def __post_init__(self) -> None:
        if not self.names or not all(self.names):
            raise UsageError(
                "a class has no name", hint="give `--classes cat,dog`, or a file with one name per line"
            )
        if (twice := first_twice(map(normal, self.names))) is not None:
            raise UsageError(f"the class `{twice}` appears twice")
        for template in self.templates:
            if "{label}" not in template:
                raise UsageError(
                    f"the template `{template}` does not contain {{label}}",
                    hint=f'`--template "{DEFAULT_TEMPLATE}"`',
                )

    @property
    def texts(self) -> list[str]:
        """All prompts: for each class, all templates."""
        return [template.replace("{label}", name) for name in self.names for template in self.templates]


def set_classes(model: Towers, model_file: OpenModel, classes: Classes | None) -> None:
    """Set the classes of a zero-shot model in place. The text tower encodes the prompts once, in this call.

    Nothing changes if `classes` is None, or the checkpoint stores the same classes or has a classifier.

    Raises:
        CheckpointError: If the model has no tokenizer.
        UsageError: If the prompts of two classes have the same tokens.
    """
    stored = model_file.header.prompting
    are_stored = (
        stored
        and classes
        and (model_file.header.labels, stored.templates) == (classes.names, classes.templates)
    )
    if classes is None or stored is None or are_stored:
        return
    from hydractl.families.tower import settle_classes  # noqa: PLC0415 - opening a file must not load torch

    settle_classes(model, prompts_of(model_file, classes), templates=len(classes.templates))


def with_class_names(header: Header, classes: Classes | None) -> Header:
    """Return the header of a zero-shot model with new classes; None returns the header unchanged.

    If the classes change, the stored threshold, prediction sets and OOD scores are dropped, because they were
    fitted for other classes.
    """
    stored = header.prompting and (header.labels, header.prompting.templates)
    if classes is None or stored == (classes.names, classes.templates):
        return header
    prompting = header.prompting and header.prompting.model_copy(update={"templates": classes.templates})
    dropped = dict.fromkeys(("threshold", "known_test", "prediction_sets", "fitted"))
    return header.model_copy(update={"labels": classes.names, "prompting": prompting, **dropped})


def prompts_of(model_file: OpenModel, classes: Classes) -> dict[str, torch.Tensor]:
    """Return all prompts as inputs of the text tower: for each of C classes, all P templates.

    Returns:
        `input_ids` and the tokenizer's other tensors, shape (C P, T) each.

    Raises:
        CheckpointError: If the model has no text tower or no tokenizer.
        UsageError: If the prompts of two classes have the same tokens, so that the model cannot distinguish
            them.
    """
    from hydractl.data.tokenize import encode_texts  # noqa: PLC0415 - as above

    prompting = model_file.header.prompting
    if prompting is None:
        raise CheckpointError(f"{model_file.reference}: has no text tower")
    preprocess: Tokenization = prompting.tokenization
    prompts = encode_texts(classes.texts, preprocess)
    _check_prompts_differ(prompts["input_ids"], classes, preprocess)
    return prompts


def _check_prompts_differ(ids: torch.Tensor, classes: Classes, preprocess: Tokenization) -> None:
    """Check that no two classes have equal tokens in all prompts; `ids` has shape (C P, T), P templates."""
    names: dict[bytes, str] = {}
    for name, row in zip(classes.names, ids.reshape(len(classes.names), -1), strict=True):
        twin = names.setdefault(row.numpy().tobytes(), name)
        if twin != name:
            raise UsageError(
                f"the classes `{twin}` and `{name}` have prompts with the same tokens, so the model "
                "cannot distinguish them",
                hint="use names that differ in more than upper and lower case and in words that the tokenizer "
                f"knows, or a shorter `--template` (the model reads {counted(preprocess.max_length, 'token')})",
            )


__all__ = [
    "DEFAULT_TEMPLATE",
    "NOTHING_NAMED",
    "Classes",
    "Naming",
    "run_both_towers",
    "set_classes",
    "with_classes",
]

POOLED = "Reading the {pooling} over all tokens, as the folder's 1_Pooling/config.json says"
"""Message for a folder whose pooling is used."""
FORMS = "`a,b,c`, a file with one name per line, or a JSON list"
"""Accepted forms of class names."""
MAX_SHOWN_CHARACTERS = 80
"""Maximum length of an option's value in a message. Chosen by hand; 80 is the width of a terminal, and twice
the length fills a second line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Class names and templates from the user. Both may be empty. `file` is the file with the names, or None."""

    names: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    file: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("names", "templates"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @classmethod
    def parse(cls, names: str | None, templates: Sequence[str] | None) -> Self:
        """Parse the values of `--classes` and `--template`; see `read_names`.

        Raises:
            UsageError: If the file cannot be read, there are fewer than two names, a name is empty or
                repeated, or a template has no `{label}`.
        """
        class_names, file = ((), None) if names is None else read_names(names, option="--classes")
        checked = Classes(names=class_names or ("any",), templates=tuple(templates or (DEFAULT_TEMPLATE,)))
        if names is not None and len(checked.names) < MIN_CLASSES:
            raise UsageError(
                f"`--classes {_short(names)}`: gives only one class, but at least two are needed",
                hint=f"give {FORMS}",
            )
        return cls(names=class_names, templates=tuple(templates or ()), file=file)

    def classes(self, model_file: OpenModel, *, data: Sequence[str] = ()) -> Classes | None:
        """Return the classes of a zero-shot model. None for a classifier, or without any class names.

        Names come from the user, else from the checkpoint, else from the data. Templates come from the user,
        else from the checkpoint, else from `DEFAULT_TEMPLATE`.

        Args:
            model_file: The model.
            data: Class names of the data.

        Raises:
            UsageError: If the user gives classes for a model with a classifier, or a name is empty or
                repeated.
        """
        prompting = model_file.header.prompting
        if prompting is None:
            if self.names or self.templates:
                raise UsageError(
                    f"{model_file.reference}: already has classes; `--classes` and `--template` apply "
                    "only to zero-shot models"
                )
            return None
        names = self.names or model_file.header.labels or tuple(data)
        templates = self.templates or prompting.templates or (DEFAULT_TEMPLATE,)
        return Classes(names=names, templates=templates) if names else None

    def classes_of_all(self, models: Sequence[OpenModel], *, data: Sequence[str] = ()) -> Classes | None:
        """Return the common classes of the zero-shot models among several models; see `classes`.

        Raises:
            UsageError: If the user gives classes but all models have classifiers, or a classifier has other
                classes.
        """
        zero_shot = [m for m in models if m.header.prompting is not None] or models
        classifier = next((m for m in models if m.header.prompting is None), None)
        first = next((m for m in zero_shot if m.header.labels), zero_shot[0])
        classes = self.classes(first, data=(classifier.header.labels if classifier else ()) or data)
        if classes is not None and classifier is not None:
            _check_own(classifier, classes)
        return classes


def _check_own(model: OpenModel, classes: Classes) -> None:
    """Check that a classifier has the same classes as the zero-shot models of the same run."""
    header = model.header
    if header.num_classes != len(classes.names) or (header.labels and header.labels != classes.names):
        raise UsageError(
            f"{model.reference}: has {header.num_classes} classes, which are not the {len(classes.names)} given",
            hint="give its classes in its order, or compare only models with the same classes",
        )


NOTHING_NAMED = Naming()


def read_names(text: str, *, option: str) -> tuple[tuple[str, ...], Path | None]:
    """Read class names from a comma-separated list or a file.

    Args:
        text: A value in one of the `FORMS`. Names in a file may contain commas; empty lines are ignored.
        option: Option with the value, for messages.

    Returns:
        Names without spaces at both ends; and the file, or None for a list.

    Raises:
        UsageError: If the file cannot be read or is empty, a name is empty or repeated, or the text is a
            single name but no file.
    """
    names, path = _names_of(text, option=option)
    if (twice := first_twice(map(normal, names))) is not None:
        raise UsageError(
            f"`{option} {_short(text)}`: the class `{twice}` appears twice", hint="rename one of them"
        )
    return names, path


def _names_of(text: str, *, option: str) -> tuple[tuple[str, ...], Path | None]:
    path, option_text = Path(text), f"`{option} {_short(text)}`"
    try:
        if path.exists() and not path.is_dir():
            return _names_in(path), path
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # many names look like one very long path
            raise UsageError(
                f"{_short(text)}: cannot be read as a list of class names: {error.strerror}"
            ) from error
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f"{option_text}: a class has no name", hint=f"give {FORMS}")
    if len(names) == 1:
        raise UsageError(
            f"{option_text}: gives only one class, and is not a file with several",
            hint=did_you_mean_path(text) or f"give {FORMS}",
        )
    return names, None


def _names_in(path: Path) -> tuple[str, ...]:
    """Return the lines of a text file, or the list in a JSON file. A byte order mark is ignored."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        names = (
            parse(text) if path.suffix == ".json" else [line for line in text.splitlines() if line.strip()]
        )
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: cannot be read as a list of class names: it is not UTF-8 text") from error
    except NotJSONError as error:
        raise UsageError(f"{path}: cannot be read as a list of class names: {error}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{path}: is not a list of class names", hint='for example `["cat", "dog"]`')
    if not names:
        raise UsageError(f"{path}: has no class names", hint="give one name per line, or a JSON list")
    if not all(name.strip() for name in names):
        raise UsageError(f"{path}: a class has no name", hint="leave it out, or give it a name")
    return tuple(name.strip() for name in names)


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[: MAX_SHOWN_CHARACTERS - 3]}..."


def run_both_towers(model: Model, model_file: OpenModel, classes: Classes | None) -> None:
    """Let a zero-shot model encode the prompts again in each batch, so that its text tower runs too.

    Then ablated heads of the text tower have an effect. Nothing changes if `classes` is None, or the model
    has a classifier.

    Raises:
        CheckpointError: If the model has no tokenizer.
        UsageError: If the prompts of two classes have the same tokens.
    """
    from hydractl.families.tower import Contrast  # noqa: PLC0415 - opening a file must not load torch

    answer = model.answer
    if classes is not None and isinstance(answer, Contrast):
        answer.ask(prompts_of(model_file, classes), templates=len(classes.templates))


def with_classes(model_file: OpenModel, classes: Classes) -> OpenModel:
    """Return the checkpoint of a zero-shot model with new classes: their names, templates and embeddings.

    Raises:
        CheckpointError: If the model has no tokenizer.
        UsageError: If the model has a classifier, or the prompts of two classes have the same tokens.
    """
    from hydractl.checkpoint import Checkpoint  # noqa: PLC0415 - `--help` must not load pydantic
    from hydractl.families.open_model import load_model  # noqa: PLC0415 - as above
    from hydractl.families.tower import CLASS_EMBEDDINGS, settle_classes  # noqa: PLC0415 - as above

    prompting = model_file.header.prompting
    if prompting is None:
        raise UsageError(
            f"{model_file.reference}: already has classes; `--classes` applies only to zero-shot models"
        )
    model = load_model(model_file)
    settle_classes(model, prompts_of(model_file, classes), templates=len(classes.templates))
    class_embeddings: torch.Tensor = model.library_state()[CLASS_EMBEDDINGS]
    header = model_file.header.model_copy(
        update={
            "labels": classes.names,
            "prompting": prompting.model_copy(update={"templates": classes.templates}),
        }
    )
    checkpoint = model_file.checkpoint.joined(Checkpoint.of({CLASS_EMBEDDINGS: class_embeddings}))
    return replace(model_file, checkpoint=checkpoint, header=header)
