"""Files of a model's folder besides the weights, all derived from the header of the checkpoint.

A base that the library itself can load is written in the library's own format and needs no hydractl. Members
and hydras have the type `hydractl`, which `hydractl.auto` registers with transformers and timm. hydractl
itself reads only `model.safetensors`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

from hydractl.families.base import ModelDescription, problem_type_of
from hydractl.families.registry import family_of
from hydractl.families.transformers.hf_models import labels_as_config
from hydractl.families.transformers.models import class_names_or_default
from hydractl.heads.masks import full_mask
from hydractl.manifest.head_mask import HeadMask
from hydractl.manifest.header import Header, Kind, Preprocess, Tokenization
from hydractl.manifest.terms import Temperature
from hydractl.manifest.tokenizers import is_python_tokenizer, parts_of, unknown_token
from hydractl.model_source import INDEX, OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS, WEIGHTS
from hydractl.strict_json import canonical, parse, plain

TYPE = "hydractl"
"""`model_type` for transformers and architecture name for timm."""
CONFIG, IMAGES, TOKENIZER, TOKENIZER_CONFIG = (
    "config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
SHARD = "model-{i:05d}-of-{n:05d}.safetensors"
IMAGE_MODEL = "HydraForImageClassification"
IMAGE_PROCESSOR = "HydraImageProcessor"
_MASKS = "head-mask*.json"
MODEL_FILES = (
    CONFIG,
    IMAGES,
    INDEX,
    OPEN_CLIP_CONFIG,
    TOKENIZER,
    WEIGHTS,
    _MASKS,
    TOKENIZER_CONFIG,
    "bpe.codes",
    "spiece.model",
    "vocab.txt",
    "model-*-of-*.safetensors",
    *OPEN_CLIP_WEIGHTS,
)
"""File names and patterns of a model in a folder. Writing another model replaces all of them."""


def files_of(header: Header) -> dict[str, bytes]:
    """Return the files of a model's folder by name, without the weights."""
    documents = _stock(header)
    if documents is None:
        documents = {CONFIG: _config(header)}
        if isinstance(header.preprocess, Preprocess):
            documents[IMAGES] = {"image_processor_type": IMAGE_PROCESSOR, **_plain(header.preprocess)}
    files = {name: canonical(value).encode() for name, value in documents.items()}
    return files | dict(_tokenizer(tokenization_of(header))) | dict(_masks(header))


def is_stock(header: Header) -> bool:
    """Return whether the library's own loader builds exactly this model from the weights."""
    return _stock(header) is not None


def _stock(header: Header) -> dict[str, Mapping[str, object]] | None:
    """Return the library's configuration files by name, or None if the loader cannot build this model."""
    all_heads = full_mask(header.architecture.towers)
    if (
        header.kind == Kind.HYDRA
        or any(mask != all_heads for mask in header.masks)
        or header.scale != Temperature()
        or header.fitted  # Libraries ignore fitted OOD scores, thresholds and prediction sets.
        or header.threshold
        or header.known_test
        or header.prediction_sets
    ):
        return None
    described = ModelDescription(
        architecture=header.architecture,
        preprocess=header.preprocess,
        labels=header.labels,
        prompting=header.prompting,
    )
    return family_of(header.architecture).write_config(described)


def model_files(folder: Path) -> tuple[Path, ...]:
    """Return the model's files in a folder, sorted. Empty if the folder does not exist."""
    names = sorted(folder.iterdir()) if folder.is_dir() else ()
    return tuple(path for path in names if is_model_file(path.name))


def is_model_file(name: str) -> bool:
    """Return whether hydractl may have written a file with this name."""
    return any(fnmatch(name, pattern) for pattern in MODEL_FILES)


def tokenization_of(header: Header) -> Tokenization | None:
    """Return the tokenization of a text or zero-shot model, or None if the model reads no text."""
    preprocess = header.preprocess
    if isinstance(preprocess, Tokenization):
        return preprocess
    return None if header.prompting is None else header.prompting.tokenization


def labels_of(header: Header) -> tuple[str, ...]:
    """Return the class names of a model, with generated names if the header has none."""
    return class_names_or_default(header.labels, header.num_classes)


def _auto_class(header: Header) -> str:
    if isinstance(header.preprocess, Preprocess):
        return IMAGE_MODEL
    return f"Hydra{header.architecture.task.library}"


def _config(header: Header) -> dict[str, object]:
    names = labels_of(header)
    config: dict[str, object] = {
        "architectures": [_auto_class(header)],
        "model_type": TYPE,
        **labels_as_config(names),
        **problem_type_of(header.architecture),
        "hydractl": _without_bulk(header),
    }
    if isinstance(header.preprocess, Preprocess):
        config |= {
            "architecture": TYPE,
            "num_classes": len(names),
            "label_names": list(names),
            "pretrained_cfg": {
                **_plain(header.preprocess),
                "fixed_input_size": True,
                "num_classes": len(names),
            },
        }
    return config


def _without_bulk(header: Header) -> dict[str, object]:
    """Return the header in JSON types, without provenance, sample digests and tokenizer (a separate file)."""
    fields = header.model_dump(mode="json", by_alias=True, exclude={"made_by", "samples"})
    for preprocess in (fields["preprocess"], (fields.get("prompting") or {}).get("tokenization", {})):
        preprocess.pop("tokenizer", None)
    return plain(fields)


def _plain(preprocess: Preprocess) -> dict[str, object]:
    return plain(preprocess.model_dump(mode="json"))


def _tokenizer(preprocess: Tokenization | None) -> Iterator[tuple[str, bytes]]:
    if preprocess is None or preprocess.tokenizer is None:
        return
    if is_python_tokenizer(preprocess.tokenizer):
        name, files = parts_of(preprocess.tokenizer)
        settings = parse(files.pop(TOKENIZER_CONFIG, b"{}")) | {"tokenizer_class": name}
    else:
        files = {TOKENIZER: preprocess.tokenizer.encode()}
        settings = _settings(preprocess)
    settings |= {
        "model_max_length": preprocess.max_length,
        "model_input_names": ["input_ids", *preprocess.names],
        "padding_side": preprocess.padding_side,
        "truncation_side": preprocess.truncation_side,
    }
    yield from files.items()
    yield TOKENIZER_CONFIG, canonical(settings).encode()


def _settings(preprocess: Tokenization) -> dict[str, object]:
    """Return the `tokenizer_config.json` for loading an unchanged `tokenizer.json` with transformers."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - models of images need none

    tokenizer = Tokenizer.from_str(preprocess.tokenizer or "")
    pad, unknown = tokenizer.id_to_token(preprocess.pad_id), unknown_token(preprocess.tokenizer or "")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return (
        settings
        | ({} if pad is None else {"pad_token": pad})
        # The pipeline for tokens compares word pieces with the unknown token to find the words.
        | ({"unk_token": unknown} if preprocess.by_word and unknown else {})
    )


def _masks(header: Header) -> Iterator[tuple[str, bytes]]:
    if header.kind == Kind.BASE:
        return
    for i, mask in enumerate(header.masks):
        name = "head-mask.json" if header.kind == Kind.MEMBER else f"head-mask-{i}.json"
        yield (
            name,
            HeadMask(towers=mask, architecture=header.architecture.name, base=header.base).to_json().encode(),
        )
