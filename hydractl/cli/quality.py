"""Final tables of `make` and `demo`: quality and cost of each row of a report, and example predictions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from hydractl.cli.output import console, line, table, table_of, written_out
from hydractl.data.labels import required_labels
from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.manifest.report import Report
from hydractl.manifest.terms import ID_NAME
from hydractl.messages import counted, listed
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.ood_scores import number_name
from hydractl.output.publish import publish
from hydractl.reporting.comparison import Compared
from hydractl.reporting.figures import figures
from hydractl.reporting.matplotlib_figure import png
from hydractl.reporting.report_values import (
    BETTER,
    LEVEL,
    WORSE,
    Cell,
    Number,
    Quantity,
    ReportTable,
    format_value,
    judgement,
)
from hydractl.reporting.verdict import judged_quantities

LEVEL_NOTE = "level: the 95 % interval of the difference includes 0, or the difference is small"
COSTS = {"compute": Quantity("macs"), "training": Quantity("training_macs")}


def quality(compared: Compared) -> Mapping[str, Quantity]:
    """Return the table's quantities by heading: metrics of labelled data, and AUROC by the last OOD score."""
    report = compared.reports[0]
    kinds = (
        {"near": "near", "far": "far"} | dict.fromkeys(report.near, "near") | dict.fromkeys(report.far, "far")
    )
    return {
        q.metric.head if q.scope is None else f"{kinds.get(q.scope, q.scope)} ↑": q
        for q in judged_quantities(compared)
        if q.metric.needs is not MetricNeeds.OOD or q.by(report.ood_scores) == report.ood_scores[-1]
    }


def show_quality(compared: Compared, *, unit: str) -> None:
    """Print the table of all rows, with costs relative to the row `unit`, and notes about the columns."""
    report, rows, out = compared.reports[0], compared.rows, console()
    costs = {name: cost for name, cost in COSTS.items() if cost in rows[unit] and len(rows) > 1}
    out.print(table_of(_quality_table(compared, costs, unit=unit)))
    notes = [f"near, far: AUROC by {report.ood_scores[-1]}"] * bool(report.near or report.far)
    if notes := notes + [f"{', '.join(costs)}: times {unit}"] * bool(costs):
        line(out, "; ".join(notes))


def _quality_table(compared: Compared, costs: Mapping[str, Quantity], *, unit: str) -> ReportTable:
    quantities = quality(compared)
    rows = (
        (
            name,
            (
                *(Cell(format_value(q.metric, numbers[q].value)) for q in quantities.values()),
                *(
                    Cell(f"{numbers[cost].value / compared.rows[unit][cost].value:.2f}")
                    for cost in costs.values()
                ),
            ),
        )
        for name, numbers in compared.rows.items()
    )
    samples = compared.reports[0].data[ID_NAME].count
    title = f"Quality on {samples} test samples" + ", and cost" * bool(costs)
    return ReportTable(title=title, heads=(*quantities, *costs), rows=tuple(rows))


REPORT, PAGE, PICTURE, MODEL = "report.json", "report.html", "cost.png", "model.st"
THRESHOLD, PREDICTIONS = "threshold.json", "predictions.jsonl"
SINGLE = "single"
OPPONENTS = (SINGLE, "trained longer", "ensemble")
"""Rows to compare the hydra with, if the report has them."""


def show(out: Path) -> None:
    """Print the results of a demo, and write its picture.

    Raises:
        InputError: If the report cannot be read.
        OutputError: If the picture cannot be written.
    """
    compared = Compared.of({REPORT: Report.read(out / REPORT)})
    with publish(out / PICTURE) as file:
        file.write(png(next(figure for figure in figures(compared) if figure.name == "cost").sheet()))
    with written_out():
        terminal = console()
        show_quality(compared, unit=SINGLE)
        for opponent in filter(compared.rows.__contains__, OPPONENTS):
            line(terminal, sentence(compared, opponent))
        line(terminal, LEVEL_NOTE)
        if (out / PREDICTIONS).exists():
            heads = ["input", "truth", "votes", "confidence", "answer"]
            rows = answers(out / PREDICTIONS)
            terminal.print(table(heads, rows, title="Ten inputs, three of them not digits", left=len(heads)))
            threshold = Report.read(out / THRESHOLD).rows[0].threshold
            line(terminal, "No threshold is known." if threshold is None else f"hydra {threshold.summary}")
        line(terminal, "")
        line(terminal, f"The picture, quality against cost: {out / PICTURE}")
        line(terminal, f"The page, with intervals and curves: {out / PAGE}")


QUESTIONS, ANSWERS = "questions.jsonl", "answers.jsonl"
ACCEPTED, HELD_BACK = "Accepted", "Held back"


def show_answers(folder: Path) -> None:
    """Print questions with intent, answer and verdict, the number of wrong answers, and the next commands."""
    questions, answers = (
        [json.loads(text) for text in (folder / name).read_text(encoding="utf-8").splitlines()]
        for name in (QUESTIONS, ANSWERS)
    )
    rows, right, wrong = [], Counter[str](), Counter[str]()
    for question, answer in zip(questions, answers, strict=True):
        accepted, intent = answer["accepted"], question.get("label", "")
        verdict = "yes" if accepted else "no threshold" if accepted is None else f"no, {answer['reason']}"
        rows.append([question["text"], answer["label"], intent, f"{answer['probability']:.3f}", verdict])
        if intent:
            (right if answer["label"] == intent else wrong)[ACCEPTED if accepted else HELD_BACK] += 1
    heads = ["question", "answer", "intent", "confidence", "accepted"]
    counts = (
        f"{kind}: {counted(right[kind], 'right answer')}, {wrong[kind]} wrong."
        for kind in (ACCEPTED, HELD_BACK)
    )
    with written_out():
        terminal = console()
        line(terminal, "")
        terminal.print(table(heads, rows, title=f"{len(rows)} questions of {folder / QUESTIONS}", left=5))
        line(terminal, f"{' '.join(counts)} Intent `none`: a question of another kind.")
        line(
            terminal,
            f"A threshold that accepts 95 % of the known test questions also accepts {_shares(folder)}.",
        )
        line(terminal, "")
        line(terminal, f"The page, with quality on all test questions: {folder / PAGE}")
        line(terminal, f"Next: echo 'my battery is dead' | hydractl predict {quote(str(folder / MODEL))} -")
        line(
            terminal,
            "      hydractl make MODEL --train TRAIN --val VAL --test TEST -o DIR   # your own model and data",
        )


def _shares(folder: Path) -> str:
    """Return the accepted share of each OOD set of the report, by the last OOD score."""
    report = Report.read(folder / REPORT)
    name = number_name("accepted95", report.ood_scores[-1], report.ood_scores)
    return listed(
        [f"{100 * numbers[name].value:.0f} % of {kind}" for kind, numbers in report.rows[0].ood.items()]
    )


def sentence(compared: Compared, opponent: str) -> str:
    """Return a sentence that compares the first row with another: metrics by judgement, and the cost.

    For example "hydra against single: better in Acc (by 0.012), level in NLL, at 1.40 times the compute of single."
    """
    first, differences = compared.names[0], compared.differences[opponent]
    labels: dict[str, list[str]] = {BETTER: [], WORSE: [], LEVEL: []}
    for head, quantity in quality(compared).items():
        if difference := differences.get(quantity):
            label = head.rpartition(" ")[0]
            word = judgement(quantity.metric, difference, compared.smallest) or LEVEL
            labels[word].append(label if word == LEVEL else f"{label} (by {abs(difference.value):.3f})")
    parts = [f"{word} in {listed(names)}" for word, names in labels.items() if names]
    cost, other_cost = (compared.rows[row][COSTS["compute"]].value for row in (first, opponent))
    return f"{first} against {opponent}: {', '.join(parts)}, at {cost / other_cost:.2f} times the compute of {opponent}."


def cheapest(compared: Compared) -> str:
    """Return the cheaper of two rows, unless the other is significantly better in NLL or AUROC and worse in none.

    The cost is the number of multiply-accumulates. AUROC is by the default OOD score.
    """
    first, second = compared.names
    words = {judgement(q.metric, number, {}) for q, number in _deciding(compared, second).items()}
    costs = [compared.rows[row][COSTS["compute"]].value for row in (first, second)]
    if costs[0] > costs[1]:
        return first if BETTER in words and WORSE not in words else second
    return second if WORSE in words and BETTER not in words else first


def _deciding(compared: Compared, second: str) -> Mapping[Quantity, Number]:
    differences = compared.differences[second]
    return {
        q: differences[q]
        for q in quality(compared).values()
        if q.metric.name in {"nll", "auroc"} and q in differences
    }


def reason(compared: Compared, second: str, chosen: str) -> str:
    """Return the chosen row, with differences of the first row from another row, and the ratios of costs."""
    first, rows = compared.names[0], compared.rows
    parts = [
        f"{q.label} by {number.value:+.3f}"
        + (f" ± {(number.interval[1] - number.interval[0]) / 2:.3f}" if number.interval else "")
        for q, number in _deciding(compared, second).items()
    ]
    costs = [
        f"{rows[first][cost].value / rows[second][cost].value:.2g} times the {kind}"
        for kind, cost in COSTS.items()
        if cost in rows[first] and cost in rows[second]
    ]
    name = first if chosen == first else f"{second} model"
    return f"{name}: on the test data the {first} differs in {listed(parts)}, at {listed(costs)} of the {second} model."


def answers(path: Path) -> Iterator[list[str]]:
    """Yield a table row for each prediction of a file: input, true class, votes, confidence and answer.

    The answer of a rejected input is `abstains`. For data without labels the true class is `none`.
    """
    by_set: dict[str, list[dict[str, Any]]] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        prediction = json.loads(text)
        by_set.setdefault(prediction["data"], []).append(prediction)
    for reference, predictions in by_set.items():
        data = open_data(reference)
        labels = None if data.labels is None else required_labels(data, reference)
        for index, prediction in enumerate(predictions):
            truth = "none" if labels is None else data.class_names[labels[index]]
            accepted = prediction.get("accepted")
            yield [
                f"{DataRef.parse(reference).source} {prediction['row']}",
                truth,
                " ".join(prediction["votes"]),
                f"{prediction['probability']:.3f}",
                prediction["label"] if accepted else "no threshold" if accepted is None else "abstains",
            ]
