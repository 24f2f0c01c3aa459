"""The table of all families, and descriptions of architectures and folders.

Importing this module loads no model library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import cast

from hydractl.checkpoint import TensorSpec, spec_of
from hydractl.errors import EDITED, HydraError, UnsupportedModelError, UsageError
from hydractl.families.base import (
    Family,
    ModelDescription,
    ModelFolder,
    check_folder,
    is_replaceable,
    logits_of,
    name_in_memory,
    task_problem,
    with_task,
)
from hydractl.families.config_checks import OptionsError, building
from hydractl.families.openclip.family import OPENCLIP, PREFIX, library
from hydractl.families.timm.models import LIBRARY as TIMM
from hydractl.families.timm.models import TIMM_BEIT, TIMM_EVA, TIMM_RELPOS, TIMM_VIT, check_known
from hydractl.families.transformers.hf_models import REFUSED
from hydractl.families.transformers.text import DECODERS, TEXTS
from hydractl.families.transformers.vision_models import IMAGES, PAIRS
from hydractl.heads.masks import full_mask
from hydractl.manifest.header import Architecture, Header, Kind, Preprocess, Tokenization
from hydractl.messages import did_you_mean, quoted
from hydractl.tasks import SINGLE_LABEL, TASKS
from hydractl.version import INSTALL

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            *PAIRS,
            *TEXTS,
            *DECODERS,
            *IMAGES,
            *OPENCLIP,
            TIMM_BEIT,
            TIMM_EVA,
            TIMM_RELPOS,
            # Must be last: this family claims every name.
            TIMM_VIT,
        )
    }
)
"""All families by name. The order decides if several families claim a name or match a configuration."""

_PAIR_CLASS = re.compile("entail|paraphrase|duplicate|equivalent", re.IGNORECASE)


def family_of(architecture: Architecture) -> Family:
    """Return the family of a checkpoint's architecture.

    Raises:
        UnsupportedModelError: If this version does not know the family, or models of the family have other
            towers.
    """
    family = FAMILIES.get(architecture.family)
    if family is None:
        raise UnsupportedModelError(
            f"{architecture.name}: family `{architecture.family}` is unknown in this version",
            hint=did_you_mean(architecture.family, FAMILIES)
            or f"a newer version may support it: `{INSTALL} --upgrade`",
        )
    if family.towers.keys() != architecture.towers.keys():
        raise UnsupportedModelError(
            f"{architecture.name}: has towers {sorted(architecture.towers)}, but models of `{family.name}` "
            f"have {sorted(family.towers)}",
            hint=EDITED,
        )
    return family


def architecture_differences(ours: Architecture, theirs: Architecture) -> tuple[str, ...]:
    """Return the differing options of two architectures with effect on the outputs of trained weights.

    Options for training, explicit defaults and equivalent spellings are no differences. Names of
    architectures count only if the models differ.

    Returns:
        Options with the values of `ours`, for example `heads=8`; `another shape` if no single option explains
        the difference; empty without a difference.
    """
    differing_parts = tuple(
        f"{part}={getattr(ours, part)}"
        for part in ("library", "family", "towers", "num_classes", "problem_type", "pooling")
        if getattr(ours, part) != getattr(theirs, part)
    )
    if ours == theirs or differing_parts:
        return differing_parts
    config = family_of(ours).evaluation_config
    if config(ours) == config(theirs):
        return ()
    keys = sorted(
        k for k in ours.config.keys() | theirs.config.keys() if ours.config.get(k) != theirs.config.get(k)
    )
    named = tuple(f"{k}={ours.config.get(k)}" for k in keys if _matters(theirs, k, ours.config.get(k)))
    return named or ("another shape",)


def _matters(architecture: Architecture, option: str, value: object) -> bool:
    """Return whether the outputs of trained weights change if an option has another value."""
    config = family_of(architecture).evaluation_config
    changed = architecture.model_copy(update={"config": architecture.config | {option: value}})
    try:
        return config(changed) != config(architecture)
    except UnsupportedModelError:  # options that are only valid in combination
        return True


def family_for_name(name: str) -> Family:
    """Return the family that reads an architecture name.

    timm's plain vision transformers come last in the table and claim every name.

    Raises:
        UnsupportedModelError: If no library has the architecture, heads cannot be removed, or the name is a
            path.
    """
    _refuse(name, place=name)
    _refuse_path(name)
    claiming = next(family for family in FAMILIES.values() if family.claims(name))
    if claiming.library == TIMM:
        check_known(name, others=(n for family in FAMILIES.values() for n in family.names))
    return claiming


def describe_architecture(name: str, options: Mapping[str, object]) -> ModelDescription:
    """Describe an architecture from a typed name and options.

    Raises:
        UsageError: If an option is unknown, or the library cannot build the architecture with the options.
        UnsupportedModelError: If heads cannot be removed from the architecture.
    """
    if problem := task_problem(options, TASKS.values()):
        raise UsageError(f"{name}: {problem}")
    others = {key: value for key, value in options.items() if key != "problem_type"}
    with as_typed(options):
        return with_problem_type(family_for_name(name).describe(name, others), options)


def describe_weights(name: str, options: Mapping[str, object]) -> ModelDescription:
    """Describe bare weights from a typed architecture. Raises the errors of `describe_architecture`.

    The image preprocessing is assumed. The published crop fraction is used for images of any size, like in
    timm's scripts.
    """
    described = describe_architecture(name, options)
    if not isinstance(described.preprocess, Preprocess):
        return described
    with suppress(HydraError):  # some architectures need options
        published = cast("Preprocess", describe_architecture(name, {}).preprocess)
        described = replace(
            described,
            preprocess=described.preprocess.model_copy(update={"crop_pct": published.crop_pct}),
        )
    return replace(described, assumed=True)


@contextmanager
def as_typed(options: Mapping[str, object]) -> Iterator[None]:
    """Turn an `OptionsError` into a `UsageError` about typed options.

    Messages of libraries do not name options; the hint then lists all options.

    Raises:
        UsageError: In place of an `OptionsError`.
    """
    try:
        yield
    except OptionsError as error:
        hint = error.hint
        if error.__cause__ is not None and options:
            hint = f"check {quoted(f'{key}={value}' for key, value in options.items())}"
        raise UsageError(error.message, hint=hint) from error


def architecture_called(text: str) -> str | None:
    """Return hydractl's name for an architecture name of timm, transformers or open_clip, or None."""
    import timm

    if timm.is_model(text) or is_architecture(text):
        return text
    with suppress(UnsupportedModelError):  # open_clip is not installed
        if text in library().list_models():
            return PREFIX + text
    return None


def is_architecture(name: str) -> bool:
    """Return whether a family other than timm's reads an architecture of this name. Does not import timm."""
    return any(family.claims(name) for family in FAMILIES.values() if family.library != TIMM)


def ambiguity_hint(arch: str) -> str | None:
    """Return a hint for `--arch` with the name of a local folder. None if no architecture has this name."""
    if not is_architecture(arch):
        return None
    return (
        f"`{arch}` is both an architecture and a local folder: write `{arch}::` for the architecture, "
        f"`./{arch}` for the folder"
    )


def family_for_config(config: Mapping[str, object], *, place: str, backbone: bool = False) -> Family:
    """Return the family that reads a `config.json`.

    Args:
        config: Content of the file.
        place: Its folder, for messages.
        backbone: Whether families of classifiers with the same encoder are preferred to families for the
            whole model.

    Raises:
        UnsupportedModelError: If no family reads it.
    """
    matching = [family for family in FAMILIES.values() if family.matches(config)]
    encoder_matches = [family for family in FAMILIES.values() if family.matches_encoder(config)]
    if candidates := [*encoder_matches, *matching] if backbone else [*matching, *encoder_matches]:
        return candidates[0]
    _refuse(config.get("model_type"), place=place)
    if "model_type" not in config:
        raise UnsupportedModelError(
            f"{place}: config.json has neither `model_type` nor `architecture`, so no library can read it",
            hint='add the `"model_type"` of the model in transformers, for example `"bert"`, or use the folder '
            "written by `save_pretrained`",
        )
    raise UnsupportedModelError(
        f"{place}: models of type `{config['model_type']}` are not supported",
        hint=f"supported families: {', '.join(FAMILIES)}",
    )


def _refuse_path(name: str) -> None:
    """Raise UnsupportedModelError if an architecture name is the path of a file or folder."""
    path = Path(name)
    if "/" not in name and path.suffix != ".json":
        return  # a plain name, even if a file has the same name
    with suppress(OSError):  # a name too long for a path
        if path.is_file():
            raise UnsupportedModelError(
                f"{name}: is a file, not the name of an architecture",
                hint=f"give its folder: `{path.parent}`",
            )
        if path.is_dir():
            raise UnsupportedModelError(
                f"{name}: is a folder, not the name of an architecture",
                hint=f"`hydractl import WEIGHTS --arch {name} -o base.st` converts its weights to a base",
            )


def _refuse(kind: object, *, place: str) -> None:
    if isinstance(kind, str) and (reason := REFUSED.get(kind)):
        raise UnsupportedModelError(f"{place}: models of type `{kind}` are not supported: {reason}")


def describe_folder(
    path: Path, config: Mapping[str, object], specs: Mapping[str, TensorSpec], *, backbone: bool = False
) -> ModelDescription:
    """Describe the model in a library's folder.

    A model without a classifier has `lacks` in its description.

    Args:
        path: The folder.
        config: Content of `config.json` or `open_clip_config.json`.
        specs: Dtypes and shapes of the tensors, by name on disk; empty if the weights come from elsewhere.
        backbone: Whether families of classifiers with the same encoder are preferred to families for the
            whole model.

    Raises:
        CheckpointError: If a file of the folder is malformed.
        UnsupportedModelError: If no family reads the folder, or a field cannot be honoured. The message has
            the reason.
    """
    family = family_for_config(config, place=str(path), backbone=backbone)
    folder = ModelFolder(path=path, config=config, specs=specs)
    reason = check_folder(folder, family.rules)
    described = with_problem_type(family.read_config(config, path), config)
    promoted = not reason and described.may_classify and _holds_classifier(family, described, specs)
    if promoted:
        # The rules take a folder without `architectures` for a classifier, as its weights hold one.
        unnamed = {key: value for key, value in config.items() if key != "architectures"}
        reason = check_folder(replace(folder, config=unnamed), family.rules)
    if reason:
        return replace(described, lacks=reason)
    if repeated := next((name for name in described.labels if described.labels.count(name) > 1), None):
        note = f"two of its classes have the name `{repeated}`, which data cannot be matched by"
        described = replace(described, notes=(*described.notes, note))
    if promoted:
        note = f"{described.lacks}, but its weights have a classifier, which is loaded as in transformers"
        return replace(described, lacks="", notes=(*described.notes, note))
    return described


def _holds_classifier(family: Family, described: ModelDescription, specs: Mapping[str, TensorSpec]) -> bool:
    """Return whether stored weights hold every tensor of a classifier in the right shape."""
    stored = {name_in_memory(family, name): spec.shape for name, spec in specs.items()}
    expected = expected_specs(family, base_header(described))
    return all(stored.get(n) == spec.shape for n, spec in expected.items() if is_replaceable(family, n))


def with_problem_type(described: ModelDescription, config: Mapping[str, object]) -> ModelDescription:
    """Return the description with the task in the `problem_type` of a configuration.

    A multi-label model with a single logit separates two classes, and counts as a single-label model.

    Raises:
        UnsupportedModelError: As `with_task`.
    """
    architecture = described.architecture
    task = TASKS.get(str(config.get("problem_type")), SINGLE_LABEL)
    single_logit = task.by_label and not logits_of(architecture) > 1
    if task is SINGLE_LABEL or single_logit or architecture.task.by_word:
        return described
    return with_task(described, task)


def base_header(described: ModelDescription) -> Header:
    """Return the header of a base of a described architecture.

    Rerankers (a single logit) and NLI models (with a class like `entailment`) read pairs of texts.
    """
    architecture, preprocess = described.architecture, described.preprocess
    is_reranker = logits_of(architecture) == 1 or any(map(_PAIR_CLASS.search, described.labels))
    if isinstance(preprocess, Tokenization) and is_reranker:
        preprocess = preprocess.model_copy(update={"pairs": True})
    return Header(
        kind=Kind.BASE,
        architecture=architecture,
        masks=(full_mask(architecture.towers),),
        preprocess=preprocess,
        assumed=described.assumed,
        labels=described.labels,
        prompting=described.prompting,
    )


def expected_specs(family: Family, header: Header) -> dict[str, TensorSpec]:
    """Return dtype and shape of every tensor of the architecture, under the header's first mask."""
    with building(header.architecture.library, header.architecture.name):
        model = family.build(header.architecture, header.masks[0], None)
    model.answer.expect(len(header.labels))
    return {name: spec_of(tensor) for name, tensor in model.library_state().items()}
