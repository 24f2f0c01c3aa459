"""Architectures of the narrow models in a Packed Ensemble (Laurent et al. 2023), by name and options."""

from __future__ import annotations

from fractions import Fraction

from hydractl.errors import UnsupportedModelError, UsageError
from hydractl.families.registry import describe_architecture, family_for_name
from hydractl.model_source import parse_arch, split_options
from hydractl.research.methods.options import Packed

SIZES = (("hidden_size", "intermediate_size"), ("dim", "hidden_dim"))
"""Option names of stream width and MLP width in configurations. Architectures of timm have `embed_dim` and a
ratio."""
EMBED = "embed_dim"


def narrow_reference(reference: str, method: Packed) -> str:
    """Return the `arch:` reference of a member, for example `arch:vit_base_patch16_224::embed_dim=516`.

    A member has the same layers and heads. The widths of its stream and MLP are `alpha / members` times the
    given widths.

    Args:
        reference: `arch:` reference of the given architecture.
        method: Number of members and `alpha`.

    Raises:
        UsageError: If the width is not divisible by the heads, the architecture has several towers, or its
            width cannot be set.
    """
    text = reference.removeprefix("arch:")
    name, options = parse_arch(text)
    family = family_for_name(name)
    try:
        architecture = family.describe(name, options).architecture
    except (
        UnsupportedModelError
    ):  # The given width may have no whole heads: 774 in Hydra Ensembles is for 3 members of 12 heads.
        others = {
            key: value
            for key, value in options.items()
            if not any(key in keys for keys in (*SIZES, (EMBED,)))
        }
        architecture = describe_architecture(name, others).architecture
    if len(architecture.towers) > 1:
        raise UsageError(f"`--method packed`: {name} has more than one tower and no classifier to train")
    (tower,) = architecture.towers.values()
    share = Fraction(method.alpha).limit_denominator(1000) / method.members
    keys = next((keys for keys in SIZES if {*keys} <= architecture.config.keys()), (EMBED,))
    standing = (
        architecture.config
        | options
        | ({} if EMBED in options else {EMBED: tower.num_heads * tower.head_dim})
    )
    sizes = {key: size for key in keys if isinstance(size := standing[key], int)}
    width = sizes[keys[0]]
    narrow = {key: size * share for key, size in sizes.items()}
    formula = f"{method.alpha:g} x {width} / {method.members}"
    if any(size.denominator > 1 for size in narrow.values()) or (width * share) % tower.num_heads:
        step = (tower.num_heads / share).numerator
        raise UsageError(
            f"`--method packed`: the width of a member would be {formula}, which is not divisible by "
            f"{tower.num_heads} heads",
            hint=f"use a width that is a multiple of {step}: `arch:{name}::{keys[0]}={-(-width // step) * step}`",
        )
    others_given = [
        item
        for item in split_options(text.partition("::")[2])
        if item and item.partition("=")[0] not in narrow
    ]
    member = f"{name}::{','.join([*others_given, *(f'{key}={size}' for key, size in narrow.items())])}"
    (narrow_tower,) = family.describe(*parse_arch(member)).architecture.towers.values()
    if (
        narrow_tower.num_heads != tower.num_heads
        or narrow_tower.num_heads * narrow_tower.head_dim != width * share
    ):
        raise UsageError(f"`--method packed`: {name} cannot have a width of {formula}")
    return f"arch:{member}"
