"""What a library's folder holds, as every command that opens one is told, and the header of a base of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hydractl.families.base import Described, Family, is_replaceable, name_in_memory
from hydractl.families.gate import ModelFolder, check_folder
from hydractl.families.registry import family_for_config
from hydractl.heads.masks import full_mask
from hydractl.manifest.header import Header, Kind
from hydractl.tensors import TensorSpec, spec_of


def describe_folder(
    path: Path, config: Mapping[str, object], specs: Mapping[str, TensorSpec], *, backbone: bool = False
) -> Described:
    """Return what a library's folder holds. Every command that opens one comes by here.

    Args:
        path: The folder.
        config: Its `config.json` or `open_clip_config.json`.
        specs: Its tensors, by the names on disk; empty where weights come from elsewhere.
        backbone: Whether a model without a classifier will do.

    Raises:
        CheckpointError: If a file of the folder is not what it should be.
        UnsupportedModelError: If no family reads it, or it says what cannot be honoured, with the reason.
    """
    family = family_for_config(config, where=str(path), backbone=backbone)
    folder = ModelFolder(path=path, config=config, specs=specs)
    reason = check_folder(folder, family.rules)
    described = family.read_config(config, path)
    promoted = not reason and described.may_classify and _holds_classifier(family, described, specs)
    if promoted:
        unnamed = {key: value for key, value in config.items() if key != "architectures"}
        reason = check_folder(replace(folder, config=unnamed), family.rules)
    if reason:
        return replace(described, lacks=reason)
    names = described.labels
    if repeated := next((name for name in names if names.count(name) > 1), None):
        note = f"two of its classes are called `{repeated}`; data are not matched by that name"
        described = replace(described, notes=(*described.notes, note))
    if promoted:
        note = f"{described.lacks}, but its weights hold a classifier, which is read as transformers reads it"
        return replace(described, lacks="", notes=(*described.notes, note))
    return described


def _holds_classifier(family: Family, described: Described, specs: Mapping[str, TensorSpec]) -> bool:
    """Return whether weights hold every tensor of a classifier, in its shape."""
    stored = {name_in_memory(family, name): spec.shape for name, spec in specs.items()}
    expected = expected_specs(family, base_header(described))
    return all(stored.get(n) == spec.shape for n, spec in expected.items() if is_replaceable(family, n))


def base_header(described: Described) -> Header:
    """Return the header of a base of a described architecture."""
    architecture = described.architecture
    return Header(
        kind=Kind.BASE,
        architecture=architecture,
        masks=(full_mask(architecture.towers),),
        preprocess=described.preprocess,
        assumed=described.assumed,
        labels=described.labels,
        prompting=described.prompting,
    )


def expected_specs(family: Family, header: Header) -> dict[str, TensorSpec]:
    """Return the name and shape of every tensor that the architecture has under the header's first mask."""
    model = family.build(header.architecture, header.masks[0], None)
    model.answer.expect(len(header.labels))
    return {name: spec_of(tensor) for name, tensor in model.library_state().items()}
