"""One temperature for all labels of a multi-label model, or one for each: which has the lower NLL on new data?

Simulated, so that the truth is known: true log odds of each of 10 labels are normal with deviation 2, and a model says them times an
overconfidence of 1.5 that differs among labels: its logarithm is normal with a deviation of `spread`. Both kinds of temperature are
fitted by hydractl's own function, with its prior, on the same held-out samples. Printed is the mean, over draws of labels and samples,
of the NLL with a temperature for each label less that with a common one, in thousandths of a nat, with its 95 % interval (Student):
below 0 a temperature for each is better.

    python benchmarks/label_temperatures.py [--draws 60]
"""

from __future__ import annotations

import argparse
import statistics
import sys

import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch calls it
from intervals import half_interval
from torch import Tensor

from hydractl.metrics.per_sample import Responses
from hydractl.metrics.temperature import fit_temperature

LABELS, NEW, OVERCONFIDENCE = 10, 20_000, 1.5
SAMPLES, SPREADS = (100, 300, 1000), (0.0, 0.1, 0.2, 0.4, 0.6)


def drawn(count: int, factors: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the log odds (N, Q) that a model says, and which labels apply (N, Q)."""
    true = 2 * torch.randn(count, LABELS, generator=generator, dtype=torch.float64)
    applies = torch.rand(count, LABELS, generator=generator, dtype=torch.float64) < true.sigmoid()
    return true * factors, applies


def fitted(log_odds: Tensor, applies: Tensor) -> float:
    """Return the temperature of questions (N, Q)."""
    logits = F.pad(log_odds[None, ..., None], (1, 0))
    return fit_temperature(Responses(logits.log_softmax(-1), None), applies.long()).temperature


def gain(samples: int, spread: float, seed: int) -> float:
    """Return the NLL with a temperature for each label less that with a common one, on new samples."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(LABELS, generator=generator, dtype=torch.float64)
    factors = OVERCONFIDENCE * (spread * noise).exp()
    held, new = (drawn(count, factors, generator) for count in (samples, NEW))
    each = [fitted(held[0][:, [q]], held[1][:, [q]]) for q in range(LABELS)]
    nll = [
        float(
            F.binary_cross_entropy_with_logits(new[0] / torch.tensor(t, dtype=torch.float64), new[1].double())
        )
        for t in (each, fitted(*held))
    ]
    return nll[0] - nll[1]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=60)
    draws = parser.parse_args().draws
    print("| samples | " + " | ".join(f"spread {spread}" for spread in SPREADS) + " |")
    print("|---:|" + "---:|" * len(SPREADS))
    for samples in SAMPLES:
        cells = []
        for spread in SPREADS:
            gains = [1000 * gain(samples, spread, seed) for seed in range(draws)]
            cells.append(f"{statistics.fmean(gains):+.2f} ± {half_interval(gains):.2f}")
        print(f"| {samples} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
