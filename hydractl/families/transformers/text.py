"""Text encoders, decoders and tokenizers of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from hydractl.errors import CheckpointError, UnsupportedModelError, reason_of
from hydractl.families.head_slicing import TowerLayout
from hydractl.families.transformers.encoder import TextEncoderNames
from hydractl.families.transformers.hf_models import check_small, quiet
from hydractl.families.transformers.models import FamilyRow, family_of_row
from hydractl.manifest.header import Architecture, InputName, Tokenization
from hydractl.manifest.tokenizers import SENTENCEPIECE, SETTINGS, check_document, check_settings, to_text
from hydractl.runtime import without_panic
from hydractl.strict_json import compact, parse, read_object
from hydractl.tasks import SINGLE_LABEL, TOKENS

if TYPE_CHECKING:
    from hydractl.families.tower import HeadNumbers, Model


COMPLETE_TOKENIZERS = ("tokenizer.json", "tokenizer.*.json")
TOKENIZER_FILES = (*COMPLETE_TOKENIZERS, "vocab.*", "merges.txt", "bpe.codes", "*.model")
"""Tokenizer files in folders of text models."""
NOTES = ("config.json", SETTINGS, "special_tokens_map.json", "added_tokens.json")
"""Settings files that the library reads with the tokenizer files."""
BESIDE = (
    "a text model needs `tokenizer.json` or its vocabulary in the folder of its weights: "
    "`tokenizer.save_pretrained(FOLDER)`"
)
"""Hint for a folder without a tokenizer."""


Padding = Literal["longest", "max_length"]
UNLISTED = ("token_type_ids",)
"""Input names of a model without a library tokenizer, which would list them."""


def read_tokenizer(
    source: Path,
    config: Any,  # noqa: ANN401 - untyped
    *,
    max_length: int,
    padding: Padding,
) -> Tokenization:
    """Return the tokenization of a model from a folder or a `tokenizer.json`.

    Args:
        source: A folder or a file.
        config: Configuration of the model, with vocabulary size and padding token.
        max_length: Maximum number of tokens of the model.
        padding: `longest` pads texts to the longest of a batch, `max_length` to `max_length`.

    Raises:
        CheckpointError: If the tokenizer is missing or cannot be read.
        UnsupportedModelError: If sentencepiece is needed and not installed, or the class of the tokenizer is
            not supported.
    """
    tokenizer, backend = _load_tokenizer(source)
    # The library returns a tokenizer of a few special tokens for a folder without files, which knows no word.
    if (
        tokenizer is not None
        and backend is not None
        and not _is_stored(source, type(tokenizer).vocab_files_names)
    ):
        raise _no_tokenizer(source)
    limit = max_length if tokenizer is None else min(max_length, tokenizer.model_max_length)
    pad = getattr(tokenizer, "pad_token_id", None)
    if pad is None:
        pad = config.pad_token_id
    return Tokenization(
        tokenizer=_text_of(tokenizer, backend, source),
        names=_input_names(config, padding, getattr(tokenizer, "model_input_names", UNLISTED)),
        max_length=int(limit),
        pad_id=max(0, int(pad or 0)),  # some configurations have -1 for a missing padding token
        vocab_size=int(config.vocab_size),
        padding=padding,
        padding_side="left" if getattr(tokenizer, "padding_side", None) == "left" else "right",
        truncation_side="left" if getattr(tokenizer, "truncation_side", None) == "left" else "right",
    )


def padding_token(folder: Path) -> int | None:
    """Return the padding token of a folder's tokenizer, else the token that ends a text. None without both.

    Raises:
        CheckpointError: If the tokenizer is missing or cannot be read.
        UnsupportedModelError: If sentencepiece is needed and not installed.
    """
    tokenizer, _ = _load_tokenizer(folder)
    pad: int | None = tokenizer.pad_token_id
    return tokenizer.eos_token_id if pad is None else pad


def _load_tokenizer(source: Path) -> tuple[Any, Any]:
    """Load a tokenizer. Return the library's tokenizer and the backend.

    The library's tokenizer is None for a file. The backend is None for tokenizers in Python only.

    Raises:
        CheckpointError: If the tokenizer is missing or cannot be read.
        UnsupportedModelError: If sentencepiece is needed and not installed.
    """
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    if source.is_dir():
        check_small(source, (*TOKENIZER_FILES, *NOTES))
        settings = source / SETTINGS
        check_settings(read_object(settings) if settings.is_file() else {}, str(source))
    try:
        with quiet(), without_panic():
            if source.is_dir():
                tokenizer = AutoTokenizer.from_pretrained(
                    source, local_files_only=True, trust_remote_code=False
                )
                backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None
            else:
                tokenizer, backend = None, Tokenizer.from_file(str(source))
    except Exception as error:  # the library may raise any error of its parsers
        if source.is_dir() and not any(_files(source, TOKENIZER_FILES)):
            raise _no_tokenizer(source) from error
        if any(_files(source, ("*.model",))) and find_spec("sentencepiece") is None:
            raise UnsupportedModelError(
                f"{source}: its tokenizer needs sentencepiece, which is not installed",
                hint=SENTENCEPIECE,
            ) from error
        raise CheckpointError(
            f"{source}: its tokenizer cannot be read: {reason_of(error)}", hint=BESIDE
        ) from error
    return tokenizer, backend


def _text_of(tokenizer: Any, backend: Any, source: Path) -> str:  # noqa: ANN401 - untyped
    """Return a tokenizer in the form stored in checkpoints."""
    if backend is None:
        with quiet():
            return to_text(tokenizer, source)
    backend.no_padding()
    backend.no_truncation()
    document = parse(backend.to_str())
    check_document(document, str(source))
    return compact(document)


def _input_names(config: Any, padding: Padding, listed: Sequence[str]) -> tuple[InputName, ...]:  # noqa: ANN401 - untyped
    """Return the inputs of a model besides the tokens.

    With batches of different lengths the mask is always an input, because padding would change the outputs.
    Token types are an input if the tokenizer returns token types. Otherwise a model uses type 0 everywhere,
    even in the second text of a pair.

    Args:
        config: Configuration of the model.
        padding: See `read_tokenizer`.
        listed: The tokenizer's `model_input_names`.
    """
    mask = padding == "longest" or "attention_mask" in listed
    types = "token_type_ids" in listed and getattr(config, "type_vocab_size", 0) > 1
    return (*(("attention_mask",) if mask else ()), *(("token_type_ids",) if types else ()))


def _no_tokenizer(folder: Path) -> CheckpointError:
    return CheckpointError(f"{folder}: has no tokenizer", hint=BESIDE)


def _is_stored(folder: Path, names: Mapping[str, str]) -> bool:
    """Return whether a folder has a complete tokenizer, or all vocabulary files of the tokenizer's class."""
    parts = [name for kind, name in names.items() if kind != "tokenizer_file"]
    return any(_files(folder, COMPLETE_TOKENIZERS)) or (
        bool(parts) and all((folder / name).is_file() for name in parts)
    )


def _files(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    return (path for pattern in patterns for path in folder.glob(pattern))


def read_texts(config: Any, source: Path | None, *, unused: int, padding: Padding) -> Tokenization:  # noqa: ANN401 - untyped
    """Return the tokenization of a model.

    Args:
        config: Configuration of the model.
        source: Folder or file with the tokenizer, or None.
        unused: Number of unused positions.
        padding: See `read_tokenizer`.
    """
    length = config.max_position_embeddings - unused
    if source is not None:
        return read_tokenizer(source, config, max_length=length, padding=padding)
    return Tokenization(
        names=_input_names(config, padding, UNLISTED),
        padding=padding,
        max_length=length,
        pad_id=max(0, int(config.pad_token_id or 0)),
        vocab_size=int(config.vocab_size),
    )


ROTATIONS = ("default", "linear", "yarn", "llama3")
"""Types of rotary embeddings with angles that do not depend on the length of the batch."""
MPNET_PADDING, MPNET_BUCKETS = 1, 32
"""Padding token and number of relative positions in transformers' code, independent of the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow(FamilyRow):
    """The text classifiers of one encoder.

    Attributes:
        encoder: Names of the encoder's parts.
        unused: Function from the configuration to the number of unused positions.
    """

    encoder: TextEncoderNames
    unused: Callable[[Any], int] = lambda _: 0

    @property
    @override
    def towers(self) -> Mapping[str, TowerLayout]:
        return {"text": self.encoder.layout()}

    @override
    def of(self, architecture: Architecture) -> TextRow:
        if architecture.task.by_word:
            return self.by_token()
        return self if architecture.pooling is None else replace(self, encoder=self.encoder.averaged())

    @override
    def by_token(self) -> TextRow:
        of_texts, of_tokens = SINGLE_LABEL.library, TOKENS.library
        classes = {name: f"{kind.removesuffix(of_texts)}{of_tokens}" for name, kind in self.classes.items()}
        return replace(self, classes=classes, encoder=self.encoder.by_token())

    @override
    def spared(self, architecture: Architecture) -> tuple[str, ...]:
        return () if architecture.pooling is None else self.encoder.spared

    @override
    def wrap(self, library: Any, head_numbers: Mapping[str, HeadNumbers]) -> Model:
        from hydractl.families.transformers.modules import wrap_text

        return wrap_text(library, head_numbers["text"], self.encoder)

    @override
    def texts(self, config: Any, source: Path | None) -> Tokenization:
        return read_texts(config, source, unused=self.unused(config), padding=self.padding)


def _causal(config: Any) -> str | None:  # noqa: ANN401 - as above
    decodes = getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False)
    return "it is a decoder with causal attention" if decodes else None


def _few_buckets(config: Any) -> str | None:  # noqa: ANN401 - as above
    reason = f"it has fewer than the {MPNET_BUCKETS} relative positions that the library uses"
    return reason if config.relative_attention_num_buckets < MPNET_BUCKETS else None


def _other_width(config: Any) -> str | None:  # noqa: ANN401 - as above
    width = config.hidden_size // config.num_attention_heads
    reason = "its `attention_head_size` is not its width divided by its number of heads"
    return reason if getattr(config, "attention_head_size", width) != width else None


def changing_angles(config: Any) -> str | None:  # noqa: ANN401 - as above
    """Return why the rotary angles of a configuration depend on the batch, or None."""
    rope_parameters = config.rope_parameters
    for kind in sorted(set(getattr(config, "layer_types", None) or ())) or [None]:
        parameters = rope_parameters if "rope_type" in rope_parameters else rope_parameters.get(kind)
        if parameters is None:
            return f"it has layers of the type `{kind}`"
        if parameters["rope_type"] not in ROTATIONS:
            return (
                f"its rotary embedding is of the type `{parameters['rope_type']}`, whose angles change with the length "
                "of the batch"
            )
    return None


def _unpadded(config: Any) -> str | None:  # noqa: ANN401 - as above
    if config.pad_token_id is None or (config.token_dropout and config.mask_token_id is None):
        return "it defines no padding token (`pad_token_id`) or mask token (`mask_token_id`)"
    return _causal(config)


def _positions_after_padding(config: Any) -> int:  # noqa: ANN401 - as above
    """Return the number of unused positions if positions start after the id of the padding token."""
    return int(config.pad_token_id) + 1


BERT = TextEncoderNames(
    model="bert",
    extra_inputs=("token_type_ids",),
    layers="encoder.layer",
    final=("pooler",),
    projection=("dropout",),
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    output="attention.output.dense",
    post_norm=True,
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
    mlp=("intermediate", "output.dense"),
    drops=("attention.output.dropout", "output.dropout"),
)
_BERT_ROW = TextRow(
    title="bert",
    encoder=BERT,
    classes={"bert": "BertForSequenceClassification"},
    refusal=_causal,
    refuses="decoders: their attention is causal",
)
_NO_POOLER = replace(BERT, final=(), projection=(), on_mean=("classifier.dropout", "classifier.out_proj"))
_PRE_NORM = replace(_NO_POOLER, post_norm=False)
LLAMA = TextEncoderNames(
    model="model",
    layers="layers",
    embed=("embed_tokens",),
    rotary="rotary_emb",
    final=("norm",),
    pooling="option",
    on_mean=("classifier",),
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.o_proj",
    norms=("input_layernorm", "post_attention_layernorm"),
    attention_dropout="attention_dropout",
)
_ROTATED = replace(
    LLAMA,
    embed=("embeddings",),
    extra_inputs=("token_type_ids",),
    pooling="own",
    on_mean=("dropout", "classifier"),
    post_norm=True,
    norms=("post_attention_layernorm", "post_mlp_layernorm"),
    drops=("post_attention_dropout", "post_mlp_dropout"),
    attention_dropout="attention_probs_dropout_prob",
)
_ROTATED_ON_DISK = (
    (r"^new\.", "gte."),
    (r"\.encoder\.layers?\.", ".layers."),
    (r"\.emb_ln\.", ".embeddings.LayerNorm."),
    (r"\.(?:attn|mixer|attention)\.o(?:ut)?_proj\.", ".self_attn.o_proj."),
    (r"\.(?:attn|mixer|attention)\.(?:Wqkv|qkv_proj)\.", ".self_attn.q_proj."),
)
CHANGING = "rotary angles that change with the length of the batch"
_ROWS = (
    _BERT_ROW,
    replace(
        _BERT_ROW,
        title="roberta",
        encoder=replace(_NO_POOLER, model="roberta"),
        classes={
            "roberta": "RobertaForSequenceClassification",
            "xlm-roberta": "XLMRobertaForSequenceClassification",
            "camembert": "CamembertForSequenceClassification",
        },
        unused=_positions_after_padding,
    ),
    replace(
        _BERT_ROW,
        title="electra",
        encoder=replace(_NO_POOLER, model="electra", embed=("embeddings", "embeddings_project")),
        classes={"electra": "ElectraForSequenceClassification"},
    ),
    TextRow(
        title="distilbert",
        encoder=TextEncoderNames(
            model="distilbert",
            layers="transformer.layer",
            pooling="first",
            projection=("pre_classifier", "relu", "dropout"),
            qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            output="attention.out_lin",
            post_norm=True,
            norms=("sa_layer_norm", "output_layer_norm"),
            mlp=("ffn.lin1", "ffn.activation", "ffn.lin2"),
            drops=("", "ffn.dropout"),
            attention_dropout="attention_dropout",
        ),
        classes={"distilbert": "DistilBertForSequenceClassification"},
    ),
    TextRow(
        title="modernbert",
        encoder=TextEncoderNames(
            model="model",
            code="rotated in single precision",
            layers="layers",
            rotary="rotary_emb",
            final=("final_norm",),
            pooling="option",
            projection=("head", "drop"),
            on_mean=("drop", "classifier"),
            on_tokens=("head", "drop", "classifier"),
            qkv=("attn.Wqkv",),
            output="attn.Wo",
            norms=("attn_norm", "mlp_norm"),
            drops=("attn.out_drop", ""),
            attention_dropout="attention_dropout",
        ),
        classes={"modernbert": "ModernBertForSequenceClassification"},
        refusal=changing_angles,
        refuses=CHANGING,
    ),
    TextRow(
        title="deberta",
        encoder=replace(
            BERT,
            model="deberta",
            code="disentangled",
            beside=("encoder.rel_embeddings", "encoder.LayerNorm"),
            final=(),
            projection=("pooler", "dropout"),
            qkv=tuple(f"attention.self.{name}_proj" for name in ("query", "key", "value")),
            further=tuple((name, f"attention.self.{name}_proj") for name in ("pos_key", "pos_query")),
            outside=(("conv", "encoder.conv"),),
        ),
        classes={"deberta-v2": "DebertaV2ForSequenceClassification"},
        remark=": v2, v3",
        refusal=_other_width,
        refuses="`attention_head_size` other than the width divided by the heads",
    ),
    TextRow(
        title="mpnet",
        encoder=replace(
            _NO_POOLER,
            model="mpnet",
            extra_inputs=(),
            code="shared bias",
            beside=("encoder.relative_attention_bias",),
            qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
            output="attention.attn.o",
            norms=("attention.LayerNorm", "output.LayerNorm"),
            drops=("attention.dropout", "output.dropout"),
        ),
        classes={"mpnet": "MPNetForSequenceClassification"},
        unused=lambda _: MPNET_PADDING + 1,
        refusal=_few_buckets,
        refuses=f"fewer relative positions than the {MPNET_BUCKETS} that the library looks up",
    ),
    replace(
        _BERT_ROW,
        title="ernie",
        encoder=replace(BERT, model="ernie"),
        classes={"ernie": "ErnieForSequenceClassification"},
    ),
    replace(
        _BERT_ROW,
        title="rembert",
        encoder=replace(BERT, model="rembert", embed=("embeddings", "encoder.embedding_hidden_mapping_in")),
        classes={"rembert": "RemBertForSequenceClassification"},
    ),
    replace(
        _BERT_ROW,
        title="roformer",
        encoder=replace(
            _NO_POOLER,
            model="roformer",
            embed=("embeddings", "embeddings_project"),
            unread=("encoder.embed_positions",),
            code="pairs",
        ),
        classes={"roformer": "RoFormerForSequenceClassification"},
        refusal=lambda config: (
            "it also rotates values (`rotary_value`)" if config.rotary_value else _causal(config)
        ),
        refuses="decoders; `rotary_value`",
    ),
    replace(
        _BERT_ROW,
        title="data2vec-text",
        encoder=replace(_NO_POOLER, model="data2vec_text"),
        classes={"data2vec-text": "Data2VecTextForSequenceClassification"},
        unused=_positions_after_padding,
    ),
    replace(
        _BERT_ROW,
        title="megatron-bert",
        encoder=replace(
            BERT,
            post_norm=False,
            norms=("attention.ln", "ln"),
            final=("encoder.ln", "pooler"),
        ),
        classes={"megatron-bert": "MegatronBertForSequenceClassification"},
    ),
    replace(
        _BERT_ROW,
        title="xlm-roberta-xl",
        encoder=replace(
            _PRE_NORM,
            model="roberta",
            final=("encoder.LayerNorm",),
            norms=("attention.self_attn_layer_norm", "LayerNorm"),
            drops=("attention.output.dropout", ""),
        ),
        classes={"xlm-roberta-xl": "XLMRobertaXLForSequenceClassification"},
        unused=_positions_after_padding,
    ),
    replace(
        _BERT_ROW,
        title="roberta-prelayernorm",
        encoder=replace(
            _PRE_NORM,
            model="roberta_prelayernorm",
            final=("LayerNorm",),
            norms=("attention.LayerNorm", "intermediate.LayerNorm"),
            mlp=("intermediate.dense", "intermediate.intermediate_act_fn", "output.dense"),
        ),
        classes={"roberta-prelayernorm": "RobertaPreLayerNormForSequenceClassification"},
        unused=_positions_after_padding,
    ),
    replace(
        _BERT_ROW,
        title="esm",
        encoder=replace(
            _PRE_NORM,
            model="esm",
            extra_inputs=("attention_mask",),
            rotary="rotary_embeddings",
            final=("encoder.emb_layer_norm_after",),
            norms=("attention.LayerNorm", "LayerNorm"),
            unread=("contact_head",),
            code="scaled before",
        ),
        classes={"esm": "EsmForSequenceClassification"},
        unused=_positions_after_padding,
        refusal=_unpadded,
    ),
    TextRow(
        title="eurobert",
        encoder=replace(LLAMA, projection=("dense", "activation"), on_tokens=("classifier",)),
        classes={"eurobert": "EuroBertForSequenceClassification"},
        refusal=changing_angles,
        refuses=CHANGING,
    ),
    TextRow(
        title="ultrabert",
        encoder=replace(
            LLAMA, projection=("drop",), on_mean=("drop", "classifier"), on_tokens=("drop", "classifier")
        ),
        classes={"ultrabert": "UltrabertForSequenceClassification"},
        refusal=changing_angles,
        refuses=CHANGING,
        on_disk=((r"^ultrabert\.", "model."),),
    ),
    TextRow(
        title="gte",
        encoder=replace(_ROTATED, model="gte", final=("pooler",), projection=("dropout",)),
        classes={"gte": "GteForSequenceClassification"},
        refusal=changing_angles,
        refuses=CHANGING,
        on_disk=_ROTATED_ON_DISK,
    ),
    TextRow(
        title="nomic-bert",
        encoder=replace(_ROTATED, model="nomic_bert", final=("pooler",), projection=("dropout",)),
        classes={"nomic_bert": "NomicBertForSequenceClassification"},
        refusal=changing_angles,
        refuses=CHANGING,
        on_disk=_ROTATED_ON_DISK,
    ),
    TextRow(
        title="jina-v3",
        encoder=replace(_ROTATED, model="roberta", final=(), on_mean=_NO_POOLER.on_mean),
        classes={"jina_embeddings_v3": "JinaEmbeddingsV3ForSequenceClassification"},
        refusal=changing_angles,
        refuses=CHANGING,
        on_disk=_ROTATED_ON_DISK,
    ),
)
TEXTS = tuple(family_of_row(row) for row in _ROWS)


CLASSES: Mapping[str, str] = MappingProxyType(
    {
        name.lower(): f"{name}ForSequenceClassification"
        for name in ("Llama", "Mistral", "Ministral", "Qwen2", "Qwen3", "Gemma", "Arcee")
    }
)


def _refusal(config: Any) -> str | None:  # noqa: ANN401 - transformers is untyped
    if config.pad_token_id is None:
        return (
            "its config.json has no `pad_token_id`, by which the last token of a padded text is found; write the tokenizer's "
            "there, or the id of its end of text: `model.config.pad_token_id = tokenizer.eos_token_id`, and save it again"
        )
    if getattr(config, "use_bidirectional_attention", None):
        return "its attention is not causal (`use_bidirectional_attention`)"
    return changing_angles(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderRow(TextRow):
    """Decoders with the structure of Llama."""

    @override
    def backbone_options(self, options: dict[str, object], folder: Path) -> dict[str, object]:
        pad = options.get("pad_token_id")  # language models need no padding token, and many have none
        return options | {"pad_token_id": padding_token(folder) if pad is None else pad}


_DECODER = DecoderRow(
    title="decoder",
    encoder=replace(
        LLAMA,
        causal=True,
        head_norms=("self_attn.q_norm", "self_attn.k_norm"),
        pooling="last",
        on_mean=("score",),
        on_tokens=("dropout", "score"),
        head=("score",),
    ),
    classes=CLASSES,
    refusal=_refusal,
    refuses=f"no `pad_token_id`; {CHANGING}; Gemma with attention that is not causal",
)
DECODERS = (family_of_row(_DECODER),)
