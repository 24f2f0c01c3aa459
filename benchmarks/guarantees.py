"""Simulate the guarantees of `eval --threshold-for`: error rates and coverage, with the earlier bound.

A population is a large set of inputs, each with an OOD score and a probability of a wrong answer. The risk
below any threshold is therefore known exactly. A trial draws n inputs independently, finds a threshold as
`eval` does, and measures the threshold on the whole population. All populations were written down before the
first run, and all are reported:

    calibrated      confidence equals accuracy; 91 % accuracy
    hard            the same with 77 % accuracy
    noisy           92 % accuracy; 2 % of all labels are wrong, at any confidence
    unrelated       4 % wrong answers at any score
    blunders        the most confident tenth has more errors than the rest: the risk does not rise with the
        score
    equal scores    `calibrated`, with probabilities rounded to one decimal
    digits          the demo's vision transformer, trained here, on its test digits; the scores are `msp`

`Bonferroni` is the earlier method of `errors-among-accepted`: ranks 5 % apart share `delta` equally.

    python benchmarks/guarantees.py [--trials 2000] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from demo_tasks import DIGITS
from safetensors.torch import load_file
from scipy.stats import beta, binom, norm

from hydractl.cli.app import main as hydractl
from hydractl.metrics.selective import NOTHING, Selection, accepted_and_wrong, errors_among_accepted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIZES = (100, 400, 1600)
RISKS = (0.01, 0.05, 0.1)
DELTA = 0.05
INPUTS = 100_000
"""Inputs of a simulated population. Chosen by hand: rounding of shares to 1e-5 is far below the risks in
`RISKS`. Doubling doubles the time of sorting and changes no verdict."""
LEVEL = 0.999
"""Confidence level of the intervals behind the verdicts. Each run has 189 verdicts, so at 0.999 about 0.1 of
them fail by chance. With twice the error probability (0.998), about 0.2 fail by chance."""
HEAD = (
    "| n | risk | Bonferroni: reached | coverage | broken | errors-among-accepted: reached | coverage | broken | best | "
    "accepted-and-wrong: reached | coverage | wrong | best |"
)
BONFERRONI, SEQUENCE, CONFORMAL = "Bonferroni", "errors-among-accepted", "accepted-and-wrong"
LEGEND = (
    "All columns are in percent. Reached: share of trials with a threshold. Coverage: mean share of accepted inputs, 0 without a threshold. Best: "
    "largest coverage with full knowledge of the population. Broken: share of trials with an error rate among accepted inputs above the risk; "
    f"{SEQUENCE} promises at most {100 * DELTA:g} %. Wrong: mean share of inputs with an accepted wrong answer; {CONFORMAL} promises at most the risk."
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Population:
    """Inputs with equal probability of being drawn, sorted by score.

    Attributes:
        name: Heading in tables.
        scores: Shape (P,), ascending.
        wrong: Shape (P,), probability of a wrong answer for each input.
        before: Shape (P + 1,), cumulative sum of `wrong`, starting with 0.
    """

    name: str
    scores: np.ndarray
    wrong: np.ndarray
    before: np.ndarray

    @classmethod
    def of(cls, name: str, scores: np.ndarray, wrong: np.ndarray) -> Population:
        """Build a population from unsorted scores and error probabilities."""
        order = np.argsort(scores, kind="stable")
        return cls(
            name=name,
            scores=scores[order],
            wrong=wrong[order],
            before=np.concatenate([[0.0], np.cumsum(wrong[order])]),
        )

    def below(self, threshold: float | None) -> tuple[float, float]:
        """Measure a threshold on the population.

        Returns:
            Share of accepted inputs (score below the threshold), and share of inputs that are accepted and
            wrong. Both are 0 if the threshold is None.
        """
        if threshold is None:
            return 0.0, 0.0
        accepted = int(np.searchsorted(self.scores, threshold))
        return accepted / len(self.scores), float(self.before[accepted]) / len(self.scores)

    def best(self, risk: float) -> tuple[float, float]:
        """Return the largest possible share of accepted inputs under each guarantee.

        Returns:
            Largest share for errors among accepted inputs, and for accepted and wrong inputs.
        """
        places = np.unique(np.searchsorted(self.scores, self.scores))
        counts = np.append(places[1:], len(self.scores))
        wrong = self.before[counts]
        shares = counts / len(self.scores)
        return (
            float(shares[wrong <= risk * counts].max(initial=0.0)),
            float(shares[wrong <= risk * len(self.scores)].max(initial=0.0)),
        )

    def draw(self, count: int, generator: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw inputs independently, with replacement.

        Returns:
            Scores and correctness of the answers, both of shape (count,).
        """
        places = generator.integers(len(self.scores), size=count)
        hits = generator.random(count) >= self.wrong[places]
        return torch.from_numpy(self.scores[places]), torch.from_numpy(hits)


def synthetic() -> list[Population]:
    """Return the populations with known error probabilities."""
    uniform = (np.arange(INPUTS) + 0.5) / INPUTS

    def probability(mean: float, spread: float) -> np.ndarray:
        logits = mean + spread * norm.ppf(uniform)
        sure = 1 / (1 + np.exp(-logits))
        return np.asarray(np.maximum(sure, 1 - sure))

    calibrated, hard = probability(3.5, 2.5), probability(1.2, 1.5)
    rounded = np.round(calibrated, 1)
    noise = 0.02
    return [
        Population.of("calibrated", -calibrated, 1 - calibrated),
        Population.of("hard", -hard, 1 - hard),
        Population.of("noisy", -calibrated, noise + (1 - noise) * (1 - calibrated) * 0.7),
        Population.of("unrelated", uniform, np.full(INPUTS, 0.04)),
        Population.of("blunders", uniform, np.where(uniform < 0.1, 0.12, 0.01 + 0.12 * uniform**4)),
        Population.of("equal scores", -rounded, 1 - calibrated),
    ]


def digits(folder: Path) -> Population:
    """Train the demo's model and return its test digits as a population with error probabilities 0 or 1."""
    model, path = folder / "base.st", folder / "predictions.st"
    run("finetune", DIGITS.architecture, "--train", DIGITS.train, "--val", DIGITS.val, *DIGITS.training,
        "--epochs", DIGITS.epochs, "--seed", 0,
        "-o", model)  # fmt: skip
    run("eval", model, "--data", DIGITS.test, "--name", "base", "--no-latency", "--bootstrap", 0, "--metrics", "accuracy",
        "--save-predictions", path)  # fmt: skip
    tensors = load_file(path)
    log_probs = tensors["log_probs/base/id"][0].double()
    wrong = log_probs.argmax(1) != tensors["labels/id"]
    return Population.of("digits", -log_probs.amax(1).exp().numpy(), wrong.double().numpy())


def run(*words: object) -> None:
    """Run a hydractl command without output.

    Raises:
        SystemExit: If the command fails; the message contains its standard error.
    """
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = hydractl([*map(str, words)])
    if code:
        raise SystemExit(f"{shlex.join(map(str, words))}\n{said.getvalue()}")


def bonferroni(scores: torch.Tensor, hits: torch.Tensor, *, risk: float) -> Selection:
    """Return the loosest threshold that passes a binomial test at `DELTA` / number of tested ranks.

    Ranks are tested from the largest number of accepted inputs downwards.
    """
    count = len(scores)
    ranks: list[int] = []
    share = 1.0
    while (rank := math.floor(share * (count - 1))) >= math.log(DELTA / (len(ranks) + 1)) / math.log1p(-risk):
        ranks += [rank] if rank not in ranks else []
        share *= 0.95
    ordered, order = scores.sort()
    wrong = (~hits)[order].cumsum(0)
    for rank in ranks:
        accepted = int((ordered < ordered[rank]).sum())
        errors = int(wrong[accepted - 1]) if accepted else 0
        if accepted and binom.cdf(errors, accepted, risk) <= DELTA / len(ranks):
            return Selection(float(ordered[rank]), accepted, errors)
    return NOTHING


METHODS: dict[str, Callable[[torch.Tensor, torch.Tensor, float], Selection]] = {
    BONFERRONI: lambda scores, hits, risk: bonferroni(scores, hits, risk=risk),
    SEQUENCE: lambda scores, hits, risk: errors_among_accepted(scores, hits, risk=risk, delta=DELTA),
    CONFORMAL: lambda scores, hits, risk: accepted_and_wrong(scores, hits, risk=risk),
}


def simulate(
    population: Population, count: int, risk: float, *, trials: int, seed: int
) -> list[dict[str, Any]]:
    """Run all methods on the same draws and return one row per method."""
    generator = np.random.default_rng([seed, count, round(1000 * risk)])
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
    for _ in range(trials):
        scores, hits = population.draw(count, generator)
        for name, method in METHODS.items():
            found[name].append(population.below(method(scores, hits, risk).below))
    best = population.best(risk)
    return [
        {
            "population": population.name,
            "n": count,
            "risk": risk,
            "method": name,
            "reached": float((pairs[:, 0] > 0).mean()),
            "coverage": float(pairs[:, 0].mean()),
            "best_coverage": best[name == CONFORMAL],
            # The factor absorbs rounding: a share that equals the risk exactly is not a violation.
            "broken": int((pairs[:, 1] > risk * pairs[:, 0] * (1 + 1e-9)).sum()),
            "accepted_and_wrong": float(pairs[:, 1].mean()),
            "deviation": float(pairs[:, 1].std(ddof=1) / math.sqrt(trials)),
            "trials": trials,
        }
        for name, pairs in ((name, np.array(pairs)) for name, pairs in found.items())
    ]


def holds(row: dict[str, Any]) -> bool:
    """Return whether a row is compatible with the promised bound at confidence `LEVEL`."""
    if row["method"] == CONFORMAL:
        return bool(row["accepted_and_wrong"] - norm.ppf((1 + LEVEL) / 2) * row["deviation"] <= row["risk"])
    broken, trials = row["broken"], row["trials"]
    return broken == 0 or float(beta.ppf((1 - LEVEL) / 2, broken, trials - broken + 1)) <= DELTA


def written(rows: Sequence[dict[str, Any]], *, command: str) -> str:
    """Return the page in Markdown: verdicts, legend, and one table per population."""
    trials = rows[0]["trials"]
    lines = [
        "# Simulated guarantees of thresholds",
        "",
        f"Error rates and coverage of thresholds by `{command}`: {trials} trials per row, delta {DELTA}. The script describes the populations. Verdicts use {100 * LEVEL:g} % intervals.",
        "",
        *verdicts(rows),
        "",
        LEGEND,
    ]
    for name in dict.fromkeys(row["population"] for row in rows):
        lines += [
            "",
            f"## {name}",
            "",
            HEAD,
            f"|{'---:|' * HEAD.count(' | ')}---:|",
        ]
        for count in SIZES:
            for risk in RISKS:
                old, first, second = (
                    next(
                        r
                        for r in rows
                        if (r["population"], r["n"], r["risk"], r["method"]) == (name, count, risk, m)
                    )
                    for m in METHODS
                )
                cells = (
                    *(percent(old["reached"]), percent(old["coverage"]), percent(old["broken"] / trials)),
                    *(
                        percent(first["reached"]),
                        percent(first["coverage"]),
                        percent(first["broken"] / trials),
                    ),
                    percent(first["best_coverage"]),
                    *(percent(second["reached"]), percent(second["coverage"])),
                    f"{100 * second['accepted_and_wrong']:.2f}",
                    percent(second["best_coverage"]),
                )
                lines.append(f"| {count} | {risk:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def percent(share: float) -> str:
    """Format a share in percent."""
    return f"{100 * share:.1f}"


def verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return one line per promise, and lines that compare coverage and success between the methods."""
    lines = []
    for method in METHODS:
        own = [row for row in rows if row["method"] == method]
        worst = max(
            own, key=lambda r: r["accepted_and_wrong"] / r["risk"] if method == CONFORMAL else r["broken"]
        )
        number = (
            f"{100 * worst['accepted_and_wrong']:.2f} % of inputs are accepted and wrong (limit {100 * worst['risk']:g} %)"
            if method == CONFORMAL
            else f"{percent(worst['broken'] / worst['trials'])} % of trials break the risk (limit {100 * DELTA:g} %)"
        )
        place = f"{worst['population']}, n = {worst['n']}, risk {worst['risk']:g}"
        kept = sum(map(holds, own))
        verdict = "holds" if kept == len(own) else "FAILS"
        lines.append(f"- {method}: {verdict} in {kept} of {len(own)} rows; worst row: {number}; {place}.")
    pairs = [[row for row in rows if row["method"] == m] for m in (BONFERRONI, SEQUENCE)]
    gains = [
        (second["reached"] - first["reached"], second["coverage"] - first["coverage"], second)
        for first, second in zip(*pairs, strict=True)
    ]
    less = [f"{r['population']}, n = {r['n']}, risk {r['risk']:g}" for gain, _, r in gains if gain < 0]
    lines.append(
        f"- {SEQUENCE} reaches a threshold more often than {BONFERRONI} in {sum(gain > 0 for gain, _, _ in gains)} of {len(gains)} rows, less "
        f"often in {len(less)} ({'; '.join(less) or 'no row'}). The coverage is larger in {sum(more > 0 for _, more, _ in gains)} rows, smaller in "
        f"{sum(more < 0 for _, more, _ in gains)}."
    )
    lines.append(f"- Means over all populations, in % ({' / '.join(METHODS)}):")
    for count in SIZES:
        for risk in RISKS:
            means = [
                [
                    float(
                        np.mean(
                            [r[key] for r in rows if (r["method"], r["n"], r["risk"]) == (m, count, risk)]
                        )
                    )
                    for m in METHODS
                ]
                for key in ("reached", "coverage")
            ]
            reached, coverage = (" / ".join(map(percent, of)) for of in means)
            lines.append(f"  - n = {count}, risk {risk:g}: reached {reached}, coverage {coverage}.")
    return lines


def main() -> int:
    """Run the simulation, print the verdicts and write the tables. The exit code is 1 if a promise fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=2000, help="trials per row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        populations = [*synthetic(), digits(Path(folder))]
    rows = []
    for number, population in enumerate(populations):
        accuracy = 1 - float(population.wrong.mean())
        print(f"{population.name}: accuracy {accuracy:.3f}", file=sys.stderr)
        for count in SIZES:
            for risk in RISKS:
                rows += simulate(
                    population, count, risk, trials=options.trials, seed=options.seed + 1000 * number
                )
    text = written(rows, command=shlex.join(["python", *sys.argv]))
    print("\n".join(verdicts(rows)))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "guarantees.md").write_text(text + "\n", encoding="utf-8")
    (options.out / "guarantees.json").write_text(
        json.dumps(rows, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
    return 0 if all(map(holds, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
