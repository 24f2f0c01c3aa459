"""Classes and prompts of zero-shot models.

A class's embedding is the mean of its prompts' embeddings over the templates (Radford et al. 2021, section 3.1.4).
Importing this module does not load torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydractl.data.reference import first_twice, normal
from hydractl.errors import CheckpointError, UsageError
from hydractl.messages import counted

if TYPE_CHECKING:
    import torch

    from hydractl.families.load import OpenModel
    from hydractl.families.tower import Towers
    from hydractl.manifest.header import Header, Tokenization

DEFAULT_TEMPLATE = "A photo of a {label}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """Class names, in the order of the logits, and templates for prompts.

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
        """All prompts, class after class, each with all templates."""
        return [template.replace("{label}", name) for name in self.names for template in self.templates]


def settle(model: Towers, opened: OpenModel, classes: Classes | None) -> None:
    """Run the text towers once, so that a base, member or hydra classifies with its vision tower only.

    Does nothing for a checkpoint that stores these classes, or has a classifier.
    """
    stored = opened.header.prompting
    are_stored = (
        stored and classes and (opened.header.labels, stored.templates) == (classes.names, classes.templates)
    )
    if classes is None or stored is None or are_stored:
        return
    from hydractl.families.tower import settle_classes  # noqa: PLC0415 - opening a file must not load torch

    settle_classes(model, prompts_of(opened, classes), templates=len(classes.templates))


def with_class_names(header: Header, classes: Classes | None) -> Header:
    """Return the header of a zero-shot model with the given classes; what was found for the stored classes is dropped with them."""
    stored = header.prompting and (header.labels, header.prompting.templates)
    if classes is None or stored == (classes.names, classes.templates):
        return header
    prompting = header.prompting and header.prompting.model_copy(update={"templates": classes.templates})
    dropped = dict.fromkeys(("threshold", "prediction_sets", "fitted"))
    return header.model_copy(update={"labels": classes.names, "prompting": prompting, **dropped})


def prompts_of(opened: OpenModel, classes: Classes) -> dict[str, torch.Tensor]:
    """Return every prompt as inputs of the text tower, class after class, each with all templates.

    Raises:
        CheckpointError: If the model has no text tower, or no tokenizer.
        UsageError: If the prompts of two classes have the same tokens, so that the model cannot distinguish them.
    """
    from hydractl.data.tokenize import encode_texts  # noqa: PLC0415 - as above

    prompting = opened.header.prompting
    if prompting is None:
        raise CheckpointError(f"{opened.reference}: has no text tower")
    how: Tokenization = prompting.tokenization
    prompts = encode_texts(classes.texts, how)
    _check_prompts_differ(prompts["input_ids"], classes, how)
    return prompts


def _check_prompts_differ(ids: torch.Tensor, classes: Classes, how: Tokenization) -> None:
    """Refuse classes whose prompts all have equal tokens (C P, T)."""
    names: dict[bytes, str] = {}
    for name, row in zip(classes.names, ids.reshape(len(classes.names), -1), strict=True):
        twin = names.setdefault(row.numpy().tobytes(), name)
        if twin != name:
            raise UsageError(
                f"the classes `{twin}` and `{name}` have prompts with the same tokens, so the model "
                "cannot distinguish them",
                hint="use names that differ in more than upper and lower case and in words that the tokenizer "
                f"knows, or a shorter `--template` (the model reads {counted(how.max_length, 'token')})",
            )
