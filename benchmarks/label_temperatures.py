"""One temperature for all labels of a multi-label model, or one for each: which has the lower NLL on new data?

Simulated, so that the truth is known: true log odds of each of 10 labels are normal with deviation 2, and a model says them times an
overconfidence of 1.5 that differs among labels: its logarithm is normal with a deviation of `spread`. All temperatures are fitted
by hydractl's own functions on the same held-out samples: a common one, one for each label apart, and one for each label that is
drawn to the common one, as `--temperature DATA` has them. Printed is the mean, over draws of labels and samples, of the NLL with a
temperature for each label less that with the common one, in thousandths of a nat, with its 95 % interval (Student): below 0 a
temperature for each is better.

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
from hydractl.metrics.temperature import fit_label_temperatures, fit_temperature

LABELS, NEW, OVERCONFIDENCE = 10, 20_000, 1.5
SAMPLES, SPREADS = (100, 300, 1000), (0.0, 0.1, 0.2, 0.4, 0.6)


def drawn(count: int, factors: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the log odds (N, Q) that a model says, and which labels apply (N, Q)."""
    true = 2 * torch.randn(count, LABELS, generator=generator, dtype=torch.float64)
    applies = torch.rand(count, LABELS, generator=generator, dtype=torch.float64) < true.sigmoid()
    return true * factors, applies


def responses(log_odds: Tensor) -> Responses:
    """Return what a model says whose log odds are (N, Q)."""
    return Responses(F.pad(log_odds[None, ..., None], (1, 0)).log_softmax(-1), None)


def gains(samples: int, spread: float, seed: int) -> tuple[float, float]:
    """Return the NLL with temperatures of labels less that with a common one, on new samples: fitted apart, and drawn to it."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(LABELS, generator=generator, dtype=torch.float64)
    factors = OVERCONFIDENCE * (spread * noise).exp()
    held, new = (drawn(count, factors, generator) for count in (samples, NEW))
    log_odds, applies = held[0], held[1].long()
    apart = [fit_temperature(responses(log_odds[:, [q]]), applies[:, [q]]).temperature for q in range(LABELS)]
    common = fit_temperature(responses(log_odds), applies).temperature
    drawn_to_it = fit_label_temperatures(responses(log_odds), applies, common)
    one, two, three = (
        1000
        * float(
            F.binary_cross_entropy_with_logits(new[0] / torch.tensor(t, dtype=torch.float64), new[1].double())
        )
        for t in (apart, drawn_to_it, common)
    )
    return one - three, two - three


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=60)
    draws = parser.parse_args().draws
    print("| samples | | " + " | ".join(f"spread {spread}" for spread in SPREADS) + " |")
    print("|---:|---|" + "---:|" * len(SPREADS))
    for samples in SAMPLES:
        found = [
            zip(*(gains(samples, spread, seed) for seed in range(draws)), strict=True) for spread in SPREADS
        ]
        for name, of_spreads in zip(("apart", "drawn to it"), zip(*found, strict=True), strict=True):
            cells = [f"{statistics.fmean(each):+.2f} ± {half_interval(each):.2f}" for each in of_spreads]
            print(f"| {samples} | {name} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
