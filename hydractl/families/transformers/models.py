"""Families of transformers, built from rows of tables, and rules for the fields of model folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from hydractl.checkpoint import common_dtype
from hydractl.errors import EDITED, CheckpointError, UnsupportedModelError, reason_of
from hydractl.families.base import (
    COMMON_RULES,
    DEQUANTIZE,
    PROBLEM_RULE,
    Family,
    ModelDescription,
    ModelFolder,
    Rule,
    class_names_of,
    is_replaceable,
    num_classes_of,
    position_on_disk,
    problem_type_of,
    with_pooling,
    with_task,
)
from hydractl.families.config_checks import OptionsError, building, check_patches
from hydractl.families.head_slicing import TowerLayout
from hydractl.families.transformers import hf_models
from hydractl.families.transformers.encoder import heads_of
from hydractl.families.transformers.hf_models import FILES, image_size, reads_images, write_image_processor
from hydractl.manifest.head_mask import TowerKeep
from hydractl.manifest.header import Architecture, Preprocess, Prompting, Tokenization
from hydractl.manifest.terms import DEFAULT_POOLING, POOLINGS
from hydractl.messages import counted, quoted
from hydractl.strict_json import compact, parse, plain
from hydractl.tasks import TOKENS

if TYPE_CHECKING:
    import torch

    from hydractl.families.tower import HeadNumbers, Model


MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
SENTENCE_POOLINGS = ("cls", "mean")
"""Supported poolings of sentence-transformers. `cls` is the pooling of the encoders."""
ENCODER = (
    "save only the encoder: `SentenceTransformer(FOLDER)[0].auto_model.save_pretrained(OTHER)`, and "
    "its tokenizer likewise"
)
"""Hint for folders of sentence-transformers with other modules than encoder and pooling."""


def _num_labels(folder: ModelFolder) -> str | None:
    names, number = folder.config.get("id2label"), folder.config.get("num_labels")
    if not (folder.classifies and isinstance(names, dict) and isinstance(number, int)):
        return None
    return f"`num_labels` is {number}, but `id2label` has {len(names)}" if number != len(names) else None


def _class_names(folder: ModelFolder) -> str | None:
    names = folder.config.get("id2label")
    if names is None or not folder.classifies:
        return None
    if not isinstance(names, dict):
        return "`id2label` is not an object that maps class numbers to names"
    if absent := sorted({str(i) for i in range(len(names))} - names.keys(), key=int):
        return f"`id2label` has {len(names)} classes, but none with the number {absent[0]}"
    return None


def _quantization(folder: ModelFolder) -> str | None:
    for key in ("quantization_config", "compression_config"):
        config = folder.config.get(key)
        if config:
            method = config.get("quant_method") if isinstance(config, dict) else None
            return f"its weights are quantized (`{key}`{f': `{method}`' if method else ''})"
    return None


def _own_class(folder: ModelFolder) -> str | None:
    """Return why the classifier is lost if transformers has none of the folder's classes, or None."""
    if not folder.model_classes:
        return None
    import transformers

    unknown = [name for name in folder.model_classes if not hasattr(transformers, name)]
    if len(unknown) < len(folder.model_classes):
        return None
    return (
        f"is a `{unknown[0]}`, which is not in transformers: custom code (`auto_map`) is never run, so "
        "its classifier would be lost"
    )


def _setfit(folder: ModelFolder) -> str | None:
    reason = (
        "is a SetFit model: its classifier is in `{}`, a pickle, which is never loaded, so it would be lost"
    )
    files = (name for name in ("model_head.pkl", "model_head.pt") if (folder.path / name).is_file())
    return next(map(reason.format, files), None)


def _sentence_modules(folder: ModelFolder) -> str | None:
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in folder.sentence_modules]
    others = [kind for kind in kinds if kind not in {"Transformer", "Pooling", "Normalize"}]
    if others:
        return f"`{MODULES}` has a module `{others[0]}`, which would be lost"
    return f"`{MODULES}` has {kinds.count('Pooling')} poolings" if kinds.count("Pooling") > 1 else None


def _pooling(folder: ModelFolder) -> str | None:
    modes = _pooling_modes(folder)
    if modes in ([name] for name in SENTENCE_POOLINGS) or not (
        modes or any(str(module.get("type", "")).endswith("Pooling") for module in folder.sentence_modules)
    ):
        return None
    return f"sentence-transformers pools its tokens by {quoted(modes) or 'a pooling that no file names'}; supported are `cls` and `mean`"


def _pooling_modes(folder: ModelFolder) -> list[str]:
    """Return the names of the poolings in the pooling module of a sentence-transformers folder."""
    if folder.model_classes and folder.classifies:
        return []
    modules = (
        str(m.get("path")) for m in folder.sentence_modules if str(m.get("type", "")).endswith("Pooling")
    )
    pooling_config = folder.read(f"{next(modules, '1_Pooling')}/config.json")
    if mode := pooling_config.get("pooling_mode"):
        return [str(mode)] if isinstance(mode, str) else [str(name) for name in mode]
    return [
        key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for key, value in pooling_config.items()
        if key.startswith("pooling_mode_") and value is True
    ]


def with_sentence_settings(described: ModelDescription, folder: ModelFolder) -> ModelDescription:
    """Return the description with pooling, maximum length and lowercasing of sentence-transformers.

    Raises:
        CheckpointError: If `sentence_bert_config.json` has a value of the wrong type.
    """
    texts = described.preprocess
    if not isinstance(texts, Tokenization):
        return described
    length, lowercase = _sentence_limits(folder)
    if length is not None:
        texts = texts.model_copy(update={"max_length": min(length, texts.max_length)})
    if lowercase and texts.tokenizer is not None:
        texts = texts.model_copy(update={"tokenizer": _lowercased(texts.tokenizer)})
    notes = []
    if any(str(module.get("type", "")).endswith("Normalize") for module in folder.sentence_modules):
        notes.append(
            "`modules.json` normalizes embeddings to length one, but a new classifier reads them unscaled"
        )
    if folder.sentence_modules and (prompt := folder.read(PROMPTS).get("default_prompt_name")):
        notes.append(f"texts get no prompt, although `{PROMPTS}` has the default prompt `{prompt}`")
    return replace(
        described,
        preprocess=texts,
        pools="mean" if _pooling_modes(folder) == ["mean"] else None,
        notes=tuple(notes),
    )


def _sentence_limits(folder: ModelFolder) -> tuple[int | None, bool]:
    """Return the maximum number of tokens (or None) and lowercasing in `sentence_bert_config.json`.

    Raises:
        CheckpointError: If a value has the wrong type.
    """
    settings = folder.read("sentence_bert_config.json") if folder.sentence_modules else {}
    length, lowercase = settings.get("max_seq_length"), settings.get("do_lower_case") or False
    if not (length is None or (type(length) is int and length > 0)) or not isinstance(lowercase, bool):
        raise CheckpointError(
            f"{folder.path}/sentence_bert_config.json: `max_seq_length` must be a positive number, `do_lower_case` true or false"
        )
    return length, lowercase


def _lowercased(tokenizer: str) -> str:
    """Return a tokenizer's JSON with lowercasing before all other normalization."""
    settings = parse(tokenizer)
    steps = [{"type": "Lowercase"}, settings.get("normalizer")]
    settings["normalizer"] = {"type": "Sequence", "normalizers": [step for step in steps if step]}
    return compact(settings)


RULES = (
    *COMMON_RULES,
    Rule(
        library="transformers",
        name="options of the type's configuration",
        effect="passed to the library's configuration; undeclared options are ignored",
    ),
    Rule(
        library="transformers",
        name="`dtype`",
        effect="ignored: weights keep their stored dtype, and `--dtype` sets the dtype of computation",
    ),
    Rule(
        library="transformers",
        name="`architectures` of a class without a classifier, weights with one",
        effect="the classifier is loaded, as in transformers, with a warning",
    ),
    Rule(
        library="transformers",
        name="tensors in a block that the class does not have",
        effect="refused",
    ),
    Rule(
        library="transformers",
        name="`preprocessor_config.json`",
        effect="size, crop, scale, mean and standard deviation are used; other image processors are refused",
    ),
    Rule(
        library="transformers",
        name="`tokenizer.json`, `tokenizer_config.json`, vocabularies",
        effect=(
            "loaded by the library's tokenizer; texts are always padded on the right, `padding_side` is ignored"
        ),
    ),
    Rule(
        library="transformers",
        name="`quantization_config`, `compression_config`",
        effect="refused",
        problem=_quantization,
        hint=DEQUANTIZE,
    ),
    Rule(
        library="transformers",
        name="`pruned_heads`",
        effect="refused",
        problem=lambda folder: (
            "an older transformers has removed heads (`pruned_heads`)"
            if folder.config.get("pruned_heads")
            else None
        ),
    ),
    replace(PROBLEM_RULE, library="transformers"),
    Rule(
        library="transformers",
        name="`num_labels`, number of `id2label`",
        effect="one logit is the log odds of its class, as in transformers' pipeline; two numbers that differ are refused, and `finetune` takes the encoder",
        problem=_num_labels,
        as_backbone=True,
    ),
    Rule(
        library="transformers",
        name="`id2label`",
        effect="class names; a list and missing numbers are refused",
        problem=_class_names,
        hint='write it as `"id2label": {"0": "cat", "1": "dog"}`, with a name for every class',
    ),
    Rule(
        library="transformers",
        name="two classes of one name in `id2label`",
        effect="loaded with a warning (ImageNet has `crane` twice); data cannot be matched by such a name",
    ),
    Rule(
        library="transformers",
        name="`architectures`, `auto_map`: a class that transformers does not have",
        effect="refused, and its code is never run; `finetune` accepts the encoder",
        problem=_own_class,
        as_backbone=True,
    ),
    Rule(
        library="transformers",
        name="`model_head.pkl` of SetFit",
        effect="refused; `finetune` takes the encoder",
        problem=_setfit,
        as_backbone=True,
    ),
    Rule(
        library="transformers",
        name="`modules.json` of sentence-transformers",
        effect=(
            "an encoder with one pooling is accepted; other modules such as `Dense` are refused, and "
            "`Normalize` is ignored with a warning"
        ),
        problem=_sentence_modules,
        hint=ENCODER,
    ),
    Rule(
        library="transformers",
        name="`1_Pooling/config.json`",
        effect=(
            "`mean` is the pooling before the new classifier, and for `cls` the family's own; others, and a "
            "pooling that no file names, are refused"
        ),
        problem=_pooling,
        hint=ENCODER,
    ),
    Rule(
        library="transformers",
        name="`default_prompt_name` of `config_sentence_transformers.json`",
        effect="ignored with a warning: texts have no prompt in training and prediction",
    ),
    Rule(
        library="transformers",
        name="`sentence_bert_config.json`",
        effect=(
            "`max_seq_length` and `do_lower_case` are used for an encoder, but not for a classifier, "
            "because no library reads them there"
        ),
    ),
)
"""Rules for files and fields in folders of transformers, except options of configurations."""


LIBRARY = "transformers"
CLASS_EMBEDDINGS = "class_embeddings"
NOT_WRITTEN = {*hf_models.NOT_ARCHITECTURE, "num_labels"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRow:
    """The models of transformers in a family: classifiers, or zero-shot models with two towers.

    Subclasses implement texts, images, and pairs of both.

    Attributes:
        title: Name of the family without `transformers-`.
        classes: Class of the library, by architecture name. The name is the `model_type`, or the class name
            if the type has several classes.
        types: The `model_type`, for architecture names with the name of a class.
        others: Architecture name, by other model types with the same encoder.
        bare: Regular expressions and replacements for tensor names of encoders saved without classifier.
        remark: Text after the classes in the table of families.
        refusal: Function from a configuration to the reason why heads cannot be removed, or None.
        refuses: See `Family`.
        padding: `longest` pads texts to the longest of a batch, `max_length` to the maximum length.
        on_disk: See `Family`, also for `scalars` and `exact`.
    """

    title: str
    classes: Mapping[str, str]
    types: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    bare: tuple[tuple[str, str], ...] = ()
    remark: str = ""
    refusal: Callable[[Any], str | None] = lambda _: None
    refuses: str = ""
    padding: Literal["longest", "max_length"] = "longest"
    on_disk: tuple[tuple[str, str], ...] = ()
    scalars: frozenset[str] = frozenset()
    exact: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Name of the family."""
        return f"{LIBRARY}-{self.title}"

    @property
    def towers(self) -> Mapping[str, TowerLayout]:
        """Layout of each tower in memory, by `text` or `vision`. Names on disk may differ."""
        raise NotImplementedError

    @property
    def nested(self) -> Mapping[str, str]:
        """Name of each tower's nested configuration. Empty without nested configurations."""
        return {}

    def parts_of(self, config: Any) -> Mapping[str, Any]:  # noqa: ANN401 - as above
        """Return the configuration of each tower."""
        return {
            tower: getattr(config, self.nested[tower]) if self.nested else config for tower in self.towers
        }

    def refused(self, config: Any) -> str | None:  # noqa: ANN401 - transformers is untyped
        """Return why heads cannot be removed from a model with this configuration, or None."""
        return self.refusal(config)

    def of(self, architecture: Architecture) -> FamilyRow:  # noqa: ARG002 - as above
        """Return the row for the task and pooling of an architecture."""
        return self

    def by_token(self) -> FamilyRow | None:
        """Return the row of the same encoders with token classifiers, or None."""
        return None

    def spared(self, architecture: Architecture) -> tuple[str, ...]:  # noqa: ARG002 - as above
        """Return paths of library modules without use in a model of this architecture."""
        return ()

    def wrap(self, library: Any, head_numbers: Mapping[str, HeadNumbers]) -> Model:  # noqa: ANN401 - as above
        """Build the model from the library's modules.

        Args:
            library: The library's model, with tensors cut to the kept heads.
            head_numbers: Kept heads of each layer, by tower.
        """
        raise NotImplementedError

    def images(self, config: Any, folder: Path | None) -> Preprocess | None:  # noqa: ANN401, ARG002 - as above
        """Return the preprocessing of images, or None for text models.

        Args:
            config: Configuration of the image tower.
            folder: Folder of the model, or None.
        """
        return None

    def texts(self, config: Any, source: Path | None) -> Tokenization | None:  # noqa: ANN401, ARG002 - as above
        """Return the tokenization of texts, or None for image models.

        Args:
            config: Configuration of the text tower.
            source: Folder or file with the tokenizer, or None.
        """
        return None

    def text_sizes(self, architecture: Architecture) -> tuple[int, int]:
        """Return the maximum number of tokens of a text, and the vocabulary size."""
        config = hf_models.configured(self.model_type(architecture.name), architecture.config)
        text_config = getattr(config, self.nested["text"]) if self.nested else config
        preprocess = cast("Tokenization", self.texts(text_config, None))
        return preprocess.max_length, preprocess.vocab_size

    @property
    def zero_shot(self) -> bool:
        """Whether classes are given by texts instead of a classifier."""
        return len(self.towers) > 1

    def class_of(self, architecture: Architecture) -> str:
        """Return the name of the library's class for an architecture.

        Raises:
            UnsupportedModelError: If the family does not have the architecture. An edited file may contain
                any name.
        """
        if architecture.name not in self.classes:
            raise UnsupportedModelError(f"{self.name} has no architecture `{architecture.name}`")
        return self.of(architecture).classes[architecture.name]

    def model_type(self, name: str) -> str:
        """Return the `model_type` of an architecture name: its entry in `types`, or else the name itself."""
        return self.types.get(name, name)

    def name_of(self, config: Mapping[str, object], *, backbone: bool = False) -> str | None:
        """Return the architecture name of a `config.json`, or None for another family.

        For classifiers the `model_type` is enough, even if the model was trained with another class.

        Args:
            config: Content of the file.
            backbone: Whether the encoder of an architecture is enough.
        """
        trained, kind = config.get("architectures"), config.get("model_type")
        names = [name for name in self.classes if self.model_type(name) == kind]
        trained_as = [name for name in names if isinstance(trained, list) and self.classes[name] in trained]
        plain = [name for name in names if backbone or name not in self.types]
        others = [*plain, *(name for model_type, name in self.others.items() if model_type == kind)]
        return next(iter((*trained_as, *(() if self.zero_shot and trained else others))), None)

    def architecture_options(self, config: Mapping[str, object], name: str) -> dict[str, object]:
        """Return the options in a `config.json`, converted to the model type of the architecture."""
        options = {k: v for k, v in config.items() if k != "model_type"}
        if config.get("model_type") not in self.others:
            return options
        if self.nested:
            return dict.fromkeys(self.nested.values(), options)
        known_keys = hf_models.configured(self.model_type(name), {}).to_dict()
        return {k: v for k, v in options.items() if k in known_keys}

    def backbone_options(self, options: dict[str, object], folder: Path) -> dict[str, object]:  # noqa: ARG002 - as above
        """Return the options of an architecture for a folder without a classifier."""
        return options


def family_of_row(row: FamilyRow) -> Family:
    """Return the family of a row."""

    def describe(name: str, options: Mapping[str, object]) -> ModelDescription:
        config_options = dict(options)
        tokenizer = config_options.pop("tokenizer", None) if "text" in row.towers else None
        pooling = (
            config_options.pop("pooling", DEFAULT_POOLING)
            if row.towers.keys() == {"text"}
            else DEFAULT_POOLING
        )
        config = hf_models.checked_config(row.model_type(name), _unfolded(row, config_options))
        described = _described(
            row, name, config, tokenizer=None if tokenizer is None else Path(str(tokenizer))
        )
        if pooling not in POOLINGS:
            raise UnsupportedModelError(
                f"`{name}` has no pooling `{pooling}`", hint=f"there are {', '.join(POOLINGS)}"
            )
        return replace(described, architecture=with_pooling(described.architecture, str(pooling)))

    def build(
        architecture: Architecture, mask: Mapping[str, TowerKeep], state: Mapping[str, torch.Tensor] | None
    ) -> Model:
        from hydractl.families.tower import Contrast, cut_heads, load_tensors

        library = hf_models.empty_model(row.class_of(architecture), architecture, row.spared(architecture))
        if {
            name: heads_of(part) for name, part in row.parts_of(library.config).items()
        } != architecture.towers:
            raise CheckpointError(
                f"its header has other heads than its configuration makes a `{architecture.name}` with",
                hint=EDITED,
            )
        cut_heads(library, row.towers, architecture, mask)
        load_tensors(
            library, None if state is None else {k: v for k, v in state.items() if k != CLASS_EMBEDDINGS}
        )
        model = row.of(architecture).wrap(library, {tower: keep.keep for tower, keep in mask.items()}).eval()
        model.answer.multi_label = architecture.task.by_label
        if state is not None and CLASS_EMBEDDINGS in state and isinstance(model.answer, Contrast):
            # not a parameter, because class embeddings are not trained
            model.answer.set_class_embeddings(state[CLASS_EMBEDDINGS].detach())
        return model

    family = Family(
        name=row.name,
        library=LIBRARY,
        covers=", ".join(f"`{name}`" for name in row.classes.values()) + row.remark,
        refuses=row.refuses,
        towers=row.towers,
        matches=lambda config: row.name_of(config) is not None,
        matches_encoder=lambda config: not row.zero_shot and row.name_of(config, backbone=True) is not None,
        names=tuple(row.classes),
        claims=lambda name: name in row.classes,
        read_config=lambda config, folder: _read_config(row, config, folder),
        write_config=lambda described: _write_config(row, described),
        describe=describe,
        build=build,
        initialise=lambda architecture, seed: hf_models.random_state(
            row.class_of(architecture), architecture, seed, row.spared(architecture)
        ),
        evaluation_config=lambda architecture: hf_models.evaluation_config(
            row.class_of(architecture), architecture.config
        ),
        texts=row.text_sizes if "text" in row.towers else None,
        rules=RULES,
        adopt=lambda place, architecture, state: _adopted_state(row, family, place, architecture, state),
        on_disk=row.on_disk,
        scalars=row.scalars,
        exact=row.exact,
    )
    return family


def _adopted_state(
    row: FamilyRow, family: Family, place: str, architecture: Architecture, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the tensors of a folder under their names in memory.

    Args:
        row: The row of the family. The folder may be of another class with the same encoder.
        family: The family.
        place: Name of the folder, for messages.
        architecture: Architecture of the result.
        state: The stored tensors.

    Raises:
        CheckpointError: If the library cannot convert the tensors, tensors are missing or of another shape
            and not replaceable, or blocks have additional tensors.
    """
    model_class = row.class_of(architecture)
    config = hf_models.configured(
        hf_models.class_named(model_class).config_class.model_type, architecture.config
    )
    try:
        with hf_models.quiet():
            library, report = hf_models.class_named(model_class).from_pretrained(
                None,
                config=config,
                state_dict=dict(state),
                dtype=common_dtype(tensor for name, tensor in state.items() if name not in row.exact),
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # The library's error would not name the tensors.
                **({"key_mapping": dict(row.bare)} if row.bare else {}),
            )
    except Exception as error:  # converters of the library may raise any error
        raise CheckpointError(f"{place}: transformers cannot read its weights: {reason_of(error)}") from error
    if missing := sorted(name for name in report["missing_keys"] if not is_replaceable(family, name)):
        raise CheckpointError(
            f"{place}: lacks {counted(len(missing), 'tensor')} of {model_class}, for example `{missing[0]}`",
            hint="config.json may belong to another model",
        )
    if unexpected := sorted(
        name for name in report["unexpected_keys"] if position_on_disk(family, name).layer is not None
    ):
        raise CheckpointError(
            f"{place}: has {counted(len(unexpected), 'tensor')} in its blocks that {model_class} "
            f"does not have, for example `{unexpected[0]}`",
            hint="merge adapters into the weights first (`merge_and_unload()`), or check the architecture",
        )
    resized = {name: shapes for name, *shapes in sorted(report["mismatched_keys"])}
    if mismatched := [name for name in resized if not (is_replaceable(family, name) and name in state)]:
        stored, expected = map(tuple, resized[mismatched[0]])
        raise CheckpointError(
            f"{place}: tensor `{mismatched[0]}` has shape {stored}, but its config.json needs {expected}",
            hint="config.json may belong to another model",
        )
    loaded = hf_models.without_modules(library, row.spared(architecture)).state_dict()
    loaded_state = {name: tensor for name, tensor in loaded.items() if name not in report["missing_keys"]}
    unchanged = {*resized, *row.exact} & state.keys() & loaded.keys()
    return {**loaded_state, **{name: state[name] for name in sorted(unchanged)}}


def _read_config(row: FamilyRow, config: Mapping[str, object], folder: Path) -> ModelDescription:
    name = row.name_of(config) or row.name_of(config, backbone=True) or str(config["model_type"])
    model_class = row.classes[name]
    trained, options = hf_models.classes_of(config, model_class), row.architecture_options(config, name)
    if model_class not in trained:
        options = row.backbone_options(options, folder)
    library_config = hf_models.configured(row.model_type(name), options)
    described = _described(row, name, library_config, folder=folder, tokenizer=folder)
    if model_class in trained:
        return described
    if (by_token := row.by_token()) is not None and by_token.classes[name] in trained:
        return with_task(described, TOKENS)
    # Token and multiple-choice classifiers have tensors of the same names.
    may_classify = not (row.zero_shot or trained[0].endswith(("Classification", "MultipleChoice")))
    described = replace(
        described, lacks=f"is a {trained[0]}, which is not a classifier", may_classify=may_classify
    )
    return (
        with_sentence_settings(described, ModelFolder(path=folder, config=config))
        if "text" in row.towers
        else described
    )


def _write_config(row: FamilyRow, described: ModelDescription) -> dict[str, Mapping[str, object]] | None:
    architecture, preprocess = described.architecture, described.preprocess
    # Files of image processors cannot select Pillow.
    if architecture.pooling is not None or getattr(preprocess, "resize_backend", None) == "pillow":
        return None
    # A single logit belongs to the second class.
    logits = cast("int", architecture.config.get("num_labels", 0))
    config: dict[str, object] = {
        "architectures": [row.class_of(architecture)],
        "model_type": row.model_type(architecture.name),
        **{key: setting for key, setting in architecture.config.items() if key not in NOT_WRITTEN},
        **(
            {}
            if row.zero_shot
            else hf_models.labels_as_config(class_names_or_default(described.labels[-logits:], logits))
        ),
        **problem_type_of(architecture),
    }
    images = {FILES[0]: write_image_processor(preprocess)} if isinstance(preprocess, Preprocess) else {}
    return {"config.json": config, **images}


def class_names_or_default(labels: Sequence[str], count: int) -> tuple[str, ...]:
    """Return class names, or the library's default names `LABEL_0`, `LABEL_1`, ... if there are none."""
    return tuple(labels) or tuple(f"LABEL_{i}" for i in range(count))


def _unfolded(row: FamilyRow, options: Mapping[str, object]) -> dict[str, object]:
    """Return options with `vision.x=1` moved into the nested configuration of the tower."""
    unfolded = dict(options)
    for tower, nested in row.nested.items():
        tower_config, prefix = unfolded.pop(nested, None), f"{tower}."
        tower_options = {
            key.removeprefix(prefix): unfolded.pop(key) for key in list(unfolded) if key.startswith(prefix)
        }
        unfolded[nested] = {**(tower_config if isinstance(tower_config, dict) else {}), **tower_options}
    return unfolded


def _architecture_options(row: FamilyRow, config: Any) -> dict[str, object]:  # noqa: ANN401 - untyped
    """Return the fields of a configuration for the architecture."""
    full_config: dict[str, Any] = config.to_dict()
    options = {k: v for k, v in full_config.items() if k not in {*hf_models.NOT_ARCHITECTURE, "model_type"}}
    if row.nested:
        options = {k: v for k, v in options.items() if not k.endswith("_config")}
    for nested in row.nested.values():
        options[nested] = {
            k: v for k, v in full_config[nested].items() if k not in hf_models.NOT_ARCHITECTURE
        }
    return options if row.zero_shot else {**options, "num_labels": config.num_labels}


def _described(
    row: FamilyRow,
    name: str,
    config: Any,  # noqa: ANN401 - as above
    *,
    folder: Path | None = None,
    tokenizer: Path | None = None,
) -> ModelDescription:
    with building(LIBRARY, name):
        parts = row.parts_of(config)
        _check(row, config, tuple(parts.values()))
        if "vision" in parts:
            _, *size = image_size(parts["vision"])
            check_patches(name, image=size, patch=parts["vision"].patch_size)
        labels = () if row.zero_shot else tuple(str(config.id2label[i]) for i in range(config.num_labels))
        named = any(label != f"LABEL_{i}" for i, label in enumerate(labels))
        texts = row.texts(parts["text"], tokenizer) if "text" in parts else None
        images = row.images(parts["vision"], folder) if "vision" in parts else None
        return ModelDescription(
            architecture=Architecture(
                library=LIBRARY,
                name=name,
                family=row.name,
                config=plain(_architecture_options(row, config)),
                towers={tower: heads_of(tower_config) for tower, tower_config in parts.items()},
                num_classes=0 if row.zero_shot else num_classes_of(config.num_labels),
            ),
            preprocess=cast("Preprocess | Tokenization", images or texts),
            labels=class_names_of(labels) if named else (),
            assumed=images is not None and folder is not None and not reads_images(folder),
            prompting=Prompting(tokenization=texts) if texts and row.zero_shot else None,
        )


def _check(row: FamilyRow, config: Any, parts: Sequence[Any]) -> None:  # noqa: ANN401 - as above
    """Check that the model has layers, a classifier unless it is zero-shot, and heads that can be removed.

    Raises:
        UnsupportedModelError: If heads cannot be removed, a tower has no layers, or a model which is not
            zero-shot has no classifier.
        OptionsError: If a tower has no heads, or has no `head_dim` and a width which is not a multiple of the
            number of heads.
    """
    if reason := row.refused(config):
        raise UnsupportedModelError(f"`{config.model_type}` is not supported: {reason}")
    classless = not row.zero_shot and config.num_labels < 1
    if classless or any(tower_config.num_hidden_layers < 1 for tower_config in parts):
        lacks = "no classifier; set `num_labels`" if classless else "no layers"
        raise UnsupportedModelError(f"`{config.model_type}` is not supported: it has {lacks}")
    for tower_config in parts:
        heads = tower_config.num_attention_heads
        if heads < 1 or (not getattr(tower_config, "head_dim", None) and tower_config.hidden_size % heads):
            raise OptionsError(
                f"`{config.model_type}` with a width of {tower_config.hidden_size} cannot have {heads} heads",
                hint="the width must be a multiple of the number of heads",
            )
