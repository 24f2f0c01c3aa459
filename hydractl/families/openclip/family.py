"""open_clip's two-tower models: configurations, tokenizers, and families."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import gzip
import inspect
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from hydractl.errors import CheckpointError, UnsupportedModelError
from hydractl.families.base import COMMON_RULES, SCALE, Family, ModelDescription
from hydractl.families.config_checks import accepts_images, building, check_options, check_patches
from hydractl.families.head_slicing import HeadTensor, TensorRole, TowerLayout
from hydractl.families.timm.models import LAYOUT, tower_heads
from hydractl.families.transformers.text import read_tokenizer
from hydractl.manifest.document import first_error_text
from hydractl.manifest.head_mask import TowerHeads, TowerKeep
from hydractl.manifest.header import Architecture, Preprocess, Prompting, Tokenization
from hydractl.manifest.tokenizers import is_python_tokenizer
from hydractl.model_source import OPEN_CLIP_CONFIG
from hydractl.strict_json import compact, parse, plain

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

    from hydractl.families.tower import Model


DISTRIBUTION = "open_clip_torch"
ANY = "openclip"
PREFIX = "openclip:"
TOWERS = ("vision", "text")
CLIP_TOKENS = 49408
SUPPORTED = (
    "supported: open_clip's own VisionTransformer and TextTransformer, as in ViT-B-32 or ViT-L-14, and vision transformers "
    "of timm, as in ViT-B-16-SigLIP"
)
UNCUT = {
    "scale_heads": "each head has a scale parameter",
    "scaled_cosine_attn": "cosine attention with a temperature per head",
    "scale_attn_inner": "a norm over all heads, whose statistics change when a head is removed",
}
"""Options of attention that prevent the removal of heads, with the reason."""


BESIDE = frozenset({"timm_model_pretrained", "hf_tokenizer_name", "tokenizer_kwargs", "tokenizer_mode"})
"""Options of towers that are handled elsewhere, or that name an unused source of weights."""
LOADS = frozenset({"hf_model_name", "hf_model_pretrained", "hf_proj_type", "hf_pooler_type"})
"""Options of a text tower that would read from the Hub."""
TRAINING_ONLY = frozenset(
    {"init_logit_bias", "init_logit_scale", "ls_init_value", "patch_dropout", "timm_drop", "timm_drop_path"}
)
"""Options that change neither the outputs of trained weights nor the tensors, unless they are None."""
LONGEST = 4096
"""Maximum number of text tokens. The constructor allocates a causal mask of the square of this number: 64 MB
in float32 at 4096. If doubled, a header could make it allocate four times as much."""


def library() -> Any:  # noqa: ANN401 - open_clip is untyped
    """Return the module `open_clip`.

    Raises:
        UnsupportedModelError: If open_clip cannot be imported.
    """
    try:
        import open_clip
    except ImportError as error:
        raise UnsupportedModelError(
            f"OpenCLIP models need open_clip, which cannot be imported: {error}",
            hint="`pip install 'hydractl[openclip]'`",
        ) from error
    return open_clip


def registered(name: str, options: Mapping[str, object]) -> dict[str, Any]:
    """Return a configuration from open_clip's registry, changed by options.

    Args:
        name: Name with the prefix `openclip:`. `openclip` alone is an empty configuration, completed by the
            options.
        options: `embed_dim=64`, `vision.layers=3`, `text.width=32`, `custom_text=true`, ...

    Raises:
        UnsupportedModelError: If the registry does not have the name.
    """
    open_clip, registry_name = library(), name.removeprefix(PREFIX)
    names = open_clip.list_models()
    if name != ANY and registry_name not in names:
        close = difflib.get_close_matches(registry_name, names, n=3)
        raise UnsupportedModelError(
            f"open_clip has no model `{registry_name}`",
            hint=f"did you mean {', '.join(f'`{PREFIX}{c}`' for c in close)}?" if close else None,
        )
    config: dict[str, Any] = {} if name == ANY else open_clip.get_model_config(registry_name)
    for tower in TOWERS:
        tower_config = options.get(f"{tower}_cfg") or {}
        tower_options = {
            k.removeprefix(f"{tower}."): v for k, v in options.items() if k.startswith(f"{tower}.")
        }
        config[f"{tower}_cfg"] = {
            **config.get(f"{tower}_cfg", {}), **(tower_config if isinstance(tower_config, dict) else {}), **tower_options
        }  # fmt: skip
    of_towers = tuple(f"{tower}{end}" for tower in TOWERS for end in (".", "_cfg"))
    return config | {k: v for k, v in options.items() if not k.startswith(of_towers)}


def name_of(config: Mapping[str, object]) -> str:
    """Return `openclip:NAME` if a configuration equals that of NAME in the registry, else `openclip`."""
    open_clip = library()
    named = (PREFIX + n for n in open_clip.list_models() if open_clip.get_model_config(n) == config)
    return next(named, ANY)


def evaluation_config(config: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the settings that affect the outputs of trained weights, with defaults."""
    full_config = {**config, "custom_text": is_custom(config)}
    for name, kind in (("vision_cfg", library().CLIPVisionCfg), ("text_cfg", library().CLIPTextCfg)):
        tower = dataclasses.asdict(kind(**config[name]))
        full_config[name] = {k: v for k, v in tower.items() if k not in BESIDE | TRAINING_ONLY}
    return {k: v for k, v in full_config.items() if k not in TRAINING_ONLY}


def refusal(config: Mapping[str, Any]) -> str | None:
    """Return why heads cannot be removed from a model with this configuration, or None."""
    vision, text = config["vision_cfg"], config["text_cfg"]
    pool, towers = vision.get("attentional_pool"), (("image", vision), ("text", text))
    reasons = {
        "a CoCa model, which writes captions with a third stack of blocks": "multimodal_cfg" in config,
        "its image tower is a ResNet (ModifiedResNet), which has no heads": isinstance(
            vision.get("layers"), list | tuple
        ),
        f"its text tower is transformers' `{text.get('hf_model_name')}`; open_clip's own text transformers are "
        "supported": text.get("hf_model_name"),
        "its text tower has a class token (embed_cls), as in CoCa": text.get("embed_cls"),
        f"tokenizer mode `{text.get('tokenizer_mode')}`: texts end in a class token after the padding": text.get(
            "tokenizer_mode"
        ),
        "its text tower does not project (proj_type), and its width differs from its embeddings": text.get(
            "proj_type"
        )
        == "none"
        and text.get("width") != config.get("embed_dim"),
        "its temperature is not a scalar (nonscalar_logit_scale)": config.get("nonscalar_logit_scale"),
        f"attentional pooling of kind `{pool}`: two poolers, and one embedding per query": isinstance(
            pool, str
        ),
        **{
            f"its {tower} tower does not pool: it returns one embedding per token": options.get("pool_type")
            == "none"
            for tower, options in towers
        },
        **{
            f"{option} of the {tower} tower: {reason}": config[f"{tower}_cfg"].get(option)
            for tower in TOWERS
            for option, reason in UNCUT.items()
        },
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def refusal_of_timm(visual: Any) -> str | None:  # noqa: ANN401 - open_clip is untyped
    """Return why heads cannot be removed from an image tower of timm on the meta device, or None."""
    from hydractl.families.timm.models import refusal_of_tower

    if reason := refusal_of_tower(visual.trunk):
        return reason
    made_for = visual.trunk.patch_embed.img_size
    fits = tuple(visual.image_size) == tuple(made_for) or accepts_images(
        visual.trunk, (3, *visual.image_size)
    )
    return None if fits else f"it accepts images of {made_for}, not of {visual.image_size}"


def timm_name(config: Mapping[str, Any]) -> str:
    """Return the name of the timm model used as image tower, or an empty string for open_clip's own towers."""
    return str(config["vision_cfg"].get("timm_model_name") or "")


def text_sizes(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the maximum number of tokens of a text, and the vocabulary size."""
    kind = library().CLIPTextCfg
    return tuple(
        config["text_cfg"].get(name, getattr(kind, name)) for name in ("context_length", "vocab_size")
    )


def is_custom(config: Mapping[str, object]) -> bool:
    """Return whether the text tower is a separate module (`CustomTextCLIP`) with the prefix `text.`."""
    return bool(config.get("custom_text", False))


def created(config: Mapping[str, Any], name: str, *, weights: bool = True) -> Any:  # noqa: ANN401 - as above
    """Build the library's model, with random weights or with parameters on the meta device.

    Raises:
        UnsupportedModelError: If heads cannot be removed, an option is not allowed, or open_clip cannot build
            the model.
    """
    import torch

    from hydractl.families.tower import without_weights

    with building("open_clip", name):
        if reason := refusal(config):
            raise UnsupportedModelError(f"`{name}` is not supported: {reason}", hint=SUPPORTED)
        make = library().CustomTextCLIP if is_custom(config) else library().CLIP
        kwargs = _constructor_kwargs(config, name, inspect.signature(make).parameters.keys())
        if weights:
            return make(**kwargs)
        # timm's constructors may run a part of the model, which needs buffers on the same device, and can
        # compute buffers again.
        with torch.device("meta") if timm_name(config) else without_weights():
            return make(**kwargs)


def _constructor_kwargs(config: Mapping[str, Any], name: str, parameters: Collection[str]) -> dict[str, Any]:
    """Return the constructor's arguments from a configuration, after checking the options.

    Raises:
        UnsupportedModelError: If an option is unknown or not allowed, or texts are longer than `LONGEST`
            tokens.
    """
    options = {k: v for k, v in copy.deepcopy(dict(config)).items() if k != "custom_text"}
    for tower, kind in (("vision", library().CLIPVisionCfg), ("text", library().CLIPTextCfg)):
        tower_options = {k: v for k, v in options[f"{tower}_cfg"].items() if k not in BESIDE}
        check_options(
            name, tower_options, inspect.signature(kind).parameters.keys() - LOADS, prefix=f"{tower}."
        )
        options[f"{tower}_cfg"] = tower_options
    top_level = {k: v for k, v in options.items() if k not in {"vision_cfg", "text_cfg"}}
    check_options(name, top_level, set(parameters) - {"cast_dtype", "output_dict"})
    if options["text_cfg"].get("context_length", 0) > LONGEST:
        raise UnsupportedModelError(f"`{name}`: its texts have more than {LONGEST} tokens")
    return options


def random_state(config: Mapping[str, Any], name: str, seed: int) -> dict[str, torch.Tensor]:
    """Return random weights by the library's own rules, determined by the seed."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return dict(created(config, name).state_dict())


START, END = "<start_of_text>", "<end_of_text>"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
CONTROLS = r"[\x00-\x08\x0b\x0e-\x1f\x7f\x{206a}-\x{206f}\x{feff}\x{fff9}-\x{fffc}]"
REPAIRS = {
    "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&apos;": "'", "&nbsp;": " ",
    "ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "ſt", "ﬆ": "st",
}  # fmt: skip
"""Replacements in texts, applied in this order. `&amp;` is first because open_clip resolves HTML entities
twice."""
CLEAN = ("lower", "whitespace", "canonicalize")


def tokenization(options: Mapping[str, Any], source: Path | None, sizes: tuple[int, int]) -> Tokenization:
    """Return the tokenization of texts.

    Args:
        options: The `text_cfg`.
        source: The model's folder, a `tokenizer.json`, or None.
        sizes: Maximum number of tokens, and vocabulary size.

    Returns:
        With the tokenizer of `source` if `source` is a file or `text_cfg` names a tokenizer of the Hub, else
        with open_clip's own. Without a tokenizer if the named one has no source, or the vocabulary is smaller
        than `CLIP_TOKENS`.

    Raises:
        CheckpointError: If the folder's tokenizer is needed and cannot be read.
        UnsupportedModelError: If the cleaning of texts is unknown, or the tokenizer exists only in Python.
    """
    length, vocab_size = sizes
    kwargs = options.get("tokenizer_kwargs") or {}
    if not isinstance(kwargs, dict):
        raise UnsupportedModelError("its tokenizer_kwargs are not an object")
    named = bool(options.get("hf_tokenizer_name"))
    clean = kwargs.get("clean", "whitespace" if named else "lower")
    if clean not in CLEAN:
        raise UnsupportedModelError(
            f"texts cleaned by `{clean}` are not supported: open_clip has no such cleaning"
        )
    try:
        preprocess = Tokenization(max_length=length, pad_id=0, vocab_size=vocab_size, padding="max_length")
    except ValidationError as error:
        raise UnsupportedModelError(
            f"its text preprocessing is not supported: {first_error_text(error)}"
        ) from error
    if source is not None and (named or source.is_file()):
        folder_tokenization = read_tokenizer(
            source,
            SimpleNamespace(vocab_size=vocab_size, pad_token_id=options.get("pad_id", 0)),
            max_length=length,
            padding="max_length",
        )
        text = folder_tokenization.tokenizer or ""
        if is_python_tokenizer(text):
            raise UnsupportedModelError(
                f"{source}: its tokenizer exists only in Python, so open_clip's cleaning of texts cannot be added to it",
                hint="give a `tokenizer.json`: `arch:openclip:NAME::tokenizer=PATH/tokenizer.json`",
            )
        text = _cleaned(_without_separator(text) if kwargs.get("strip_sep_token") else text, clean)
        return preprocess.model_copy(
            update={
                "tokenizer": text,
                **{
                    name: getattr(folder_tokenization, name)
                    for name in ("pad_id", "max_length", "padding_side", "truncation_side")
                },
            }
        )
    if named or vocab_size < CLIP_TOKENS:
        return preprocess
    return preprocess.model_copy(update={"tokenizer": clip_tokenizer(clean)})


@cache
def clip_tokenizer(clean: str = "lower") -> str:
    """Return the JSON text of a `tokenizer.json` for open_clip's SimpleTokenizer and its vocabulary.

    Args:
        clean: `lower`, `whitespace` (keeps capitals), or `canonicalize` (also removes punctuation).
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors

    symbols, merges = _vocabulary()
    names = [*symbols, *(f"{s}</w>" for s in symbols), *("".join(pair) for pair in merges), START, END]
    vocabulary = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, end_of_word_suffix="</w>", fuse_unk=False)
    )
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in (START, END)])
    tokenizer.normalizer = _cleaning(clean)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(name, vocabulary[name]) for name in (START, END)]
    )
    return _compact(tokenizer)


def _vocabulary() -> tuple[list[str], list[tuple[str, str]]]:
    """Return the symbols of the 256 bytes in the order of ids, and the merges in order."""
    shipped = library().tokenizer
    with gzip.open(shipped.default_bpe(), "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")
    symbols = list(shipped.bytes_to_unicode().values())
    count = CLIP_TOKENS - 2 * len(symbols) - 2
    pairs = [line.split() for line in lines[1 : count + 1]]
    return symbols, [(first, second) for first, second in pairs]


def _cleaning(clean: str) -> Any:  # noqa: ANN401 - tokenizers has no common type that mypy knows
    from tokenizers import Regex, normalizers

    steps: list[Any] = [normalizers.Replace(old, new) for old, new in REPAIRS.items()]
    steps += [
        normalizers.Replace(Regex("[\u02bc\u2018-\u201b]"), "'"),
        normalizers.Replace(Regex("[\u201c-\u201f]"), '"'),
        normalizers.Replace(Regex(CONTROLS), ""),
        normalizers.NFC(),
    ]
    if clean == "canonicalize":
        steps += [normalizers.Replace("_", " "), normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), "")]
    if clean != "whitespace":
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence([*steps, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()])


def _cleaned(text: str, clean: str) -> str:
    """Return a `tokenizer.json` with open_clip's cleaning before the tokenizer's own normalization."""
    from tokenizers import Tokenizer, normalizers

    tokenizer = Tokenizer.from_str(text)
    normalizer = tokenizer.normalizer
    tokenizer.normalizer = normalizers.Sequence(
        [_cleaning(clean), *([] if normalizer is None else [normalizer])]
    )
    return _compact(tokenizer)


def _without_separator(text: str) -> str:
    """Change a `tokenizer.json` to end texts with token 0 instead of `[SEP]`.

    Raises:
        UnsupportedModelError: If the tokenizer does not add `[SEP]`.
    """
    raw = parse(text)
    ends = raw.get("post_processor") or {}
    if ends.get("type") == "TemplateProcessing" and "[SEP]" in ends["special_tokens"]:
        ends["special_tokens"]["[SEP]"]["ids"] = [0]
    elif ends.get("type") == "BertProcessing":
        ends["sep"][1] = 0
    else:
        raise UnsupportedModelError("its tokenizer has no `[SEP]` to strip (strip_sep_token)")
    return compact(raw)


def _compact(tokenizer: Tokenizer) -> str:
    return compact(parse(tokenizer.to_str()))


LIBRARY = FAMILY = "openclip"
TIMM, CUSTOM_TEXT = "-timm", "-custom-text"
ANSWER = (*SCALE, "class_embeddings")
HEADS = (
    HeadTensor(name="attn.in_proj_weight", axis=0, copies=3, role=TensorRole.INPUT),
    HeadTensor(name="attn.in_proj_bias", axis=0, copies=3, role=TensorRole.BIAS),
    HeadTensor(name="attn.out_proj.weight", axis=1, copies=1, role=TensorRole.OUTPUT),
)
OPENAI_MEAN, OPENAI_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
CROPS = {"shortest": "center", "squash": "squash"}


TEXT = TowerLayout(
    block="transformer.resblocks.{layer}.",
    heads=HEADS,
    attention=("attn.",),
    mlp=("mlp.",),
    embed=("token_embedding.", "positional_embedding"),
    readout=("ln_final.", "text_projection"),
    head=(),
)
VISION = replace(
    TEXT,
    embed=("conv1.", "class_embedding", "positional_embedding", "ln_pre."),
    readout=("attn_pool.", "ln_post.", "proj"),
).under("visual.")
TRUNK = LAYOUT.under("visual.trunk.")
TRUNK = replace(TRUNK, embed=("visual.trunk.",), readout=(*TRUNK.readout, *TRUNK.head, "visual.head."))


def _family(name: str, *, covers: str, refuses: str) -> Family:
    layouts = {
        "text": TEXT.under("text.") if name.endswith(CUSTOM_TEXT) else TEXT,
        "vision": replace(TRUNK if TIMM in name else VISION, head=ANSWER),
    }

    def matches(config: Mapping[str, object]) -> bool:
        return "model_cfg" in config and name == _family_name(config["model_cfg"])

    def build(
        architecture: Architecture, mask: Mapping[str, TowerKeep], state: Mapping[str, torch.Tensor] | None
    ) -> Model:
        from hydractl.families.openclip.modules import wrap
        from hydractl.families.timm.modules import complete
        from hydractl.families.tower import cut_heads, load_tensors

        config: dict[str, Any] = dict(architecture.config)
        library = created(config, architecture.name, weights=False)
        cut_heads(library, layouts, architecture, mask)
        load_tensors(
            library, None if state is None else {k: v for k, v in state.items() if k != "class_embeddings"}
        )
        if timm_name(config):
            complete(library.visual.trunk)
        if config["vision_cfg"].get("pos_embed_type") == "sin_cos_2d":
            # open_clip creates this table without gradients, but `load_tensors` makes all floating-point parameters
            # trainable.
            library.visual.positional_embedding.requires_grad_(requires_grad=False)
        classes = None if state is None else state.get("class_embeddings")
        return wrap(
            library, {tower: keep.keep for tower, keep in mask.items()}, classes, width=config["embed_dim"]
        ).eval()

    return Family(
        name=name,
        library=DISTRIBUTION,
        covers=covers,
        refuses=refuses,
        towers=layouts,
        matches=matches,
        matches_encoder=lambda _: False,
        # one of the four families, which describes the models of all
        claims=lambda name_in_registry: (
            name == FAMILY and (name_in_registry == ANY or name_in_registry.startswith(PREFIX))
        ),
        read_config=read_config,
        write_config=write_config,
        describe=describe,
        build=build,
        initialise=lambda architecture, seed: random_state(architecture.config, architecture.name, seed),
        evaluation_config=lambda architecture: evaluation_config(architecture.config),
        texts=lambda architecture: text_sizes(architecture.config),
        adopt=adopt,
        rules=COMMON_RULES,
        scalars=frozenset(SCALE),
        exact=frozenset(SCALE),
    )


def describe(name: str, options: Mapping[str, object]) -> ModelDescription:
    """Describe a model of open_clip's registry, for example `openclip:ViT-B-32`.

    Args:
        name: Name with the prefix `openclip:`.
        options: Options of the model; `tokenizer` is a file or folder.

    Raises:
        UnsupportedModelError: If the registry does not have the model, or heads cannot be removed.
    """
    config_options = dict(options)
    tokenizer = config_options.pop("tokenizer", None)
    config = registered(name, config_options)
    return _described(name, config, {}, tokenizer=None if tokenizer is None else Path(str(tokenizer)))


def read_config(config: Mapping[str, object], folder: Path) -> ModelDescription:
    """Describe the model of a folder from its `open_clip_config.json`.

    Raises:
        CheckpointError: If `model_cfg` does not define two towers.
        UnsupportedModelError: If heads cannot be removed from the model.
    """
    model, images = config.get("model_cfg"), config.get("preprocess_cfg") or {}
    if not isinstance(model, dict) or not isinstance(images, dict):
        raise CheckpointError(
            f"{folder}: model_cfg and preprocess_cfg of open_clip_config.json must be objects"
        )
    for tower in TOWERS:
        if not isinstance(model.get(f"{tower}_cfg"), dict):
            raise CheckpointError(
                f"{folder}: model_cfg.{tower}_cfg of open_clip_config.json is not an object"
            )
    return _described(name_of(model), model, images, tokenizer=folder)


def write_config(described: ModelDescription) -> dict[str, Mapping[str, object]]:
    """Return a mapping with one entry: the content of `open_clip_config.json`, by file name."""
    preprocess = cast("Preprocess", described.preprocess)
    images = {
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "interpolation": preprocess.interpolation,
        "resize_mode": next(name for name, mode in CROPS.items() if mode == preprocess.crop_mode),
    }
    return {OPEN_CLIP_CONFIG: {"model_cfg": described.architecture.config, "preprocess_cfg": images}}


def adopt(
    place: str,  # noqa: ARG001 - as other families take it
    architecture: Architecture,
    state: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Return a folder's tensors, with the prefix `text.` for the text tower of a `CustomTextCLIP`.

    open_clip also reads such files: models were saved without the prefix before `custom_text` was introduced.
    """
    if is_custom(architecture.config):
        prefixes = (TEXT.block.partition(".")[0] + ".", *TEXT.embed, *TEXT.readout)
        state = {f"text.{k}" if k.startswith(prefixes) else k: v for k, v in state.items()}
    return dict(state)


def _described(
    name: str, config: Mapping[str, Any], images: Mapping[str, Any], *, tokenizer: Path | None
) -> ModelDescription:

    library = created(config, name, weights=False)
    with building("open_clip", name):
        text = library.text if is_custom(config) else library
        towers = {"text": _heads(text.transformer.resblocks), "vision": _image_heads(name, config, library)}
    return ModelDescription(
        architecture=Architecture(
            library=LIBRARY,
            name=name,
            family=_family_name(config),
            config=plain(config),
            towers=towers,
            num_classes=0,
        ),
        preprocess=_images(library.visual.image_size, images),
        prompting=Prompting(
            tokenization=tokenization(config["text_cfg"], tokenizer, (text.context_length, text.vocab_size))
        ),
    )


def _heads(blocks: Any) -> TowerHeads:  # noqa: ANN401 - open_clip is untyped
    attention = blocks[0].attn
    return TowerHeads(layers=len(blocks), num_heads=attention.num_heads, head_dim=attention.head_dim)


def _image_heads(name: str, config: Mapping[str, Any], library: Any) -> TowerHeads:  # noqa: ANN401 - as above
    """Return the heads of an image tower.

    Raises:
        UnsupportedModelError: If heads cannot be removed from an image tower of timm.
    """
    timm = timm_name(config)
    if not timm:
        check_patches(name, image=library.visual.image_size, patch=library.visual.patch_size)
        return _heads(library.visual.transformer.resblocks)
    if reason := refusal_of_timm(library.visual):
        raise UnsupportedModelError(
            f"`{name}` is not supported: its image tower is timm's `{timm}`: {reason}", hint=SUPPORTED
        )
    return tower_heads(library.visual.trunk)


def _family_name(config: object) -> str:
    """Return the name of the family that reads a configuration."""
    if not isinstance(config, Mapping):
        return FAMILY
    timm = isinstance(config.get("vision_cfg"), Mapping) and timm_name(config)
    return f"{FAMILY}{TIMM if timm else ''}{CUSTOM_TEXT if is_custom(config) else ''}"


def _images(size: tuple[int, int], preprocess_cfg: Mapping[str, Any]) -> Preprocess:
    """Read a `preprocess_cfg`. Missing fields have the values of OpenAI's models.

    Args:
        size: Height and width.
        preprocess_cfg: The fields.

    Raises:
        UnsupportedModelError: If a field has an unsupported value.
    """
    mode, interpolation = (
        str(preprocess_cfg.get("resize_mode") or "shortest"),
        preprocess_cfg.get("interpolation"),
    )
    if mode not in CROPS:
        raise UnsupportedModelError(
            f"its preprocessing is not supported: resize_mode `{mode}`",
            hint=f"supported: {', '.join(CROPS)}",
        )
    try:
        return Preprocess.model_validate(
            {
                "input_size": (3, *size),
                "mean": tuple(preprocess_cfg.get("mean") or OPENAI_MEAN),
                "std": tuple(preprocess_cfg.get("std") or OPENAI_STD),
                "interpolation": "bicubic" if interpolation in (None, "random") else interpolation,
                "crop_mode": CROPS[mode],
            }
        )
    except ValidationError as error:
        raise UnsupportedModelError(
            f"its preprocessing is not supported: {first_error_text(error)}"
        ) from error
    except TypeError as error:
        raise UnsupportedModelError(f"its preprocessing has invalid mean or std: {error}") from error


REFUSES = (
    "CoCa: a third stack of blocks; ResNets: no heads; towers of transformers; scales and norms that span the heads; "
    "text towers with a class token; poolings with several answers"
)
OPENCLIP = (
    _family(
        FAMILY,
        covers="`CLIP` with open_clip's own towers, zero-shot: ViT-B-32, ViT-L-14, CLIPA, ...",
        refuses=REFUSES,
    ),
    _family(
        f"{FAMILY}{CUSTOM_TEXT}",
        covers="`CustomTextCLIP` with open_clip's own towers, zero-shot",
        refuses=f"as `{FAMILY}`",
    ),
    _family(
        f"{FAMILY}{TIMM}",
        covers="`CLIP` with an image tower of timm's families, zero-shot",
        refuses=f"as `{FAMILY}` and timm's families; ConvNeXt, Swin: no vision transformers",
    ),
    _family(
        f"{FAMILY}{TIMM}{CUSTOM_TEXT}",
        covers="`CustomTextCLIP` with an image tower of timm's families, zero-shot: SigLIP, perception encoder, EVA, "
        "ViTamin, MobileCLIP",
        refuses=f"as `{FAMILY}{TIMM}`",
    ),
)
