"""Number of files that an addition changes, in a copy of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

import hydractl
from hydractl.cli.app import main

ARCH = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=7"
METHOD = '''
"""Scores that are all alike."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.scoring.settings import Settings
from hydractl.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSettings(Settings):
    """Of `level`."""

    height: int = setting(1, "level: what every head scores.", low=1, metavar="N")


def score_level(job):
    from hydractl.scoring.job import Ranking

    height = float(job.set_for(LevelSettings).height)
    return Ranking(scores={n: [[height] * t.num_heads] * t.layers for n, t in job.scored.items()})
'''


MARKUP = "arch:markuplm::hidden_size=32,num_hidden_layers=2,num_attention_heads=4,intermediate_size=48,vocab_size=61,num_labels=3"
AS_THE_LIBRARY = """
import sys
import torch, transformers
from hydractl.families.open_model import load_model, open_model
from hydractl.families.registry import FAMILIES

model, texts = load_model(open_model(sys.argv[1])), {"input_ids": torch.arange(4, 20).reshape(2, 8)}
assert "transformers-markuplm" in FAMILIES
library = transformers.MarkupLMForSequenceClassification(transformers.MarkupLMConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=61, num_labels=3
)).eval()
library.load_state_dict(model.library_state())
with torch.inference_mode():
    print((model(texts) - library(**texts).logits).abs().max().item() <= 1e-6)
"""


GRADES = '''
"""Grades from 1 to 5, in order."""

from __future__ import annotations

from hydractl.metrics.classification import mean
from hydractl.metrics.metric_spec import Metric, MetricNeeds

METRICS = (
    Metric(
        name="grade_error",
        column="grade error",
        definition="Mean distance between the expected grade and the true one.",
        needs=MetricNeeds.TASK,
        higher_is_better=False,
        arguments=("distance",),
        compute=mean,
        interval=True,
    ),
)


def grade(cell):
    return str(cell).removesuffix("/5") if str(cell).endswith("/5") else None


def expected(probabilities, names):
    return probabilities @ probabilities.new_tensor([float(name) for name in names])


def measure(tested, labels, header, *, metrics, resampling):
    from hydractl.metrics.per_sample import in_memory, mean_probabilities

    names = header.class_names
    true = labels.new_tensor([int(name) for name in names])[labels]
    distance = (expected(mean_probabilities(in_memory(tested)), names) - true).abs()
    return resampling.values(metrics, {"distance": distance})


def lines(predictions, names, uncertainties, *, top_k, score):
    from hydractl.prediction.writers import class_lines, shortest

    grades = shortest(expected(predictions.probabilities, names))
    told = class_lines(predictions, names, uncertainties, top_k=top_k, score=score)
    for line, number in zip(told, grades, strict=True):
        yield {"grade": number, **line}
'''
GRADING = """GRADING = Task(
    problem_type="grading",
    labels="a grade for each item",
    hint="write grades as `3/5`",
    answer="a grade for every input",
    cell="hydractl.grades:grade",
    metrics="hydractl.grades:METRICS",
    measure="hydractl.grades:measure",
    lines="hydractl.grades:lines",
    columns=(("grade", float),),
)
"""


class Copy:
    """A copy of the package with additions. `changed` has the changed files."""

    def __init__(self, folder: Path, interpreter: object) -> None:
        self.folder, self.interpreter, self.changed = folder, str(interpreter), set()
        shutil.copytree(Path(hydractl.__file__).parent, folder / "hydractl")

    def add(self, path: str, text: str) -> None:
        (self.folder / path).write_text(text, encoding="utf-8")
        self.changed.add(path)

    def insert(self, path: str, text: str, *, before: str) -> None:
        old = (self.folder / path).read_text(encoding="utf-8")
        assert old.count(before) == 1, before
        self.add(path, old.replace(before, text + before))

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "hydractl", *argv)

    def python(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.interpreter, *argv],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def copy(tmp_path, python):
    return Copy(tmp_path, python())


def test_a_scoring_method_with_a_setting_is_two_files(copy):
    table = "hydractl/scoring/methods.py"
    copy.add("hydractl/scoring/level.py", METHOD)
    copy.insert(
        table,
        "from hydractl.scoring.level import LevelSettings\n",
        before="from hydractl.scoring.settings import",
    )
    copy.insert(
        table,
        'Method(name="level", summary="all alike", run="hydractl.scoring.level:score_level", settings=LevelSettings, '
        "needs_data=False),\n            ",
        before='Method(\n                name="random"',
    )

    help_text = copy.run("score", "--help", "--all").stdout
    made = copy.run("score", ARCH, "--method", "level", "--height", "3", "-o", "s.json")
    refused = copy.run("score", ARCH, "--method", "random", "--height", "3", "-o", "t.json")

    assert made.returncode == 0, made.stderr
    scores = json.loads((copy.folder / "s.json").read_text())
    assert (scores["method"], scores["options"]) == ("level", {"height": 3})
    assert scores["towers"]["vision"]["scores"] == [[3.0] * 4] * 2
    assert "level: all alike" in " ".join(help_text.split())
    assert "--height N" in help_text
    assert "`--height` has no effect with `--method random`" in refused.stderr
    assert "it applies to `--method level`" in refused.stderr
    assert len(copy.changed) == 2


def test_an_option_is_one_line(copy):
    config = "hydractl/stages/fuse/config.py"
    copy.insert(
        config,
        '    members: int = setting(2, "How many at least.", low=2, metavar="N")\n',
        before="    naming: Naming",
    )
    lines = (copy.folder / config).read_text().splitlines()

    assert "--members N" in copy.run("fuse", "--help", "--all").stdout
    assert "greater than or equal to 2" in copy.run("fuse", "a.st", "-o", "b.st", "--members", "1").stderr
    assert len(lines) == len((Path(hydractl.__file__).parents[1] / config).read_text().splitlines()) + 1


def test_a_strategy_is_two_files(copy):
    words, draws = "hydractl/pruning/strategies.py", "hydractl/pruning/masks.py"
    copy.insert(words, '    LAST = "last"\n', before='    DIVERSE = "diverse"\n')
    copy.insert(
        words,
        'Strategy.LAST: Rules(summary="as best", has_members=False),\n        ',
        before="Strategy.DIVERSE: Rules(",
    )
    copy.insert(draws, "    Strategy.LAST: _best,\n", before="    Strategy.DIVERSE: _diverse,\n")

    help_text = " ".join(copy.run("prune", "--help", "--all").stdout.split())
    assert main(["score", ARCH, "--method", "random", "-o", str(copy.folder / "s.json")]) == 0
    made = copy.run(
        "prune", ARCH, "--strategy", "last", "--scores", "s.json", "--keep-heads", "2", "-o", "m.st"
    )

    assert made.returncode == 0, made.stderr
    mask = json.loads((copy.folder / "m.mask.json").read_text())
    assert mask["origin"]["strategy"] == "last"
    assert "last: as best;" in help_text
    assert len(copy.changed) == 2


def test_a_metric_is_one_file(copy):
    copy.insert(
        "hydractl/metrics/classification.py",
        '    _labelled(name="worst", column="Worst", definition="Largest surprise.", higher_is_better=False, '
        'arguments=("nll",), compute=lambda nll: nll.amax(-1)),\n',
        before='    _labelled(\n        name="ece"',
    )
    data = ["--data", "digits::classes=0-6,limit=20", "--no-latency", "--bootstrap", "9"]

    help_text = " ".join(copy.run("eval", "--help", "--all").stdout.split())
    made = copy.run("eval", ARCH, *data, "--metrics", "nll,worst", "--fail-if", "worst>0", "-o", "r.json")
    refused = copy.run("eval", ARCH, *data, "--metrics", "worse")

    report = json.loads((copy.folder / "r.json").read_text())
    mean, worst = (report["rows"][0]["values"][name] for name in ("nll", "worst"))
    assert mean["value"] < worst["value"]
    assert worst["low"] <= worst["high"] <= worst["value"]
    assert report["definitions"]["worst"] == "Largest surprise."
    assert made.returncode == 5, made.stderr
    assert made.stdout.split()[:5] == ["model", "NLL", "↓", "Worst", "↓"]
    assert "worst, ece" in help_text
    assert "did you mean `worst`?" in refused.stderr
    assert len(copy.changed) == 1


def test_a_value_of_a_report_is_two_files(copy):
    """A new value besides metrics appears in the terminal, JSON, its schema, both pages and the card."""
    copy.insert(
        "hydractl/manifest/report.py",
        '    largest_class: Annotated[int, Column("largest class")] = Field(default=0, exclude_if=lambda value: value == 0)\n',
        before="    sets: SetNumbers | None",
    )
    copy.insert(
        "hydractl/stages/evaluate/run.py",
        "        largest_class=int(labels.unique(return_counts=True)[1].max()),\n",
        before="        label_thresholds=by_label,\n",
    )
    data = ["--data", "digits::classes=0-6,limit=20", "--no-latency", "--bootstrap", "0"]
    assert copy.run("prune", ARCH, "--strategy", "random", "--keep-heads", "3", "-o", "m.st").returncode == 0

    table = copy.run("eval", "m.st", *data, "-o", "r.json")
    pages = [copy.run("report", "r.json", "-o", name).returncode for name in ("r.md", "r.html")]
    card = copy.run("push", "m.st", "my-team/m", "--report", "r.json", "--dry-run")
    document = json.loads(copy.run("report", "r.json", "--json").stdout)
    schema = json.loads(copy.run("schema", "report").stdout)

    number = json.loads((copy.folder / "r.json").read_text())["rows"][0]["largest_class"]
    lines = [line.split() for line in table.stdout.splitlines()]
    heading = lines.index(["model", "largest", "class"])
    assert lines[heading + 2] == ["m", str(number)]
    assert pages == [0, 0]
    assert f"| model | largest class |\n|---|---:|\n| m | {number} |" in (copy.folder / "r.md").read_text()
    assert "largest class" in (copy.folder / "r.html").read_text()
    assert f"| largest class | `{number}` |" in card.stdout, card.stderr
    assert document["columns"] == {"r.json": {"m": {"largest class": number}}}
    assert "largest_class" in schema["$defs"]["Row"]["properties"]
    assert len(copy.changed) == 2


@pytest.mark.more
def test_an_encoder_of_a_known_shape_is_one_row(copy):
    """Without markup inputs, MarkupLM equals BERT."""
    copy.insert(
        "hydractl/families/transformers/text.py",
        """    replace(
        _BERT_ROW,
        title="markuplm",
        encoder=replace(_BERT_ROW.encoder, model="markuplm"),
        classes={"markuplm": "MarkupLMForSequenceClassification"},
    ),
""",
        before='    replace(\n        _BERT_ROW,\n        title="ernie",\n',
    )

    made = copy.run("prune", MARKUP, "--strategy", "random", "--keep-heads", "2", "-o", "m.st")
    same = copy.python("-c", AS_THE_LIBRARY, MARKUP)

    assert made.returncode == 0, made.stderr
    assert same.stdout == "True\n", same.stderr
    assert len(copy.changed) == 1


def write_graded(folder: Path, *, form: str = "{}/5") -> None:
    """Write images with brightness by grade, and a table."""
    rows = ["image,label"]
    for i in range(30):
        Image.new("L", (8, 8), 40 + 40 * (i % 5) + i // 5).save(folder / f"{i}.png")
        rows.append(f"{i}.png,{form.format(i % 5 + 1)}")
    (folder / "graded.csv").write_text("\n".join(rows))


@pytest.mark.more
def test_a_task_is_a_row_and_a_module(copy):
    """New cells become labels, headers have the task's name, and all stages have the metric and column."""
    tasks = "hydractl/tasks.py"
    copy.add("hydractl/grades.py", GRADES)
    copy.insert(tasks, GRADING, before="TASKS: Mapping[str, Task]")
    copy.add(tasks, (copy.folder / tasks).read_text().replace("(SINGLE_LABEL, ", "(SINGLE_LABEL, GRADING, "))
    write_graded(copy.folder)
    data = ("--data", "graded.csv")

    for line in (
        f"finetune {ARCH.replace('num_classes=7', 'num_classes=5')} --val graded.csv --lr 3e-3 --epochs 12 -o base.st",
        "score base.st --method taylor -o scores.json",
        "prune base.st --scores scores.json --keep-heads 3 -o a.st",
        "prune base.st --strategy random --keep-heads 3 -o b.st",
        "fuse a.st b.st -o hydra.st",
        "eval hydra.st --compare base.st --no-latency --bootstrap 9 --corrupt fog:3 --fail-if grade_error>4 -o report.json",
        "predict hydra.st graded.csv -o said.jsonl",
        "predict hydra.st graded.csv -o said.csv",
    ):
        given = data if line.split()[0] in {"finetune", "score", "eval"} else ()
        made = copy.run(*line.split(), *given, "-q")
        assert made.returncode == 0, f"{line}\n{made.stderr}"
    other = copy.run("eval", "hydra.st", "--data", "digits::classes=0-4,limit=9", "--no-latency")
    write_graded(copy.folder, form="{}")
    plain = copy.run("finetune", "base.st", "--keep-head", *data, "--val", "graded.csv", "-o", "no.st")

    card = copy.run("push", "hydra.st", "my-team/grades", "--dry-run").stdout
    header = json.loads(copy.run("inspect", "hydra.st", "--json").stdout)["model"]
    assert (header["architecture"]["problem_type"], header["labels"]) == ("grading", [*"12345"])
    said = [json.loads(text) for text in (copy.folder / "said.jsonl").read_text().splitlines()]
    values = json.loads((copy.folder / "report.json").read_text())["rows"][0]["values"]
    distances = [abs(line["grade"] - (i % 5 + 1)) for i, line in enumerate(said)]
    assert values["grade_error"]["value"] == pytest.approx(sum(distances) / 30, abs=1e-5)
    assert values["grade_error"]["value"] < 1.2  # A constant grade has a larger error.
    assert (copy.folder / "said.csv").read_text().split(",")[:3] == ["row", "grade", "label"]
    assert "5 classes and predicts a grade for every input" in " ".join(card.split())
    assert "has one label for each item, but `--data` needs a grade for each item" in other.stderr
    assert "write grades as `3/5`" in other.stderr
    assert "has one label for each item, but base.st answers a grade for each item" in plain.stderr
    assert len(copy.changed) == 2
