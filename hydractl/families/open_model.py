"""Opening, building and hashing of models from checkpoints, library folders and the Hub."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydractl.checkpoint import Checkpoint, TensorSpec, common_dtype, spec_of
from hydractl.errors import EDITED, CheckpointError, UnsupportedModelError, UsageError
from hydractl.families import registry
from hydractl.families.base import (
    Family,
    ModelDescription,
    check_weights,
    is_replaceable,
    name_in_memory,
    num_classes_of,
    position_of,
    task_problem,
    with_pooling,
    without_wrapper,
)
from hydractl.families.config_checks import accepts_images, check_filled
from hydractl.families.registry import expected_specs
from hydractl.heads.masks import full_mask
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.header import (
    Architecture,
    Header,
    InputFile,
    Kind,
    Preprocess,
    Tokenization,
    lineage_to,
)
from hydractl.manifest.terms import DEFAULT_POOLING
from hydractl.messages import counted
from hydractl.model_source import INDEX, Located, folder_files, locate, named, parse_arch
from hydractl.output.publish import is_stream
from hydractl.runtime import at_least_single
from hydractl.strict_json import compact

if TYPE_CHECKING:
    import torch

    from hydractl.families.tower import Model


@contextmanager
def naming_import(
    located: Located, family: Family, names: Iterable[str], expected: Collection[str]
) -> Iterator[None]:
    """Point errors about a folder to `hydractl import` if its tensor names have an additional prefix.

    Raises:
        CheckpointError: The error raised inside the `with` statement, with another hint.
    """
    try:
        yield
    except CheckpointError as error:
        probe, memory_names = max(expected, key=len), {name_in_memory(family, name) for name in names}
        if probe not in memory_names and any(name.endswith(f".{probe}") for name in memory_names):
            error.hint = f"its tensors have a prefix, which `import` strips: {_import(located)}"
        raise


def trained_head_hint(
    located: Located, family: Family, specs: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec]
) -> str | None:
    """Return a hint to rename the classifier of a folder, or None.

    The folder must lack the classifier of the architecture and have exactly one other weight of the same
    shape outside the blocks.

    Args:
        located: The folder.
        family: The family that reads the folder.
        specs: Dtypes and shapes of the stored tensors.
        expected: Dtypes and shapes of the architecture's tensors in memory.
    """
    heads = [n for n in expected if n.endswith(".weight") and position_of(family, n).part == "head"]
    if len(heads) != 1 or heads[0] in map(partial(name_in_memory, family), specs):
        return None
    stems = [
        n.removesuffix(".weight")
        for n in specs.keys() - expected.keys()
        if n.endswith(".weight")
        and specs[n].shape == expected[heads[0]].shape
        and position_of(family, n).layer is None
    ]
    if len(stems) != 1:
        return None
    way = _import(located, f" --rename {shlex.quote(stems[0])}={heads[0].removesuffix('.weight')}")
    return f"if `{stems[0]}` is its classifier: {way}"


def _import(located: Located, options: str = "") -> str:
    """Return the `hydractl import` command for a folder."""
    index = located.path / INDEX
    file = index if len(located.weights) > 1 and index.is_file() else located.weights[0]
    return f"`hydractl import {shlex.quote(str(file))} --arch {shlex.quote(str(located.path))}{options} -o base.st`"


def convert(
    family: Family, architecture: Architecture, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    """Rename tensors of an original repository, or of an older library version, for the current library.

    Args:
        family: The family that reads the architecture.
        architecture: The target architecture.
        state: Tensors under other names.

    Returns:
        Renamed tensors, which may still not fit the architecture. None if the library cannot convert the
        tensors or leaves weights out.
    """
    if family.library == "timm":
        from hydractl.families.timm.models import filtered

        return filtered(architecture, state)
    adopted = _read(family, architecture, state)
    return adopted if adopted is not None and _elements(adopted) == _elements(state) else None


def encoder_of(
    family: Family, architecture: Architecture, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    """Rename tensors like `convert`, but accept a result that leaves weights out.

    The file of an encoder may contain other weights, for example a language modelling head. None if the
    library cannot read the tensors.
    """
    return convert(family, architecture, state) or _read(family, architecture, state)


def _read(
    family: Family, architecture: Architecture, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    """Load the tensors of a folder with the library. None if loading fails."""
    if family.adopt is None:
        return None
    try:
        return family.adopt("weights", architecture, state)
    except (CheckpointError, RuntimeError):  # a tensor is missing or has another shape
        return None


def _elements(state: Mapping[str, torch.Tensor]) -> int:
    """Return the number of floating-point weights. Index tables do not count."""
    return sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point())


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """A model on disk or with random weights: header, checkpoint and family.

    Attributes:
        reference: The MODEL reference typed by the user.
        checkpoint: The tensors.
        header: The header.
        family: The family that reads the architecture.
        beside: Files read in addition to the weights.
        lacks: Why a backbone is not a classifier; empty for other models. The header of a backbone counts an
            arbitrary number of classes, and classifier and perhaps pooler are missing. `with_classifier`
            completes the model.
        pools: Pooling for a new classifier; see `ModelDescription`.
        notes: Remarks about the folder, for the user.
    """

    reference: str
    checkpoint: Checkpoint
    header: Header
    family: Family
    beside: tuple[Path, ...] = ()
    lacks: str = ""
    pools: Literal["mean"] | None = None
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that are read: weights, configuration and tokenizer."""
        return (*self.checkpoint.original.paths, *self.beside)

    @property
    def is_random(self) -> bool:
        """Whether the weights were drawn for this run and are in no file."""
        return self.reference.startswith("arch:")

    @property
    def base(self) -> str | None:
        """Digest of the model's base, or None if unknown. For a base in a file, the digest of the file."""
        is_base_file = self.header.kind == Kind.BASE and not self.is_random
        return self.header.base or (self.checkpoint.digest if is_base_file else None)

    @property
    def name(self) -> str:
        """Short name for tables: the file name without suffix, or the reference of other models."""
        if self.is_random:
            return without_folders(self.reference)
        return named(Path(self.reference)).stem if self.checkpoint.paths[0].is_file() else self.reference

    def as_input(self, *, digest: str | None = None) -> InputFile:
        """Return the lineage entry of the file. `digest` replaces the checkpoint's digest if given."""
        path = named(Path(without_folders(self.reference)))
        name = "-" if is_stream(path) else path.name  # a shell numbers its pipes arbitrarily
        return InputFile(name=name, sha256=digest or self.checkpoint.digest, made_by=self.header.made_by)


def without_folders(reference: str) -> str:
    """Return an `arch:` reference with file names instead of paths. Other references are returned unchanged."""
    return re.sub(r"=[^,]*/", "=", reference) if reference.startswith("arch:") else reference


def open_model(
    reference: str, *, arch: str | None = None, seed: int = 0, backbone: bool = False
) -> OpenModel:
    """Open a MODEL reference. Reads headers only, or draws random weights for an `arch:` reference.

    Args:
        reference: Path or name; see `hydractl.model_source`.
        arch: `NAME[::key=value,...]` for a bare safetensors file without a header.
        seed: Seed of random weights.
        backbone: Whether a model without a classifier is accepted.

    Raises:
        CheckpointError: If the file is missing or malformed, or does not name its architecture.
        UnsupportedModelError: If heads cannot be removed from the architecture, or the model has no
            classifier.
        UsageError: If `arch` is given for a file with a header.
    """
    located = locate(reference)
    if located.arch is not None:
        return _fresh(located, seed)
    checkpoint = Checkpoint.open(
        located.path if located.config is None else located.weights[0],
        shards=located.weights if located.path.is_dir() else (),
    )
    header = checkpoint.header
    if header is not None:
        if arch is not None:
            raise UsageError(
                f"{reference}: already describes its architecture; `--arch` applies only to files that do not"
            )
        return _of_header(reference, checkpoint, header, backbone=backbone)
    described = _describe(located, arch, checkpoint.specs, backbone=backbone)
    if described.lacks and not backbone:
        raise UnsupportedModelError(f"{reference}: {described.lacks}", hint=classifier_hint(reference))
    family = registry.FAMILIES[described.architecture.family]
    header = registry.base_header(described)
    expected, stored = registry.expected_specs(family, header), checkpoint.specs
    if checkpoint.specs.keys() != expected.keys() and (
        names := without_wrapper(family, checkpoint.specs, expected)
    ):
        state = {names[name]: tensor for name, tensor in checkpoint.tensors().items()}
        checkpoint = _adopted(state, checkpoint, header)
    if family.adopt is not None and located.config is not None and checkpoint.specs.keys() != expected.keys():
        with naming_import(located, family, checkpoint.specs, expected):
            state = family.adopt(str(located.path), described.architecture, checkpoint.tensors())
        checkpoint = _adopted(state, checkpoint, header)
    absent = sorted(expected.keys() - checkpoint.specs.keys())
    lacks = described.lacks
    classifies = described.prompting is None  # else its classes are texts
    if not lacks and classifies and absent and all(is_replaceable(family, name) for name in absent):
        lacks = f"lacks {counted(len(absent), 'tensor')} of its classifier, for example `{absent[0]}`"
        if not backbone:
            hint = trained_head_hint(located, family, stored, expected) or classifier_hint(reference)
            raise CheckpointError(f"{reference}: {lacks}", hint=hint)
    if lacks:
        checkpoint, expected = _without_classifier(family, checkpoint, expected)
    with naming_import(located, family, checkpoint.specs, expected):
        check_tensors(checkpoint.name, checkpoint.specs, expected)
    return OpenModel(
        reference=reference,
        checkpoint=checkpoint,
        header=header,
        family=family,
        beside=_read_besides(parse_arch(arch)[1]) if arch is not None else folder_files(located.path),
        lacks=lacks,
        pools=described.pools,
        notes=(*located.notes, *described.notes),
    )


def _of_header(reference: str, checkpoint: Checkpoint, header: Header, *, backbone: bool) -> OpenModel:
    """Return the model in a file of hydractl.

    A model trained by `finetune` is a classifier, even if the configuration still has the `problem_type` of
    the original model.

    Raises:
        UnsupportedModelError: If the `problem_type` is not supported, unless `backbone` is set.
    """
    model_file = OpenModel(
        reference=reference,
        checkpoint=checkpoint,
        header=header,
        family=registry.family_of(header.architecture),
    )
    trained = any(step.command == "finetune" for step in lineage_to(header.made_by))
    problem = None if trained else task_problem(header.architecture.config)
    if problem is None or header.prompting is not None:
        return model_file
    if not backbone:
        raise UnsupportedModelError(f"{reference}: {problem}", hint=classifier_hint(reference))
    remaining, _ = _without_classifier(
        model_file.family, checkpoint, registry.expected_specs(model_file.family, header)
    )
    return replace(model_file, checkpoint=remaining, lacks=problem)


def classifier_hint(reference: str) -> str:
    """Return a hint to add a classifier with `hydractl finetune`."""
    return f"`hydractl finetune {shlex.quote(reference)} --train TRAIN --val VAL -o base.st` gives it a classifier for your classes"


def _without_classifier(
    family: Family, checkpoint: Checkpoint, expected: Mapping[str, TensorSpec]
) -> tuple[Checkpoint, dict[str, TensorSpec]]:
    """Return a backbone's checkpoint without classifier, and the required tensors.

    A stored pooler is kept if the architecture has a pooler.
    """
    kept_specs = {
        name: spec
        for name, spec in checkpoint.specs.items()
        if position_of(family, name).part != "head" and (name in expected or not is_replaceable(family, name))
    }
    required = {n: s for n, s in expected.items() if n in kept_specs or not is_replaceable(family, n)}
    return replace(checkpoint, specs=kept_specs), required


def load_model(model_file: OpenModel, *, dtype: torch.dtype | None = None) -> Model:
    """Build a base or a member with its weights, in evaluation mode on the CPU.

    Args:
        model_file: The model.
        dtype: Dtype of the weights; see `in_one_dtype`.

    Raises:
        CheckpointError: If the tensors do not fit architecture and mask, or the model is a hydra.
    """
    if model_file.header.kind == Kind.HYDRA:
        raise CheckpointError(f"{model_file.reference}: is a hydra, but a base or a member is needed")
    return build_checked(
        model_file.family,
        model_file.header,
        model_file.checkpoint.tensors(),
        place=model_file.reference,
        dtype=dtype,
    )


def build_checked(
    family: Family,
    header: Header,
    state: Mapping[str, torch.Tensor],
    *,
    place: str,
    dtype: torch.dtype | None = None,
) -> Model:
    """Build a model with the first mask of `header` from a state dict, after checking names and shapes.

    Args:
        family: The family of the architecture.
        header: Header of the model.
        state: The state dict.
        place: Name of the model, for messages.
        dtype: Dtype of the weights; see `in_one_dtype`.

    Raises:
        CheckpointError: If a tensor is missing, unexpected or of another shape, or the header's inputs do not
            fit the architecture.
    """
    check_tensors(place, {k: spec_of(v) for k, v in state.items()}, registry.expected_specs(family, header))
    _check_inputs(family, header, place)
    return family.build(header.architecture, header.masks[0], in_one_dtype(family, state, dtype))


def in_one_dtype(
    family: Family, state: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None
) -> Mapping[str, torch.Tensor]:
    """Return a state dict with one floating-point dtype, because models compute in a single dtype.

    Args:
        family: The family. The `exact` tensors of the family keep float32 at least.
        state: The state dict.
        dtype: The dtype. By default the smallest dtype for all weights.
    """
    floating = {k: v for k, v in state.items() if v.is_floating_point()}
    target = dtype or common_dtype(v for k, v in floating.items() if k not in family.exact)
    exact = at_least_single(target)
    return {**state, **{k: v.to(exact if k in family.exact else target) for k, v in floating.items()}}


def _check_inputs(family: Family, header: Header, place: str) -> None:
    """Raise CheckpointError if a header describes inputs that the architecture does not accept.

    Inputs are allocated before the model runs, so an edited header could otherwise allocate any amount of
    memory.
    """
    texts = header.prompting.tokenization if header.prompting else header.preprocess
    if isinstance(texts, Tokenization) and family.texts is not None:
        length, vocab_size = family.texts(header.architecture)
        if texts.max_length > length or texts.vocab_size > vocab_size or texts.pad_id >= vocab_size:
            raise CheckpointError(
                f"{place}: reads texts of {texts.max_length} tokens out of {texts.vocab_size} and pads "
                f"with {texts.pad_id}, but its architecture takes {length} out of {vocab_size}",
                hint=EDITED,
            )
    if isinstance(header.preprocess, Preprocess) and not takes_images(header):
        raise CheckpointError(
            f"{place}: reads images of {header.preprocess.input_size}, which its architecture does not accept",
            hint=EDITED,
        )


def takes_images(header: Header) -> bool:
    """Return whether the architecture accepts images of the size in the header. True for models of texts."""
    preprocess = header.preprocess
    if not isinstance(preprocess, Preprocess):
        return True
    config = header.architecture.config
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    if any(_declared(part) == preprocess.input_size for part in parts):
        return True
    return _accepts_images(header.architecture.model_dump_json(), preprocess.input_size)


def _declared(config: Mapping[str, Any]) -> tuple[object, ...]:
    """Return channels, height and width of the images in a configuration; entries may be None."""
    side = config.get("img_size", config.get("image_size"))
    sides = side if isinstance(side, list) else [side, side]
    return (config.get("in_chans", config.get("num_channels", 3)), *sides)


@lru_cache
def _accepts_images(architecture: str, size: tuple[int, int, int]) -> bool:
    parsed = Architecture.model_validate_json(architecture)
    model = registry.family_of(parsed).build(parsed, full_mask(parsed.towers), None).to("meta")
    return accepts_images(lambda images: model.run_tower("vision", images.to(model.dtype)), size)


def check_tensors(place: str, actual: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec]) -> None:
    """Compare tensors with those of an architecture: names, shapes, and floating-point or integer.

    The number of bits may differ.

    Args:
        place: Name of the model, for messages.
        actual: Dtypes and shapes of the tensors, by name.
        expected: Dtypes and shapes of the architecture's tensors, by name.

    Raises:
        CheckpointError: With the name of the first missing, unexpected or different tensor.
    """
    hint = "the weights may be of another architecture, or have another number of classes"
    if missing := sorted(expected.keys() - actual.keys()):
        raise CheckpointError(
            f"{place}: lacks {counted(len(missing), 'tensor')} of its architecture, for example `{missing[0]}`",
            hint=hint,
        )
    if extra := sorted(actual.keys() - expected.keys()):
        raise CheckpointError(
            f"{place}: has {counted(len(extra), 'tensor')} that its architecture does not, for example `{extra[0]}`",
            hint=hint,
        )
    for name, spec in sorted(expected.items()):
        if actual[name].shape != spec.shape:
            raise CheckpointError(
                f"{place}: tensor `{name}` has shape {actual[name].shape}, but its architecture needs {spec.shape}",
                hint=hint,
            )
        if actual[name].is_floating != spec.is_floating:
            raise CheckpointError(
                f"{place}: tensor `{name}` has dtype {actual[name].dtype}, but its architecture needs "
                f"{spec.dtype}, or {'floating-point numbers' if spec.is_floating else 'integers'} of another size",
                hint=(
                    "the file may have been edited or quantized; hydractl needs the original floating-point weights"
                ),
            )


def _read_besides(options: Mapping[str, object]) -> tuple[Path, ...]:
    """Return the tokenizer files in the options of an architecture."""
    tokenizer = options.get("tokenizer")
    path = Path(str(tokenizer))
    return () if tokenizer is None else folder_files(path) if path.is_dir() else (path,)


def _describe(
    located: Located, arch: str | None, specs: Mapping[str, TensorSpec], *, backbone: bool
) -> ModelDescription:
    if arch is not None:
        check_weights(located.reference, specs)
        return registry.describe_weights(*parse_arch(arch))
    if located.config is None:
        raise CheckpointError(
            f"{located.reference}: does not name its architecture",
            hint="add `--arch NAME`, for example `--arch vit_small_patch16_224::num_classes=7`",
        )
    return registry.describe_folder(located.path, located.config, specs, backbone=backbone)


def _adopted(state: Mapping[str, torch.Tensor], original: Checkpoint, header: Header) -> Checkpoint:
    """Return a checkpoint with converted tensors, and with the name and files of the original."""
    return replace(Checkpoint.of(state, header=header), name=original.name, source=original)


def _fresh(located: Located, seed: int) -> OpenModel:
    described = registry.describe_architecture(located.arch or "", located.options)
    family = registry.FAMILIES[described.architecture.family]
    header = registry.base_header(described)
    with registry.as_typed(located.options):
        state = family.initialise(described.architecture, seed)
        check_filled(described.architecture.name, state)
    return OpenModel(
        reference=located.reference,
        checkpoint=Checkpoint.of(state, header=header),
        header=header,
        family=family,
        beside=_read_besides(located.options),
    )


def digest_weights(checkpoint: Checkpoint, header: Header) -> str:
    """Return `sha256:...` of all tensors and settings that determine a model's logits.

    The temperature, threshold, prediction sets, OOD scores, class names, lineage and sharding of files do not
    change the digest. Class names of a zero-shot model count, because logits depend on the names.
    """
    settings = {"architecture", "masks", "plan", "preprocess", "prompting"} | (
        {"labels"} if header.prompting else set()
    )
    text = compact(header.model_dump(mode="json", include=settings, exclude_defaults=True), sort_keys=True)
    sha, source = hashlib.sha256(text.encode()), checkpoint.original
    for name, spec in sorted(source.specs.items()):
        sha.update(compact([name, spec.dtype, spec.shape]).encode())
        for piece in source.spans[name].pieces():
            sha.update(piece)
    return f"sha256:{sha.hexdigest()}"


def fingerprint_of(model_file: OpenModel) -> Fingerprint:
    """Return a model's entry in a report."""
    return Fingerprint(
        reference=model_file.as_input().name,
        sha256=model_file.checkpoint.digest,
        weights=digest_weights(model_file.checkpoint, model_file.header),
    )


CLASSES = {"timm": "num_classes", "transformers": "num_labels", "open_clip_torch": "num_classes"}
"""Option name of the number of classes in each library."""


def with_classifier(
    model_file: OpenModel,
    number: int,
    *,
    labels: tuple[str, ...] = (),
    seed: int = 0,
    head_seed: int | None = None,
    pooling: str = DEFAULT_POOLING,
) -> OpenModel:
    """Return a base or member with a new random classifier, and a new pooler if the pooler is missing.

    Args:
        model_file: The model. Other tensors are kept, except for random weights, which are drawn again for the
            new classifier.
        number: Number of logits, at least 1.
        labels: Class names; may be empty.
        seed: Seed of random weights, and of the classifier if `head_seed` is None.
        head_seed: Seed of the classifier.
        pooling: Pooling before the classifier, from `POOLINGS`.
    """
    family, before = model_file.family, model_file.header.architecture
    architecture = with_pooling(resized(before, number, family.library), pooling)
    header = model_file.header.model_copy(update={"architecture": architecture, "labels": labels})
    own_seed = seed if head_seed is None else head_seed
    if model_file.is_random:
        initial_state = family.initialise(architecture, own_seed)
        random_state = initial_state if head_seed is None else family.initialise(architecture, seed)
        state = {
            n: initial_state[n] if position_of(family, n).part == "head" else t
            for n, t in random_state.items()
        }
        return replace(model_file, checkpoint=Checkpoint.of(state, header=header), header=header)
    expected, stored = expected_specs(family, header), model_file.checkpoint.specs
    kept_specs = {n: s for n, s in stored.items() if n in expected and position_of(family, n).part != "head"}
    fresh = draw_missing(family, architecture, expected, kept_specs, seed=own_seed)
    checkpoint = replace(model_file.checkpoint, specs=kept_specs).joined(Checkpoint.of(fresh))
    return replace(model_file, checkpoint=checkpoint, header=header, lacks="")


def draw_missing(
    family: Family,
    architecture: Architecture,
    expected: Iterable[str],
    kept_specs: Mapping[str, TensorSpec],
    *,
    seed: int,
) -> dict[str, torch.Tensor]:
    """Return random tensors in place of missing tensors, drawn by the library's own rules.

    Args:
        family: The family.
        architecture: The architecture with all tensors.
        expected: Names of all tensors.
        kept_specs: Dtypes and shapes of the present tensors; not empty. New tensors have the dtype of the
            largest present tensor.
        seed: Seed of the random generator.
    """
    initial_state = family.initialise(architecture, seed)
    dtype = max(kept_specs.values(), key=lambda spec: spec.size_bytes).torch_dtype
    return {name: initial_state[name].to(dtype) for name in expected if name not in kept_specs}


def resized(architecture: Architecture, number: int, library: str) -> Architecture:
    """Return an architecture with another number of logits, and without the task of the former classifier.

    A single logit separates two classes in multi-label models too.
    """
    config = {k: v for k, v in architecture.config.items() if k != "problem_type"} | {
        CLASSES[library]: number
    }
    several = architecture.problem_type if number > 1 else None
    return architecture.model_copy(
        update={"config": config, "num_classes": num_classes_of(number), "problem_type": several}
    )


def requested_classes(model_file: OpenModel) -> int | None:
    """Return the number of classes in an `arch:` reference, or None if the reference has no such option."""
    if not model_file.is_random:
        return None
    number = parse_arch(model_file.reference.removeprefix("arch:"))[1].get(CLASSES[model_file.family.library])
    return num_classes_of(number) if isinstance(number, int) else None
