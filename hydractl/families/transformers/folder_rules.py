"""What folders of transformers, sentence-transformers and SetFit say beside the options of a configuration."""

from __future__ import annotations

from dataclasses import replace

from hydractl.errors import CheckpointError
from hydractl.families.base import Described
from hydractl.families.model_folder import COMMON_RULES, DEQUANTIZE, PROBLEM_RULE, ModelFolder, Rule
from hydractl.manifest.header import Tokenization
from hydractl.messages import quoted
from hydractl.strict_json import compact, parse

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
POOLINGS = ("cls", "mean")
"""Supported poolings of sentence-transformers; the first is that of the family."""
ENCODER = (
    "save only the encoder: `SentenceTransformer(FOLDER)[0].auto_model.save_pretrained(OTHER)`, and "
    "its tokenizer likewise"
)


def _num_labels(folder: ModelFolder) -> str | None:
    names, number = folder.config.get("id2label"), folder.config.get("num_labels")
    if not folder.classifies:
        return None
    if isinstance(names, dict) and isinstance(number, int) and number != len(names):
        return f"`num_labels` is {number}, but `id2label` has {len(names)}"
    return None


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
    """Return that the classifier is of a class which the library does not have, or None."""
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
    files = [name for name in ("model_head.pkl", "model_head.pt") if (folder.path / name).is_file()]
    if not files:
        return None
    return f"is a SetFit model: its classifier is in `{files[0]}`, a pickle, which is never loaded, so it would be lost"


def _sentence_modules(folder: ModelFolder) -> str | None:
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in folder.sentence_modules]
    others = [kind for kind in kinds if kind not in {"Transformer", "Pooling", "Normalize"}]
    if others:
        return f"`{MODULES}` has a module `{others[0]}`, which would be lost"
    return f"`{MODULES}` has {kinds.count('Pooling')} poolings" if kinds.count("Pooling") > 1 else None


def _pooling(folder: ModelFolder) -> str | None:
    modes = _pooling_modes(folder)
    if len(modes) == 1 and modes[0] in POOLINGS:
        return None
    return (
        f"sentence-transformers pools its tokens by {quoted(modes)}; supported are `cls` and `mean`"
        if modes
        else None
    )


def _pooling_modes(folder: ModelFolder) -> list[str]:
    """Return the names of the poolings in a folder's pooling module."""
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


def with_sentence_settings(described: Described, folder: ModelFolder) -> Described:
    """Return a text encoder that reads texts as sentence-transformers does: its pooling, its longest text, lowercased or not.

    Raises:
        CheckpointError: If `sentence_bert_config.json` has a value of another type.
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
    """Return the most tokens of a text, and whether texts are lowercased, as `sentence_bert_config.json` says."""
    settings = folder.read("sentence_bert_config.json") if folder.sentence_modules else {}
    length, lowercase = settings.get("max_seq_length"), settings.get("do_lower_case") or False
    if not (length is None or (type(length) is int and length > 0)) or not isinstance(lowercase, bool):
        raise CheckpointError(
            f"{folder.path}/sentence_bert_config.json: `max_seq_length` must be a positive number, `do_lower_case` true or false"
        )
    return length, lowercase


def _lowercased(tokenizer: str) -> str:
    """Return the text of a tokenizer that lowercases texts before all else."""
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
        effect="`mean` and `cls` become the pooling before the new classifier; others are refused",
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
"""Files and fields in folders of transformers other than options of a configuration."""
