"""Compare every stage with transformers on three trained models, and measure time and memory of the commands.

    python benchmarks/real_check.py FOLDER [--only dinov2] [--work DIR] [--page benchmarks/results/real-check.md]

FOLDER has the folders of `real_models.py`, which rebuilds missing ones. Each model gets a classifier on its frozen
encoder, three pruned members and hydras of these members. The reference is transformers' own model in eager attention,
with its own tokenizer or image processor, and with zeroed columns of the output projection for removed heads. Each
command runs in its own process. The exit code is 1 if a difference exceeds its limit.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnxruntime
import torch
import transformers
from fuse_cost import MEGABYTE, WATCHED
from PIL import Image, ImageDraw
from real_models import build_all
from safetensors.torch import load_file
from torch import nn

import hydractl
from hydractl.data.reference import DataRef
from hydractl.data.toys import open_intents

LIBRARY: Any = transformers  # partly untyped
AUTO: Mapping[str, Any] = MappingProxyType(
    {"images": LIBRARY.AutoModelForImageClassification, "texts": LIBRARY.AutoModelForSequenceClassification}
)
"""Auto class of classifiers by task."""
State = Mapping[str, torch.Tensor]
Inputs = Mapping[str, torch.Tensor]
CLASSES, MEMBERS, HEADS_TESTED = 5, 3, 5
SIZES = {"train": 6, "val": 1, "test": 3}
"""Items per class of each set. Small, because the checks compare numbers and not quality."""
RESULTS = "results.json"
EXACT, SAME = 1e-5, 1e-4
"""Largest accepted differences relative to max(1, largest value): of probabilities and losses, and of logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model and its place in transformers.

    Attributes:
        name: Name of the folder.
        task: `texts` or `images`.
        layers: Number of layers.
        heads: Query heads per layer.
        key_heads: Heads of keys per layer.
        block: Prefix of a layer's attention in the names of tensors, with `{}` for the layer.
        parts: Names of the projections of queries, keys, values and output, after `block`.
        removed: Heads that each member lacks.
        lr: Learning rate of the classifier.
    """

    name: str
    task: str
    layers: int
    heads: int
    key_heads: int
    block: str
    parts: tuple[str, str, str, str]
    removed: int
    lr: str = "1e-2"

    def weight(self, layer: int, part: int) -> str:
        """Return the name of a projection's weight."""
        return f"{self.block.format(layer)}.{self.parts[part]}.weight"

    def without(self, state: State, heads: Sequence[tuple[int, int]]) -> dict[str, torch.Tensor]:
        """Return the tensors with zeros in the output projection's columns of some heads (layer, head)."""
        changed = dict(state)
        for layer, head in heads:
            name = self.weight(layer, 3)
            changed[name] = changed[name].clone()
            width = changed[name].shape[1] // self.heads
            changed[name][:, head * width : (head + 1) * width] = 0
        return changed


SUBJECTS = (
    Subject(name="minilm", task="texts", layers=6, heads=12, key_heads=12, removed=24, block="bert.encoder.layer.{}.attention",
            parts=("self.query", "self.key", "self.value", "output.dense")),
    Subject(name="dinov2", task="images", layers=12, heads=6, key_heads=6, removed=24, block="dinov2.encoder.layer.{}.attention",
            parts=("q_proj", "k_proj", "v_proj", "o_proj"), lr="1e-3"),
    Subject(name="smollm2", task="texts", layers=30, heads=9, key_heads=3, removed=90, block="model.layers.{}.self_attn",
            parts=("q_proj", "k_proj", "v_proj", "o_proj")),
)  # fmt: skip


class MeanPooled(nn.Module):
    """A BERT encoder, the mean over all tokens except padding, and a linear classifier."""

    def __init__(self, config: Any) -> None:  # noqa: ANN401 - transformers is untyped here
        super().__init__()
        self.bert = LIBRARY.BertModel._from_config(
            config, add_pooling_layer=False, attn_implementation="eager"
        )
        self.classifier = nn.Linear(config.hidden_size, CLASSES)

    def forward(self, attention_mask: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        """Return logits (B, C)."""
        states = self.bert(attention_mask=attention_mask, **inputs).last_hidden_state
        mask = attention_mask.unsqueeze(-1)
        logits: torch.Tensor = self.classifier((states * mask).sum(dim=1) / mask.sum(dim=1))
        return logits


@dataclass(frozen=True, slots=True)
class Reference:
    """Transformers' own model, tokenizer and image processor of a subject."""

    subject: Subject
    folder: Path

    def model(self, state: State, **config_changes: object) -> nn.Module:
        """Return a frozen model in evaluation mode with the state dict of a whole base."""
        config = LIBRARY.AutoConfig.from_pretrained(self.folder, num_labels=CLASSES, **config_changes)
        module = (
            MeanPooled(config)
            if self.subject.name == "minilm"
            else AUTO[self.subject.task].from_config(config, attn_implementation="eager")
        )
        missing, unexpected = module.load_state_dict(state, strict=False)
        if unexpected or any("position_ids" not in name for name in missing):
            raise SystemExit(f"{self.subject.name}: {missing} are missing, {unexpected} unexpected")
        frozen: nn.Module = module.eval().requires_grad_(requires_grad=False)
        return frozen

    def encode(self, items: Sequence[str]) -> Inputs:
        """Return the inputs of texts, or of image files."""
        if self.subject.task == "images":
            processor = LIBRARY.AutoImageProcessor.from_pretrained(self.folder)
            return dict(processor([Image.open(path) for path in items], return_tensors="pt"))
        tokenizer = LIBRARY.AutoTokenizer.from_pretrained(self.folder)
        sentences = self.folder / "sentence_bert_config.json"
        limit = json.loads(sentences.read_text())["max_seq_length"] if sentences.exists() else None
        tokenizer.padding_side = "right"
        return dict(
            tokenizer(
                list(items), padding=True, truncation=limit is not None, max_length=limit, return_tensors="pt"
            )
        )


def answer(model: nn.Module, inputs: Inputs) -> torch.Tensor:
    """Return the logits (B, C) of a model of `Reference`."""
    output = model(**inputs)
    logits: torch.Tensor = output if isinstance(output, torch.Tensor) else output.logits
    return logits


@dataclass(slots=True)
class Run:
    """Commands and checks of one model.

    Attributes:
        subject: The model.
        reference: Transformers' own model.
        work: Folder of the files.
        costs: Seconds and peak memory in bytes of each command, by name.
        differences: Largest difference and its limit, by check.
    """

    subject: Subject
    reference: Reference
    work: Path
    costs: dict[str, tuple[float, float]] = field(default_factory=dict)
    differences: dict[str, tuple[float, float]] = field(default_factory=dict)

    def command(self, name: str, *arguments: str) -> str:
        """Run a command in a new process, record its cost, and return its standard output.

        Raises:
            SystemExit: If the command fails.
        """
        note, start = self.work / "peak", time.perf_counter()
        program = [sys.executable, "-c", WATCHED, str(note), *arguments]
        finished = subprocess.run(program, check=False, cwd=self.work, capture_output=True, text=True)
        if finished.returncode:
            raise SystemExit(f"{self.subject.name}: hydractl {' '.join(arguments)}\n{finished.stderr}")
        self.costs[name] = time.perf_counter() - start, 1024 * float(note.read_text())
        seconds, peak = self.costs[name]
        print(f"{self.subject.name:8} {name:34} {seconds:6.1f} s {peak / MEGABYTE:6.0f} MB", flush=True)
        return finished.stdout

    def check(self, name: str, actual: torch.Tensor, expected: torch.Tensor, *, limit: float) -> None:
        """Record and print the largest difference, relative to max(1, largest expected value)."""
        if actual.shape != expected.shape:
            raise SystemExit(
                f"{self.subject.name}: {name}: shape {tuple(actual.shape)} instead of {tuple(expected.shape)}"
            )
        difference = float(
            (actual.double() - expected.double()).abs().max() / max(1.0, float(expected.abs().max()))
        )
        self.differences[name] = difference, limit
        holds = "ok" if difference <= limit else "FAILS"
        print(f"{self.subject.name:8} {name:54} {difference:.1e} (limit {limit:g}) {holds}", flush=True)

    def save(self) -> None:
        """Write costs and differences beside the models."""
        (self.work / RESULTS).write_text(json.dumps({"costs": self.costs, "differences": self.differences}))

    @property
    def failed(self) -> bool:
        """Whether a difference exceeds its limit, or is not a number."""
        return any(not difference <= limit for difference, limit in self.differences.values())


# -- data ---------------------------------------------------------------------------------------------------------------


def write_texts(work: Path) -> dict[str, list[tuple[str, int]]]:
    """Write tables of intents, and return texts and labels by set. Rows of `odd` have unusual texts."""
    names: tuple[str, ...] = ()
    sets: dict[str, list[tuple[str, int]]] = {}
    for split, count in SIZES.items():
        intents = open_intents(DataRef.parse(f"intents::split={split}"))
        names = tuple(intents.class_names[:CLASSES])
        by_class: dict[int, list[str]] = {label: [] for label in range(CLASSES)}
        for text, label in zip(intents.texts, intents.labels or (), strict=True):
            if label in by_class and len(by_class[label]) < count:
                by_class[label].append(str(text))
        sets[split] = [(text, label) for label, texts in by_class.items() for text in texts]
    odd = (
        "a", "OK?", "Wie weit ist es nach Zürich \N{EM DASH} 300 km?", "こんにちは \N{ROCKET}", "two\n\nlines\tand tabs",
        "<|im_start|>user\nhow far is it to Rome<|im_end|>\n<|im_start|>assistant\n", "how far is it " * 75,
    )  # fmt: skip
    sets["odd"] = [(text, i % CLASSES) for i, text in enumerate(odd)]
    for name, rows in sets.items():
        lines = (json.dumps({"text": text, "label": names[label]}) + "\n" for text, label in rows)
        (work / f"{name}.jsonl").write_text("".join(lines))
    return sets


SHAPES = ("circle", "ring", "square", "stripes", "triangle")


def write_images(work: Path) -> dict[str, list[tuple[str, int]]]:
    """Draw images of several sizes, and return paths and labels by set. `odd` has unusual sizes and modes."""
    draw = random.Random(0)  # noqa: S311 - reproducible, not secret
    sets: dict[str, list[tuple[str, int]]] = {}
    for split, count in SIZES.items():
        sizes = [(draw.randint(180, 420), draw.randint(180, 420)) for _ in range(count * CLASSES)]
        sets[split] = [
            (_draw(work / split, i, i % CLASSES, size, "RGB", draw), i % CLASSES)
            for i, size in enumerate(sizes)
        ]
        sets[split].sort(key=lambda row: (row[1], Path(row[0]).name))
    odd = (("RGB", (700, 90)), ("RGB", (90, 700)), ("RGB", (16, 12)), ("L", (300, 200)), ("RGB", (518, 518)))
    sets["odd"] = [
        (_draw(work / "odd", i, i % CLASSES, size, mode, draw), i % CLASSES)
        for i, (mode, size) in enumerate(odd)
    ]
    return sets


def _draw(
    folder: Path, number: int, label: int, size: tuple[int, int], mode: str, draw: random.Random
) -> str:
    """Draw a shape on noise, and return the path of the file."""
    noise = np.random.default_rng(draw.randrange(2**32)).integers(0, 60, (size[1], size[0], 3))
    image = Image.fromarray((noise + [draw.randrange(196) for _ in range(3)]).astype(np.uint8))
    canvas, colour = ImageDraw.Draw(image), tuple(draw.randrange(256) for _ in range(3))
    left, top, right, bottom = size[0] // 5, size[1] // 5, size[0] * 4 // 5, size[1] * 4 // 5
    if SHAPES[label] == "triangle":
        canvas.polygon([(left, bottom), (right, bottom), (size[0] // 2, top)], fill=colour)
    elif SHAPES[label] == "stripes":
        for y in range(top, bottom, 12):
            canvas.line((left, y, right, y), fill=colour, width=5)
    elif SHAPES[label] == "square":
        canvas.rectangle((left, top, right, bottom), fill=colour)
    else:
        canvas.ellipse(
            (left, top, right, bottom),
            outline=colour,
            width=12,
            fill=colour if SHAPES[label] == "circle" else None,
        )
    path = folder / SHAPES[label] / f"{number:03}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    image.convert(mode).save(path)
    return str(path)


# -- checks -------------------------------------------------------------------------------------------------------------


def check(run: Run) -> None:
    """Run every command on one model, and compare each with transformers."""
    subject, reference, work = run.subject, run.reference, run.work
    sets = write_texts(work) if subject.task == "texts" else write_images(work)
    data = {name: f"{name}.jsonl" if subject.task == "texts" else name for name in sets}
    run.command("finetune --train-parts head", "finetune", str(reference.folder), "--train", data["train"], "--val", data["val"],
                "--train-parts", "head", "--lr", subject.lr, "--epochs", "8", "-o", "base.st")  # fmt: skip
    base = load_file(work / "base.st")
    whole = reference.model(base)
    check_predict(run, whole, sets, data)
    check_scores(run, base, whole, sets["val"], data["val"])
    run.command("prune", "prune", "base.st", "--scores", "scores.json", "--remove", str(subject.removed), "--members", str(MEMBERS),
                "--pool", str(subject.removed * 3 // 2), "-o", "member-{i}.st")  # fmt: skip
    # `predict` has compared the last unusual input, a long text to whose length a whole batch would be padded.
    items = [item for item, _ in (*sets["test"], *sets["odd"][:-1])]
    inputs = reference.encode(items)
    masked = torch.stack([_masked(run, base, i, inputs) for i in range(MEMBERS)])
    members = torch.stack([_logits(work / f"member-{i}.st", items) for i in range(MEMBERS)])
    run.check("logits of pruned members = masked transformers", members, masked, limit=SAME)
    run.command("fuse", "fuse", *(f"member-{i}.st" for i in range(MEMBERS)), "-o", "hydra.st")
    run.check(
        "logits of a hydra = masked transformers", _logits(work / "hydra.st", items), masked, limit=SAME
    )
    check_tuned(run, data, items)
    check_eval(run, masked[:, : len(sets["test"])], sets["test"], data["test"])
    check_exports(run, inputs, masked)


@torch.no_grad()
def _masked(run: Run, base: State, member: int, inputs: Inputs) -> torch.Tensor:
    """Return the logits (B, C) of transformers' model with zeroed heads, for the mask of a member."""
    (tower,) = json.loads((run.work / f"member-{member}.mask.json").read_text())["towers"].values()
    removed = [
        (layer, head)
        for layer, kept in enumerate(tower["keep"])
        for head in set(range(run.subject.heads)) - set(kept)
    ]
    if len(removed) != run.subject.removed:
        raise SystemExit(f"{run.subject.name}: member {member} lacks {len(removed)} heads")
    return answer(run.reference.model(run.subject.without(base, removed)), inputs)


@torch.no_grad()
def _logits(path: Path, items: Sequence[str]) -> torch.Tensor:
    """Return the logits of a member (B, C), or of the members of a hydra (M, B, C), with hydractl's preprocessing."""
    model = hydractl.load(str(path))
    output = model(model.encode(list(items)))
    return output if isinstance(output, torch.Tensor) else output.member_logits


@torch.no_grad()
def check_predict(
    run: Run,
    whole: nn.Module,
    sets: Mapping[str, list[tuple[str, int]]],
    data: Mapping[str, str],
) -> None:
    """Compare the table of `predict` with the library, one input at a time in the library, in batches in hydractl."""
    for name in ("test", "odd"):
        table = f"{name}.csv"
        run.command(
            f"predict ({name})", "predict", "base.st", data[name], "--top-k", str(CLASSES), "-o", table
        )
        with (run.work / table).open(newline="") as file:
            rows = [_probabilities(row) for row in csv.DictReader(file)]
        names = sorted(rows[0])
        expected = torch.cat(
            [
                answer(whole, run.reference.encode([item])).softmax(dim=1)
                for item, _ in _by_row(sets[name], run.subject)
            ]
        )
        run.check(
            f"predict ({name}) = transformers",
            torch.tensor([[row[n] for n in names] for row in rows]),
            expected,
            limit=EXACT,
        )


def _by_row(rows: list[tuple[str, int]], subject: Subject) -> list[tuple[str, int]]:
    """Return the rows in the order of `predict`: paths are sorted by name."""
    return sorted(rows) if subject.task == "images" else rows


def _probabilities(row: Mapping[str, str]) -> dict[str, float]:
    """Return the probability of each class of a line of `predict`."""
    places = ["", *(f"_{k}" for k in range(2, CLASSES + 1))]
    return {row[f"label{place}"]: float(row[f"probability{place}"]) for place in places}


def check_scores(run: Run, base: State, whole: nn.Module, rows: Sequence[tuple[str, int]], data: str) -> None:
    """Compare the scores of some heads with losses and gradients of the library."""
    subject = run.subject
    draw = random.Random(1)  # noqa: S311 - reproducible, not secret
    heads = [(draw.randrange(subject.layers), draw.randrange(subject.heads)) for _ in range(HEADS_TESTED)]
    inputs, labels = (
        run.reference.encode([item for item, _ in rows]),
        torch.tensor([label for _, label in rows]),
    )
    # No head joins the masked set of HeadMap with `--keep-heads 0`, so each score is the change by one head.
    run.command(
        "score --method headmap",
        "score",
        "base.st",
        "--method",
        "headmap",
        "--keep-heads",
        "0",
        "--data",
        data,
        "-o",
        "headmap.json",
    )
    with torch.no_grad():
        loss = nn.functional.cross_entropy(answer(whole, inputs), labels)
        changes = torch.stack([
            nn.functional.cross_entropy(answer(run.reference.model(subject.without(base, [head])), inputs), labels) - loss for head in heads
        ])  # fmt: skip
    run.check(
        f"headmap of {HEADS_TESTED} heads = change of the loss",
        _scores(run.work / "headmap.json", heads),
        changes,
        limit=EXACT,
    )
    run.command(
        "score --method taylor",
        "score",
        "base.st",
        "--method",
        "taylor",
        "--scope",
        "global",
        "--data",
        data,
        "-o",
        "scores.json",
    )
    run.check(f"taylor of {HEADS_TESTED} heads = gradients (relative)", _scores(run.work / "scores.json", heads).log(),
              torch.stack(list(_taylor(run, base, inputs, labels, heads))).log(), limit=1e-3)  # fmt: skip


def _scores(path: Path, heads: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return the scores of some heads (layer, head) in a file of `score`."""
    (tower,) = json.loads(path.read_text())["towers"].values()
    return torch.tensor([tower["scores"][layer][head] for layer, head in heads], dtype=torch.float64)


def _taylor(
    run: Run, base: State, inputs: Inputs, labels: torch.Tensor, heads: Sequence[tuple[int, int]]
) -> Iterator[torch.Tensor]:
    """Yield the mean |weight x gradient| of the rows of queries, keys and values of each head.

    Shared keys and values are copied for each query head, so that a head has a gradient of its own.
    """
    subject, state = run.subject, dict(base)
    for layer in range(subject.layers if subject.key_heads < subject.heads else 0):
        for part in (1, 2):
            rows = state[subject.weight(layer, part)].unflatten(0, (subject.key_heads, -1))
            state[subject.weight(layer, part)] = rows.repeat_interleave(
                subject.heads // subject.key_heads, dim=0
            ).flatten(0, 1)
    changes = {"num_key_value_heads": subject.heads} if subject.key_heads < subject.heads else {}
    whole = run.reference.model(state, **changes)
    weights = dict(whole.named_parameters())
    names = sorted({subject.weight(layer, part) for layer, _ in heads for part in range(3)})
    for name in names:
        weights[name].requires_grad_()
    gradients = torch.autograd.grad(
        nn.functional.cross_entropy(answer(whole, inputs), labels), [weights[name] for name in names]
    )
    products = {
        name: (weights[name].detach() * x).abs().double() for name, x in zip(names, gradients, strict=True)
    }
    for layer, head in heads:
        by_part = [
            products[subject.weight(layer, part)].unflatten(0, (subject.heads, -1))[head] for part in range(3)
        ]
        yield torch.stack([x.mean() for x in by_part]).mean()


def check_tuned(run: Run, data: Mapping[str, str], items: Sequence[str]) -> None:
    """Train the last block of two members, and compare the hydra with the members."""
    for i in range(2):
        run.command(f"finetune, last block ({i})", "finetune", f"member-{i}.st", "--train", data["train"], "--val", data["val"],
                    "--trunk", str(run.subject.layers - 1), "--steps", "2", "--batch-size", "8", "--lr", "1e-4", "--seed", str(i), "-o", f"tuned-{i}.st")  # fmt: skip
    run.command("fuse --mlp keep", "fuse", "tuned-0.st", "tuned-1.st", "--mlp", "keep", "-o", "tuned.st")
    tuned = torch.stack([_logits(run.work / f"tuned-{i}.st", items) for i in range(2)])
    untuned = torch.stack([_logits(run.work / f"member-{i}.st", items) for i in range(2)])
    if torch.allclose(tuned, untuned, atol=1e-3):
        raise SystemExit(f"{run.subject.name}: training changed nothing")
    run.check(
        "logits of a hydra of tuned members = members",
        _logits(run.work / "tuned.st", items),
        tuned,
        limit=SAME,
    )


def check_eval(run: Run, masked: torch.Tensor, rows: Sequence[tuple[str, int]], data: str) -> None:
    """Compare accuracy and NLL of `eval` with the library's. `masked` are logits (M, B, C)."""
    run.command("eval", "eval", "hydra.st", "--data", data, "--no-latency", "-o", "report.json")
    values = json.loads((run.work / "report.json").read_text())["rows"][0]["values"]
    labels = torch.tensor([label for _, label in rows])
    probabilities = masked.double().softmax(dim=2).mean(dim=0)
    nll = -probabilities[torch.arange(len(labels)), labels].log().mean()
    accuracy = (probabilities.argmax(dim=1) == labels).double().mean()
    actual = torch.tensor([values[name]["value"] for name in ("accuracy", "nll")], dtype=torch.float64)
    run.check("accuracy and NLL of eval = transformers", actual, torch.stack([accuracy, nll]), limit=EXACT)


@torch.no_grad()
def check_exports(run: Run, inputs: Inputs, masked: torch.Tensor) -> None:
    """Compare ONNX, torch.export and the folder for transformers with the library, with its own preprocessing."""
    run.command("export to ONNX", "export", "hydra.st", "-o", "hydra.onnx")
    session = onnxruntime.InferenceSession(str(run.work / "hydra.onnx"), providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]
    (logits,) = session.run(["member_logits"], {name: inputs[name].numpy() for name in names})
    run.check("member logits of ONNX = masked transformers", torch.from_numpy(logits), masked, limit=SAME)
    run.command("export to torch.export", "export", "hydra.st", "-o", "hydra.pt2")
    program = torch.export.load(str(run.work / "hydra.pt2")).module()
    logits = program({name: inputs[name] for name in names})["member_logits"]
    run.check("member logits of torch.export = masked transformers", logits, masked, limit=SAME)
    run.command("export to a folder", "export", "hydra.st", "-o", "hydra/")
    model = AUTO[run.subject.task].from_pretrained(run.work / "hydra").eval()
    output = model(**inputs)
    run.check("member logits of the folder = masked transformers", output.member_logits, masked, limit=SAME)
    expected = masked.softmax(dim=2).mean(dim=0)
    run.check(
        "probabilities of the folder = masked transformers",
        output.logits.softmax(dim=1),
        expected,
        limit=EXACT,
    )


# -- results ------------------------------------------------------------------------------------------------------------


def page(work: Path, folder: Path) -> str:
    """Return the page with the results of all models in `work`, written by this run or an earlier run."""
    results = {
        subject.name: (subject, json.loads(path.read_text()))
        for subject in SUBJECTS
        if (path := work / subject.name / RESULTS).exists()
    }
    versions = ", ".join(
        f"{module.__name__} {module.__version__}" for module in (torch, transformers, onnxruntime)
    )
    removed = ", ".join(
        f"{x.removed} of {x.layers * x.heads} heads ({name})" for name, (x, _) in results.items()
    )
    sizes = ", ".join(
        f"{(folder / name / 'model.safetensors').stat().st_size / MEGABYTE:.0f} MB ({name})"
        for name in results
    )
    differences = {name: numbers["differences"] for name, (_, numbers) in results.items()}
    costs = {name: numbers["costs"] for name, (_, numbers) in results.items()}
    made = (
        f"Written by `benchmarks/real_check.py` on {datetime.now(UTC):%d %B %Y} with {versions}, Python {platform.python_version()} and "
        f"{torch.get_num_threads()} thread. `benchmarks/real_models.py` rebuilds the models, `benchmarks/real_check.py` checks them."
    )
    lines = [
        "# Three trained models, compared with transformers", "", made, "",
        f"Largest differences, relative to the largest value if above 1, and their limits. Members lack {removed}.", "",
        *table("check", differences, lambda row: f"{row[0]:.1e} (at most {row[1]:g})"), "",
        f"Seconds and peak memory of each command in a new process, including imports. Weights take {sizes}.", "",
        *table("command", costs, lambda row: f"{row[0]:.0f} s, {row[1] / MEGABYTE:.0f} MB"),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def table(
    title: str, columns: Mapping[str, Mapping[str, list[float]]], show: Callable[[list[float]], str]
) -> Iterator[str]:
    """Yield the lines of a table with a column per model. Cells are empty if a model lacks the row."""
    yield f"| {title} | " + " | ".join(columns) + " |"
    yield "|---|" + "---:|" * len(columns)
    for name in dict.fromkeys(name for column in columns.values() for name in column):
        yield (
            f"| {name} | "
            + " | ".join(show(column[name]) if name in column else "" for column in columns.values())
            + " |"
        )


def main() -> int:
    """Check all models. The exit code is 1 if a check fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder of the models")
    parser.add_argument(
        "--only", choices=[subject.name for subject in SUBJECTS], nargs="+", help="check these models only"
    )
    parser.add_argument("--work", type=Path, help="keep the files in this folder")
    parser.add_argument("--page", type=Path, help="write a page with the results")
    options = parser.parse_args()
    folder = build_all(options.folder.resolve())
    LIBRARY.logging.disable_progress_bar()
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).resolve()
        for subject in SUBJECTS:
            if options.only and subject.name not in options.only:
                continue
            (work / subject.name).mkdir(parents=True)
            run = Run(subject, Reference(subject, folder / subject.name), work / subject.name)
            check(run)
            run.save()
            failed += [subject.name] * run.failed
        if options.page:
            options.page.write_text(page(work, folder))
    print("all checks hold" if not failed else f"checks FAIL for {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
