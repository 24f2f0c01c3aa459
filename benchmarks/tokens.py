"""Evaluate hydras that label words: `run --example tokens` on CLINC150, with entities tagged by a rule.

The tags are numbers, dates, money and places. The same rule tags all splits, so no human judgement is
learned. The benchmark measures whether members, fusing and calibration work for words; the results do not
show how well a model finds entities as people mark them. The rule was written before any model was trained on
its tags. Texts keep the splits of CLINC150. Each seed draws equally many texts with and without entities. The
far-OOD sets are `oos` (out-of-scope queries) and `manual` (an encyclopedia of torch).

Rows: the hydra, the common starting model of its members (single), the same model trained as long as a member
(longer: member 0), and the average of the members without fusing (apart). All probabilities use a temperature
fitted on the validation texts; entities have a second temperature. `hydra, words` is the hydra without the
second temperature. The table has means over seeds, and differences to the hydra with 95 % intervals
(Student). The training time was changed once: after 4 epochs and 1 epoch with seed 0, continuation tags
(`I-`) were never predicted.

    python benchmarks/tokens.py CLINC150.jsonl --encoder MINILM/ --work tokens/ [--seeds 0 1 2] [--texts 1500]

`MINILM/` is the folder of any text encoder of transformers. Up-to-date files in `--work` are reused.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import re
import statistics
import sys
from pathlib import Path

from clinc150 import OOS, Query, read
from intervals import half_interval
from promise import run

from hydractl.cli.app import main as hydractl
from hydractl.manifest.report import Report, Row

RULE = {
    "number": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million",
    "money": "dollar dollars bucks cents euro euros pound pounds peso pesos yen",
    "date": "monday tuesday wednesday thursday friday saturday sunday today tomorrow yesterday tonight january february april june "
    "july august september october november december",
    "place": "alabama alaska arizona arkansas california colorado connecticut delaware florida georgia hawaii idaho illinois indiana "
    "iowa kansas kentucky louisiana maine maryland massachusetts michigan minnesota mississippi missouri montana nebraska "
    "nevada ohio oklahoma oregon pennsylvania tennessee texas utah vermont virginia washington wisconsin wyoming atlanta "
    "austin baltimore boston charlotte chicago cleveland dallas denver detroit houston memphis miami milwaukee minneapolis "
    "nashville oakland orlando philadelphia phoenix pittsburgh portland reno sacramento seattle tampa tucson vegas "
    "amsterdam athens bangkok barcelona beijing berlin brussels cairo dublin istanbul jakarta lisbon london madrid manila "
    "milan moscow mumbai nairobi oslo paris prague rome seoul shanghai sydney tokyo toronto vancouver venice vienna "
    "argentina australia austria belgium brazil canada chile china colombia cuba denmark egypt england finland france "
    "germany greece iceland india indonesia iran iraq ireland israel italy jamaica japan kenya korea malaysia mexico "
    "morocco netherlands nigeria norway pakistan panama peru philippines poland portugal russia scotland singapore spain "
    "sweden switzerland thailand turkey ukraine venezuela vietnam",
}
"""Words of each category. March and may are missing because they are also verbs."""
KINDS = {word: kind for kind, words in RULE.items() for word in words.split()}
METRICS = ("accuracy", "nll", "ece", "span_f1", "span_ece", "macs")
FAR = {"oos": "oos.jsonl", "manual": "manual"}


def kind(word: str) -> str | None:
    """Return the category of a single word by the rule, or None."""
    word = word.strip(".,?!;:'\"")
    if re.fullmatch(r"\$\d[\d,.]*", word):
        return "money"
    if re.fullmatch(r"\d+(st|nd|rd|th)", word):
        return "date"
    return "number" if re.fullmatch(r"\d[\d,.]*", word) else KINDS.get(word)


def tagged(text: str) -> dict[str, list[str]]:
    """Return the words and IOB tags of a text. Numbers before a currency are tagged as money."""
    words = text.split()
    kinds = [kind(word) for word in words]
    for i in reversed(range(len(words) - 1)):
        if kinds[i] == "number" and kinds[i + 1] == "money":
            kinds[i] = "money"
    before = [None, *kinds]
    tags = [
        "O" if k is None else f"{'I' if k == b else 'B'}-{k}" for k, b in zip(kinds, before, strict=False)
    ]
    return {"tokens": words, "ner_tags": tags}


def write_data(queries: list[Query], folder: Path, *, seed: int, texts: int) -> None:
    """Write the splits with equally many texts with and without entities, and the out-of-scope queries.

    Args:
        queries: All queries of CLINC150.
        folder: Output folder; created if missing.
        seed: Seed of the draw.
        texts: Upper bound on the texts of each split.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val", "test"):
        rows = [tagged(q.text) for q in queries if q.split == split and q.label != OOS]
        with_entity = [row for row in rows if {*row["ner_tags"]} != {"O"}]
        without = [row for row in rows if {*row["ner_tags"]} == {"O"}]
        source = random.Random(f"{seed}/{split}")  # noqa: S311 - reproducible
        drawn = source.sample(with_entity, min(len(with_entity), texts // 2))
        drawn += source.sample(without, min(len(without), len(drawn)))
        source.shuffle(drawn)
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in drawn))
    foreign = [{"text": q.text} for q in queries if q.label == OOS and q.split == "test"]
    (folder / FAR["oos"]).write_text("".join(json.dumps(row) + "\n" for row in foreign[:600]))


def report_of(folder: Path, encoder: Path) -> dict[str, Row]:
    """Return the rows of one seed by name; the pipeline only runs if its outputs are out of date."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        hydractl(["run", "--example", "tokens"])
    (folder / "tokens.toml").write_text(said.getvalue())
    with contextlib.chdir(folder):
        params = {"model": encoder, "lr": 1e-4, "together": 10, "apart": 3}
        run(
            ["run", "tokens.toml", *(word for name, x in params.items() for word in ("--set", f"{name}={x}"))]
        )
        far = [word for name, data in FAR.items() for word in ("--far", f"{name}={data}")]
        others = ("single=start.st", "longer=member-0.st", "apart=member-0.st,member-1.st,member-2.st")
        compared = [word for row in others for word in ("--compare", row)]
        run(["eval", "hydra.st", *compared, "--data", "test.jsonl", "--temperature", "val.jsonl", *far, "--no-latency", "--bootstrap", "0", "-o", "all.json", "--if-changed"])  # fmt: skip
        rows = {row.name: row for row in Report.read(Path("all.json")).rows}
        again = rows["hydra"].values["temperature"].value / rows["hydra"].stored_temperatures[0]
        run(["eval", "hydra.st", "--data", "test.jsonl", "--temperature", str(again), *far, "--no-latency", "--bootstrap", "0", "-o", "words.json", "--if-changed"])  # fmt: skip
        (words,) = Report.read(Path("words.json")).rows
    return rows | {"hydra, words": words}


def numbers(row: Row) -> dict[str, float]:
    """Return the columns of a row: metrics, and AUROC on each far-OOD set for texts and entities."""
    ranks = {
        f"{heading} {name}": row.ood[name][metric].value
        for heading, metric in (("AUROC", "auroc"), ("span AUROC", "span_auroc"))
        for name in FAR
    }
    return {name: row.values[name].value for name in METRICS} | ranks


def format_difference(values: list[float]) -> str:
    """Format the mean of differences with half of its 95 % interval."""
    return f"{statistics.fmean(values):+.4f} ± {half_interval(values):.4f}"


def main() -> int:
    """Train and evaluate the hydras of each seed, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="all queries of CLINC150, as JSON lines")
    parser.add_argument(
        "--encoder", type=Path, required=True, help="folder of a text encoder of transformers"
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for data and models, reused if up to date"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--texts", type=int, default=1500, help="largest number of texts per split")
    options = parser.parse_args()
    queries, seeds = read(options.file), []
    for seed in options.seeds:
        folder = options.work.resolve() / str(seed)
        write_data(queries, folder, seed=seed, texts=options.texts)
        rows = report_of(folder, options.encoder.resolve())
        seeds.append({name: numbers(row) for name, row in rows.items()})
    columns = list(seeds[0]["hydra"])
    lines = ["| row | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for name in seeds[0]:
        means = [statistics.fmean(rows[name][column] for rows in seeds) for column in columns]
        lines.append(f"| {name} | " + " | ".join(f"{x / 1e6:.0f} M" if c == "macs" else f"{x:.4f}" for c, x in zip(columns, means, strict=True)) + " |")  # fmt: skip
    for name in [*seeds[0]][1:]:
        gaps = {column: format_difference([rows["hydra"][column] - rows[name][column] for rows in seeds]) for column in columns}  # fmt: skip
        lines.append(f"| hydra - {name} | " + " | ".join((gaps | {"macs": ""}).values()) + " |")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
