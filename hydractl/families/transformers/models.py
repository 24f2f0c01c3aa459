"""What all families of Hugging Face transformers have in common: their configurations.

A family of this library states its model types, their classes, where heads lie, and how the model is taken apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hydractl.errors import UnsupportedModelError
from hydractl.families.base import Described, Family
from hydractl.families.transformers.library import adopted_state, blank, checked, configured, random_state
from hydractl.families.transformers.tokenizers import read_tokenizer
from hydractl.jsonfile import plain
from hydractl.manifest.header import Architecture, Tokenization
from hydractl.manifest.heads import TowerHeads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

    from hydractl.families.base import TowerLayout
    from hydractl.families.dismantling import Kept
    from hydractl.families.tower import Model
    from hydractl.manifest.header import Preprocess
    from hydractl.manifest.heads import TowerKeep

LIBRARY = "transformers"
NOT_ARCHITECTURE = ("id2label", "label2id", "transformers_version", "_name_or_path", "architectures", "dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The models of transformers that one family reads.

    Attributes:
        name: The family's.
        covers: See `Family`.
        refuses: See `Family`.
        classes: For each architecture name the class with a classifier. The name is a `model_type`, or, for another class
            of a type, that class's own.
        types: The `model_type` of names that are none.
        nested: Where a configuration holds several, which of them tells of the tower.
        tower: `text` or `vision`.
        layout: Where heads and MLPs lie in memory; names on disk may differ.
        wrap: Make the model out of the library's modules, given each layer's kept heads.
        preprocess: What stands beside the configuration, or None for a model without a folder.
        refusal: Why heads cannot be cut in a model with this configuration, or None.
        pads_left: Whether texts may be padded on the left: whether a token that pads, where the answer is read off it then,
            comes out as the library's does.
        on_disk: See `Family`.
    """

    name: str
    covers: str
    refuses: str = ""
    classes: Mapping[str, str]
    tower: str
    layout: TowerLayout
    wrap: Callable[[Any, Kept], Model]
    preprocess: Callable[[Any, Path | None], Preprocess | Tokenization]
    refusal: Callable[[Any], str | None] = lambda _: None
    pads_left: bool = True
    types: Mapping[str, str] = field(default_factory=dict)
    nested: str | None = None
    on_disk: tuple[tuple[str, str], ...] = ()

    def model_type(self, name: str) -> str:
        """Return the `model_type` of an architecture name."""
        return self.types.get(name, name)

    def name_of(self, config: Mapping[str, object]) -> str | None:
        """Return the architecture name of a `config.json`, or None if it is of another family."""
        trained = config.get("architectures")
        names = [name for name in self.classes if self.model_type(name) == config.get("model_type")]
        own = (name for name in names if isinstance(trained, list) and self.classes[name] in trained)
        return next(own, next((name for name in names if name not in self.types), None))


def family_of_kind(kind: Kind) -> Family:
    """Return the family."""

    def describe(name: str, options: Mapping[str, object]) -> Described:
        given = dict(options)
        tokenizer = given.pop("tokenizer", None) if kind.tower == "text" else None
        config = checked(kind.model_type(name), _unfolded(kind, given))
        found = _described(kind, name, config, None)
        if tokenizer is None:
            return found
        how = read_tokenizer(_path(tokenizer), config, max_length=_length_of(found.preprocess))
        _check_padding(kind, how, str(tokenizer))
        return Described(architecture=found.architecture, preprocess=how)

    def build(
        architecture: Architecture, mask: Mapping[str, TowerKeep], state: Mapping[str, torch.Tensor] | None
    ) -> Model:
        from hydractl.families.dismantling import cut_heads, fill

        library = blank(kind.classes[architecture.name], architecture)
        cut_heads(library, {kind.tower: kind.layout}, architecture, mask)
        fill(library, state)
        return kind.wrap(library, mask[kind.tower].keep).eval()

    return Family(
        name=kind.name,
        library=LIBRARY,
        covers=kind.covers,
        refuses=kind.refuses,
        towers={kind.tower: kind.layout},
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
    )


def _check_padding(kind: Kind, how: Preprocess | Tokenization, where: str) -> None:
    """Refuse texts padded on the left where what then stands first comes out otherwise than in the library."""
    if isinstance(how, Tokenization) and how.padding_side == "left" and not kind.pads_left:
        raise UnsupportedModelError(
            f"{where}: its tokenizer pads texts on the left, which is not supported for {kind.name}",
            hint='write `"padding_side": "right"` in tokenizer_config.json, if the model was trained so',
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
    found = _described(kind, name, made, folder)
    _check_padding(kind, found.preprocess, str(folder))
    return found


def _unfolded(kind: Kind, options: Mapping[str, object]) -> dict[str, object]:
    """Return options with those of a configuration within, `vision.x=1`, in their place."""
    prefix = f"{kind.tower}."
    if kind.nested is None:
        return dict(options)
    given = options.get(kind.nested)
    own = {k.removeprefix(prefix): v for k, v in options.items() if k.startswith(prefix)}
    return {k: v for k, v in options.items() if not k.startswith(prefix)} | {
        kind.nested: {**(given if isinstance(given, dict) else {}), **own}
    }


def _kept(kind: Kind, config: Any) -> dict[str, object]:  # noqa: ANN401 - as above
    """Return what of a configuration makes the architecture."""
    whole: dict[str, Any] = config.to_dict()
    found = {k: v for k, v in whole.items() if k not in {*NOT_ARCHITECTURE, "model_type"}}
    if kind.nested is not None:
        found = {k: v for k, v in found.items() if not k.endswith("_config")}
        found[kind.nested] = {k: v for k, v in whole[kind.nested].items() if k not in NOT_ARCHITECTURE}
    return {**found, "num_labels": config.num_labels}


def _described(kind: Kind, name: str, config: Any, folder: Path | None) -> Described:  # noqa: ANN401 - untyped
    if reason := kind.refusal(config):
        raise UnsupportedModelError(f"`{config.model_type}` is not supported here: {reason}")
    own = config if kind.nested is None else getattr(config, kind.nested)
    heads = own.num_attention_heads
    if config.num_labels < 1 or own.num_hidden_layers < 1:
        lacks = "no classifier; give `num_labels`" if config.num_labels < 1 else "no layers"
        raise UnsupportedModelError(f"`{config.model_type}` is not supported here: it has {lacks}")
    if heads < 1 or (not getattr(own, "head_dim", None) and own.hidden_size % heads):
        raise UnsupportedModelError(
            f"`{config.model_type}` with a width of {own.hidden_size} cannot have {heads} heads",
            hint="the width must be a multiple of the number of heads",
        )
    labels = tuple(str(config.id2label[i]) for i in range(config.num_labels))
    named = any(label != f"LABEL_{i}" for i, label in enumerate(labels))
    architecture = Architecture(
        library=LIBRARY,
        name=name,
        family=kind.name,
        config=plain(_kept(kind, config)),
        towers={
            kind.tower: TowerHeads(
                layers=own.num_hidden_layers,
                num_heads=heads,
                head_dim=getattr(own, "head_dim", None) or own.hidden_size // heads,
            )
        },
        num_classes=config.num_labels,
    )
    return Described(
        architecture=architecture, preprocess=kind.preprocess(config, folder), labels=labels if named else ()
    )


def _path(value: object) -> Path:
    from pathlib import Path

    return Path(str(value))


def _length_of(how: Preprocess | Tokenization) -> int:
    return how.max_length if isinstance(how, Tokenization) else 0
