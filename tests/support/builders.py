"""Models as header and state dict, in memory and in files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import torch

import support.trunks  # noqa: F401 - registers architectures
from hydractl.checkpoint import spec_of, write_tensors
from hydractl.families.open_model import check_tensors
from hydractl.families.registry import FAMILIES, expected_specs, with_problem_type
from hydractl.families.tower import probe_inputs
from hydractl.fusion.plan import prune_tensor, zero_dropped
from hydractl.heads.masks import full_mask
from hydractl.manifest.head_mask import HeadImportance, HeadMask, TowerKeep
from hydractl.manifest.header import Header, Kind
from hydractl.model_inputs import WORDS, map_inputs
from support.variants import LIBRARY, PLAIN, Variant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import nn

    from hydractl.checkpoint import TensorSpec
    from hydractl.families.base import Family
    from hydractl.families.tower import Model
    from hydractl.model_inputs import Inputs

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def over_classes(logits: torch.Tensor, *, multi_label: bool = False) -> torch.Tensor:
    """Add the implicit class to logits of a single output.

    Args:
        logits: Shape (..., C).
        multi_label: Whether the outputs are log odds of separate labels.

    Returns:
        For labels, shape (..., C, 2) with a zero logit for absence. For C = 1, shape (..., 2). Otherwise the
        logits unchanged.
    """
    if multi_label:
        return torch.stack([torch.zeros_like(logits), logits], -1)
    return torch.cat([torch.zeros_like(logits), logits], -1) if logits.shape[-1] == 1 else logits


def sha(text: str) -> str:
    """Return a digest of a text in the format of headers."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


@dataclass(frozen=True)
class Sample:
    """A base or a member as header and state dict."""

    header: Header
    state: dict[str, torch.Tensor]

    @property
    def family(self) -> Family:
        return FAMILIES[self.header.architecture.family]

    def model(self, dtype: torch.dtype = torch.float32) -> Model:
        """Build hydractl's model."""
        check_tensors(
            "sample", {k: spec_of(v) for k, v in self.state.items()}, specs(self.header.to_metadata())
        )
        state = {k: v.to(dtype) if v.is_floating_point() else v for k, v in self.state.items()}
        return self.family.build(self.header.architecture, self.header.masks[0], state)

    def library(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """Build the library's model with the same weights. Only for a base."""
        architecture = self.header.architecture
        by_word = {"problem_type": architecture.problem_type} if architecture.task.by_word else {}
        pooling = {} if architecture.pooling is None else {"pooling": architecture.pooling}
        said = pooling | by_word
        model = LIBRARY[architecture.library](architecture.name, architecture.config | said)
        model.load_state_dict(self.state, strict=True)
        return model.to(dtype).eval()

    def inputs(self, *, batch: int = 2, seed: int = 0, dtype: torch.dtype = torch.float32) -> Inputs:
        inputs = probe_inputs(self.header, batch=batch, seed=seed)
        if self.header.architecture.task.by_word:
            inputs = {**inputs, WORDS: word_starts(inputs["attention_mask"])}
        return map_inputs(lambda x: x.to(dtype) if x.is_floating_point() else x, inputs)

    def pruned(self, *keep: Sequence[int]) -> Sample:
        """Return a member with the given heads of each layer."""
        mask = towers_with(self.header, *keep)
        state = {
            n: prune_tensor(self.family, self.header.architecture, mask, n, t) for n, t in self.state.items()
        }
        update = {"kind": Kind.MEMBER, "masks": (mask,), "base": sha("base")}
        return Sample(self.header.model_copy(update=update), state)

    def masked(self, *keep: Sequence[int]) -> Sample:
        """Return the base with zeroed output-projection columns for all other heads."""
        mask = towers_with(self.header, *keep)
        return replace(self, state=zero_dropped(self.family, self.header.architecture, mask, self.state))

    def tuned(self, seed: int, *, only: Callable[[str], bool] = lambda _: True) -> Sample:
        """Return the sample with noise in the tensors accepted by `only`, like after fine-tuning."""
        noisy = perturbed(self.state, seed=seed)
        state = {n: noisy[n] if only(n) else t for n, t in self.state.items()}
        return replace(self, state=state)

    def cast(self, dtype: torch.dtype) -> Sample:
        return replace(
            self, state={k: v.to(dtype) if v.is_floating_point() else v for k, v in self.state.items()}
        )

    def save(self, path: Path) -> Path:
        """Write a checkpoint and return `path`."""
        with path.open("wb") as file:
            write_tensors(file, self.state, header=self.header)
        return path


def word_starts(mask: torch.Tensor) -> torch.Tensor:
    """Return every second token of each text as a word start, and -1 after the end. Shape (B, Q)."""
    there = mask[:, ::2].bool()
    return torch.arange(0, mask.shape[1], 2).expand(there.shape).masked_fill(~there, -1)


@cache
def specs(header: str) -> dict[str, TensorSpec]:
    """Return `expected_specs` for a header. Cached because each call is as slow as building a model."""
    read = Header.model_validate_json(header)
    return expected_specs(FAMILIES[read.architecture.family], read)


def perturbed(state: Mapping[str, torch.Tensor], *, seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Return a state dict with noise in every weight and buffer: no value is exactly 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if not tensor.is_floating_point() or not tensor.numel():
            found[name] = tensor.clone()
            continue
        spread = 0.2 if tensor.ndim < 2 else 0.5 / max(tensor[0].numel(), 1) ** 0.5
        noise = scale * spread * torch.randn(tensor.shape, generator=generator)
        found[name] = (tensor + (noise.abs() if name.endswith("running_var") else noise)).to(tensor.dtype)
    return found


@cache
def base(variant: Variant = PLAIN, *, seed: int = 0) -> Sample:
    """Return a base with perturbed weights. The result is shared between tests and must not be changed."""
    family = FAMILIES[variant.family]
    options = {key: value for key, value in variant.options.items() if key != "problem_type"}
    described = with_problem_type(family.describe(variant.arch, options), variant.options)
    header = Header(
        kind=Kind.BASE,
        architecture=described.architecture,
        masks=(full_mask(described.architecture.towers),),
        preprocess=described.preprocess,
        prompting=described.prompting,
    )
    # The first caller may be in inference mode, but later tests need gradients.
    with torch.inference_mode(mode=False):
        state = perturbed(family.initialise(described.architecture, seed), seed=seed + 100)
    return Sample(header, state)


def towers_with(header: Header, *keep: Sequence[int]) -> dict[str, TowerKeep]:
    """Return the mask with these heads of each layer, for every tower."""
    return {
        name: TowerKeep(num_heads=tower.num_heads, keep=tuple(tuple(k) for k in keep))
        for name, tower in header.architecture.towers.items()
    }


def mask_file(path: Path, header: Header, *keep: Sequence[int]) -> Path:
    """Write a head mask without provenance."""
    path.write_text(HeadMask(towers=towers_with(header, *keep)).to_json())
    return path


def scores_file(path: Path, table: Sequence[Sequence[float]], **changes: object) -> Path:
    """Write a file of head importance for a model with the tower `vision`."""
    document = scores(table)
    path.write_text(document.model_copy(update=changes).to_json())
    return path


def scores(table: Sequence[Sequence[float]]) -> HeadImportance:
    """Return head importance for a model with the tower `vision`."""
    raw = {
        "schema": "hydractl.scores/1", "method": "random", "objective": None, "options": {},
        "model": {"reference": "base.st", "sha256": sha("base"), "count": None},
        "architecture": PLAIN.arch, "data": {}, "tool": "hydractl 0.1.0",
        "towers": {"vision": {"scores": tuple(map(tuple, table))}},
    }  # fmt: skip
    return HeadImportance.model_validate(raw)
