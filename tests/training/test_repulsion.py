"""Repulsion: kernel density of members on images with permuted patches."""

from __future__ import annotations

import math

import pytest
import torch

from hydractl.training.losses import PATCH_GRID_SIDE, Repulsion, agreement, with_permuted_patches

GENERATOR = torch.Generator().manual_seed(0)
PROBS = (3 * torch.randn(4, 5, 7, generator=GENERATOR)).softmax(-1)
IMAGES = torch.rand(6, 2, 10, 13, generator=GENERATOR)


def test_agreement_is_the_log_density_of_members():
    """Equation 8 in float64: a Gaussian kernel whose bandwidth is the median of the squared distances."""
    probs = PROBS.double()
    distances = [
        sum((p - q) ** 2 for p, q in zip(probs[i, b], probs[j, b], strict=True)).item()
        for b in range(5) for i in range(4) for j in range(4) if i != j
    ]  # fmt: skip
    # `torch.median` returns the lower of two middle values
    bandwidth = sorted(distances)[(len(distances) - 1) // 2]
    densities = [
        math.log(sum(math.exp(-((probs[i, b] - probs[j, b]) ** 2).sum().item() / bandwidth) for j in range(4)))
        for b in range(5) for i in range(4)
    ]  # fmt: skip

    assert agreement(PROBS).item() == pytest.approx(sum(densities) / len(densities), abs=1e-5)


def test_agreement_of_equal_members_is_the_highest():
    assert agreement(PROBS[:1].expand(4, -1, -1)).item() == pytest.approx(math.log(4))
    assert 0 < agreement(PROBS).item() < math.log(4)


def test_a_step_down_the_gradient_moves_members_apart():
    logits = (PROBS + 1e-3).log().requires_grad_()
    agreement(logits.softmax(-1)).backward()

    def distance(x):
        return torch.cdist(*(x.softmax(-1).transpose(0, 1),) * 2).mean()

    assert distance(logits - logits.grad) > distance(logits)


def test_patches_are_permuted_within_each_image():
    order = torch.rand(6, PATCH_GRID_SIDE**2, generator=GENERATOR).argsort(-1)
    found = with_permuted_patches(IMAGES, order)

    height, width = 10 // PATCH_GRID_SIDE, 13 // PATCH_GRID_SIDE
    for image, permuted, places in zip(IMAGES, found, order, strict=True):
        for place, source in enumerate(places.tolist()):
            (y, x), (v, u) = divmod(place, PATCH_GRID_SIDE), divmod(source, PATCH_GRID_SIDE)
            torch.testing.assert_close(
                permuted[:, y * height : (y + 1) * height, x * width : (x + 1) * width],
                image[:, v * height : (v + 1) * height, u * width : (u + 1) * width],
            )
    assert torch.equal(found[:, :, PATCH_GRID_SIDE * height :], IMAGES[:, :, PATCH_GRID_SIDE * height :])
    assert torch.equal(found[..., PATCH_GRID_SIDE * width :], IMAGES[..., PATCH_GRID_SIDE * width :])


def test_permutations_hang_on_seed_step_and_row_alone():
    seen = []

    def model(images):
        seen.append(images)
        return torch.nn.functional.pad(images.flatten(1)[None, :, :3], (0, 0, 0, 0, 0, 1))

    def permuted(rows, *, seed=3, step=5):
        Repulsion(0.1, seed)(model, IMAGES[rows.start : rows.stop], step=step, rows=rows, total=6)
        return seen.pop()

    whole = permuted(range(6))
    assert torch.equal(torch.cat([permuted(range(4)), permuted(range(4, 6))]), whole)
    assert not torch.equal(permuted(range(6), step=6), whole)
    assert not torch.equal(permuted(range(6), seed=4), whole)
    assert not torch.equal(whole, IMAGES)
