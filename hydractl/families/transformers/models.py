"""What all families of Hugging Face transformers have in common: their configurations.

A family of this library states its model types, their classes, where heads lie, and how the model is taken apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from hydractl.errors import UnsupportedModelError
from hydractl.families.base import Described, Family
from hydractl.families.transformers.encoder import heads_of
from hydractl.families.transformers.library import adopted_state, blank, checked, configured, random_state
from hydractl.jsonfile import plain, read_object
from hydractl.manifest.header import Architecture, Prompting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from hydractl.families.base import TowerLayout
    from hydractl.families.dismantling import Kept
    from hydractl.families.tower import Model
    from hydractl.manifest.header import Preprocess, Tokenization
    from hydractl.manifest.heads import TowerKeep

LIBRARY = "transformers"
NOT_ARCHITECTURE = ("id2label", "label2id", "transformers_version", "_name_or_path", "architectures", "dtype")
CLASS_EMBEDDINGS = "class_embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The models of transformers that one family reads: classifiers with one tower, or zero-shot ones with two.

    Attributes:
        name: The family's.
        covers: See `Family`.
        refuses: See `Family`.
        classes: For each architecture name the class. The name is a `model_type`, or, for another class of a type, that class's
            own.
        types: The `model_type` of names that are none.
        towers: Where heads and MLPs lie in memory, by `text` or `vision`; names on disk may differ.
        nested: For each tower the configuration within that tells of it; empty where the configuration is the tower's.
        wrap: Make the model out of the library's modules, given each tower's and layer's kept heads.
        images: How images are read, by a configuration of a tower and the folder it stands in, if any.
        texts: How texts are read, by a configuration of a tower and what holds the tokenizer, if any.
        padding: To what length texts are padded.
        refusal: Why heads cannot be cut in a model with this configuration, or None.
        pads_left: Whether texts may be padded on the left: whether a token that pads, where the answer is read off it then,
            comes out as the library's does.
        on_disk: See `Family`.
        scalars: See `Family`.
    """

    name: str
    covers: str
    refuses: str = ""
    classes: Mapping[str, str]
    types: Mapping[str, str] = field(default_factory=dict)
    towers: Mapping[str, TowerLayout]
    nested: Mapping[str, str] = field(default_factory=dict)
    wrap: Callable[[Any, Mapping[str, Kept]], Model]
    images: Callable[[Any, Path | None], Preprocess] | None = None
    texts: Callable[[Any, Path | None], Tokenization] | None = None
    padding: Literal["longest", "max_length"] = "longest"
    refusal: Callable[[Any], str | None] = lambda _: None
    pads_left: bool = True
    on_disk: tuple[tuple[str, str], ...] = ()
    scalars: frozenset[str] = frozenset()

    @property
    def zero_shot(self) -> bool:
        """Whether classes are named by texts, and are no part of the model."""
        return len(self.towers) > 1

    def model_type(self, name: str) -> str:
        """Return the `model_type` of an architecture name."""
        return self.types.get(name, name)

    def name_of(self, config: Mapping[str, object]) -> str | None:
        """Return the architecture name of a `config.json`, or None if it is of another family.

        A model that was trained as another class is of a family of classifiers all the same, which then says so.
        """
        trained = config.get("architectures")
        names = [name for name in self.classes if self.model_type(name) == config.get("model_type")]
        own = [name for name in names if isinstance(trained, list) and self.classes[name] in trained]
        others = [name for name in names if name not in self.types and not (self.zero_shot and trained)]
        return next(iter((*own, *others)), None)


def family_of_kind(kind: Kind) -> Family:
    """Return the family."""

    def describe(name: str, options: Mapping[str, object]) -> Described:
        given = dict(options)
        tokenizer = given.pop("tokenizer", None) if "text" in kind.towers else None
        config = checked(kind.model_type(name), _unfolded(kind, given))
        return _described(kind, name, config, tokenizer=None if tokenizer is None else Path(str(tokenizer)))

    def build(
        architecture: Architecture, mask: Mapping[str, TowerKeep], state: Mapping[str, torch.Tensor] | None
    ) -> Model:
        from hydractl.families.dismantling import cut_heads, fill
        from hydractl.families.zero_shot import Contrast

        library = blank(kind.classes[architecture.name], architecture)
        cut_heads(library, kind.towers, architecture, mask)
        fill(library, None if state is None else {k: v for k, v in state.items() if k != CLASS_EMBEDDINGS})
        model = kind.wrap(library, {tower: keep.keep for tower, keep in mask.items()}).eval()
        if state is not None and CLASS_EMBEDDINGS in state and isinstance(model.answer, Contrast):
            model.answer.settle(
                state[CLASS_EMBEDDINGS].detach()
            )  # never a parameter: classes are not trained
        return model

    return Family(
        name=kind.name,
        library=LIBRARY,
        covers=kind.covers,
        refuses=kind.refuses,
        towers=kind.towers,
        matches=lambda config: kind.name_of(config) is not None,
        claims=lambda name: name in kind.classes,
        read_config=lambda config, folder: _read_config(kind, config, folder),
        describe=describe,
        build=build,
        initialise=lambda architecture, seed: random_state(
            kind.classes[architecture.name], architecture, seed
        ),
        adopt=lambda folder, architecture: adopted_state(
            kind.classes[architecture.name], folder, architecture
        ),
        on_disk=kind.on_disk,
        scalars=kind.scalars,
    )


def _read_config(kind: Kind, config: Mapping[str, object], folder: Path) -> Described:
    name = kind.name_of(config) or str(config["model_type"])
    wanted = kind.classes[name]
    trained = config.get("architectures") or [wanted]
    if isinstance(trained, list) and wanted not in trained:
        raise UnsupportedModelError(
            f"{folder}: is a {trained[0]}, which does not classify", hint=f"hydractl reads {wanted}"
        )
    made = configured(kind.model_type(name), {k: v for k, v in config.items() if k != "model_type"})
    return _described(kind, name, made, folder=folder, tokenizer=folder)


def _unfolded(kind: Kind, options: Mapping[str, object]) -> dict[str, object]:
    """Return options with those of a configuration within, `vision.x=1`, in their place."""
    found = dict(options)
    for tower, nested in kind.nested.items():
        given, prefix = found.pop(nested, None), f"{tower}."
        own = {key.removeprefix(prefix): found.pop(key) for key in list(found) if key.startswith(prefix)}
        found[nested] = {**(given if isinstance(given, dict) else {}), **own}
    return found


def _kept(kind: Kind, config: Any) -> dict[str, object]:  # noqa: ANN401 - untyped
    """Return what of a configuration makes the architecture."""
    whole: dict[str, Any] = config.to_dict()
    found = {k: v for k, v in whole.items() if k not in {*NOT_ARCHITECTURE, "model_type"}}
    if kind.nested:
        found = {k: v for k, v in found.items() if not k.endswith("_config")}
    for nested in kind.nested.values():
        found[nested] = {k: v for k, v in whole[nested].items() if k not in NOT_ARCHITECTURE}
    return found if kind.zero_shot else {**found, "num_labels": config.num_labels}


def _described(
    kind: Kind,
    name: str,
    config: Any,  # noqa: ANN401 - as above
    *,
    folder: Path | None = None,
    tokenizer: Path | None = None,
) -> Described:
    parts = {tower: getattr(config, kind.nested[tower]) if kind.nested else config for tower in kind.towers}
    _check(kind, config, tuple(parts.values()))
    labels = () if kind.zero_shot else tuple(str(config.id2label[i]) for i in range(config.num_labels))
    named = any(label != f"LABEL_{i}" for i, label in enumerate(labels))
    texts = None if kind.texts is None else kind.texts(parts["text"], tokenizer)
    if texts is not None:
        _check_padding(kind, texts, str(tokenizer))
        texts = _padded(texts, kind.padding, folder)
    images = None if kind.images is None else kind.images(parts["vision"], folder)
    return Described(
        architecture=Architecture(
            library=LIBRARY,
            name=name,
            family=kind.name,
            config=plain(_kept(kind, config)),
            towers={tower: heads_of(own) for tower, own in parts.items()},
            num_classes=len(labels),
        ),
        preprocess=cast("Preprocess | Tokenization", images or texts),
        labels=labels if named else (),
        prompting=Prompting(tokenization=texts) if texts and kind.zero_shot else None,
    )


def _check(kind: Kind, config: Any, parts: Sequence[Any]) -> None:  # noqa: ANN401 - as above
    """Refuse what no heads can be cut in, or what is no classifier."""
    if reason := kind.refusal(config):
        raise UnsupportedModelError(f"`{config.model_type}` is not supported here: {reason}")
    classless = not kind.zero_shot and config.num_labels < 1
    if classless or any(own.num_hidden_layers < 1 for own in parts):
        lacks = "no classifier; give `num_labels`" if classless else "no layers"
        raise UnsupportedModelError(f"`{config.model_type}` is not supported here: it has {lacks}")
    for own in parts:
        heads = own.num_attention_heads
        if heads < 1 or (not getattr(own, "head_dim", None) and own.hidden_size % heads):
            raise UnsupportedModelError(
                f"`{config.model_type}` with a width of {own.hidden_size} cannot have {heads} heads",
                hint="the width must be a multiple of the number of heads",
            )


def _check_padding(kind: Kind, how: Tokenization, where: str) -> None:
    """Refuse texts padded on the left where what then stands first comes out otherwise than in the library."""
    if how.padding_side == "left" and not kind.pads_left:
        raise UnsupportedModelError(
            f"{where}: its tokenizer pads texts on the left, which is not supported for {kind.name}",
            hint='write `"padding_side": "right"` in tokenizer_config.json, if the model was trained so',
        )


def _padded(how: Tokenization, padding: str, folder: Path | None) -> Tokenization:
    """Return how texts are padded, and whether the model is told where; one that always sees as many tokens seldom is."""
    told = padding == "longest" or (folder is not None and _tells_padding(folder))
    return how.model_copy(update={"padding": padding, "names": how.names if told else ()})


def _tells_padding(folder: Path) -> bool:
    path = folder / "tokenizer_config.json"
    says = read_object(path) if path.is_file() else {}
    return "attention_mask" in says.get("model_input_names", ("attention_mask",))
