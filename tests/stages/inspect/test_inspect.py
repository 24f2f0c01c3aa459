from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hydractl
from hydractl.checkpoint import TensorSpec, write_checkpoint
from hydractl.errors import CheckpointError, HydraError, InputError, ManifestError, UsageError
from hydractl.heads.masks import full_mask
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.head_mask import (
    HeadImportance,
    HeadMask,
    Removal,
    TowerHeads,
    TowerImportance,
    TowerKeep,
)
from hydractl.manifest.header import Architecture, Fate, FusePlan, Header, InputFile, Kind, Preprocess, Step
from hydractl.pruning.selection import ranks
from hydractl.reporting.file_contents import CheckpointReport, Predicted, SavedPredictions, Tally
from hydractl.stages.inspect.config import InspectConfig
from hydractl.stages.inspect.run import DocumentReport, run_inspect

SHA = "sha256:" + "ab" * 32
ARCHITECTURE = Architecture(
    library="timm",
    name="vit_tiny_patch16_224",
    family="timm-vit",
    config={"depth": 2},
    towers={"vision": TowerHeads(layers=2, num_heads=4, head_dim=2)},
    num_classes=3,
)
PREPROCESS = Preprocess(input_size=(1, 8, 8), mean=(0.5,), std=(0.5,))
SPECS = {
    "cls_token": TensorSpec("F32", (1, 1, 8)),
    "blocks.0.attn.qkv.weight": TensorSpec("F32", (24, 8)),
    "blocks.0.mlp.fc1.weight": TensorSpec("BF16", (16, 8)),
    "blocks.1.norm1.weight": TensorSpec("F32", (8,)),
    "norm.weight": TensorSpec("F32", (8,)),
    "head.weight": TensorSpec("F32", (3, 8)),
}


def header(kind: Kind = Kind.BASE, **changes) -> Header:
    values = {
        "kind": kind,
        "architecture": ARCHITECTURE,
        "masks": (full_mask(ARCHITECTURE.towers),),
        "preprocess": PREPROCESS,
        "labels": ("a", "b", "c"),
    }
    return Header(**(values | changes))


def hydra_header(**fates: Fate) -> Header:
    given = dict.fromkeys(SPECS, Fate.SHARED) | {
        "blocks.0.attn.qkv.weight": Fate.GROUPED,
        "blocks.0.mlp.fc1.weight": Fate.MERGED,
    }
    masks = tuple({"vision": TowerKeep(num_heads=4, keep=((i,), (0, 3)))} for i in range(2))
    made_by = Step(
        command="fuse",
        options={"mlp": "merge"},
        inputs=(InputFile(name="a.st", sha256=SHA), InputFile(name="b.st", sha256=SHA)),
    )
    plan = FusePlan(fates=given | fates, trunk=0, mlp="merge")
    return header(Kind.HYDRA, masks=masks, plan=plan, made_by=made_by)


def write(path: Path, about: Header | None, specs: dict[str, TensorSpec] = SPECS) -> Path:
    with path.open("wb") as file:
        write_checkpoint(file, specs, lambda name: [bytes(specs[name].size_bytes)], header=about)
    return path


def inspect_file(path: object, **options: bool) -> CheckpointReport:
    report = run_inspect(InspectConfig(files=(str(path),), **options))
    assert isinstance(report, CheckpointReport)
    return report


def together(amounts) -> Tally:
    found = list(amounts)
    return Tally(
        tensors=sum(a.tensors for a in found),
        parameters=sum(a.parameters for a in found),
        size_bytes=sum(a.size_bytes for a in found),
    )


SCORES = HeadImportance(
    method="random",
    objective=None,
    options={},
    model=Fingerprint(reference="base.st", sha256=SHA),
    architecture="vit",
    data={},
    towers={"vision": TowerImportance(scores=((0.1, 0.3), (0.3, 0.2)))},
    tool="hydractl 0",
)
MASK = HeadMask(towers={"vision": TowerKeep(num_heads=2, keep=((0,), ()))})


@pytest.mark.parametrize("about", [None, header(), hydra_header()], ids=["foreign", "base", "hydra"])
def test_every_tensor_is_counted_once_in_each_breakdown(tmp_path, about):
    report = inspect_file(write(tmp_path / "x.st", about), tensors=True)

    assert report.total.tensors == len(SPECS)
    assert report.total.size_bytes == sum(spec.size_bytes for spec in SPECS.values())
    assert together(report.dtypes.values()) == report.total
    assert together(report.parts.values()) == report.total
    assert report.listing is not None
    assert {line.name: (line.dtype, line.shape) for line in report.listing} == {
        name: (spec.dtype, spec.shape) for name, spec in SPECS.items()
    }
    if report.fused:
        assert together(a for fates in report.fused.amounts.values() for a in fates.values()) == report.total


def test_a_base_says_what_it_is(tmp_path):
    report = inspect_file(write(tmp_path / "x.st", header()))

    assert report.kind == "base"
    assert report.model.architecture == ARCHITECTURE
    assert report.model.labels == ("a", "b", "c")
    assert report.model.preprocess == PREPROCESS
    assert (report.model.heads_kept, report.model.heads_total) == ((8,), 8)
    assert list(report.parts) == ["embed", "attention", "mlp", "norm", "readout", "head"]
    assert report.listing is None
    assert report.paths == ()


def test_a_hydra_shows_plan_members_and_what_they_take_apart(tmp_path):
    report = inspect_file(write(tmp_path / "x.st", hydra_header()))

    assert report.fused is not None
    assert report.fused.members == ("a.st", "b.st")
    assert report.model.heads_kept == (3, 3)
    assert report.fused.amounts["attention"].keys() == {"grouped"}
    assert report.fused.amounts["mlp"].keys() == {"merged"}
    grouped = SPECS["blocks.0.attn.qkv.weight"].size_bytes
    assert report.fused.apart_bytes == grouped + 2 * (report.total.size_bytes - grouped)


def test_members_without_lineage_are_numbered(tmp_path):
    about = hydra_header().model_copy(update={"made_by": None})

    fused = inspect_file(write(tmp_path / "x.st", about)).fused

    assert fused is not None
    assert fused.members == ("member 0", "member 1")


def test_a_family_of_another_version_is_still_shown(tmp_path):
    other = ARCHITECTURE.model_copy(update={"family": "new"})

    report = inspect_file(write(tmp_path / "x.st", header(architecture=other)))

    assert report.kind == "base"
    assert "blocks.*.attn" in report.parts


def test_content_decides_not_the_name(tmp_path):
    write(tmp_path / "x.json", header())
    (tmp_path / "y.st").write_text(SCORES.to_json(), encoding="utf-8")

    assert inspect_file(tmp_path / "x.json").kind == "base"
    assert run_inspect(InspectConfig(files=(str(tmp_path / "y.st"),))) == DocumentReport(
        file=str(tmp_path / "y.st"), kind="scores", document=SCORES
    )


@pytest.mark.parametrize("document", [SCORES, MASK], ids=["scores", "head-mask"])
@pytest.mark.parametrize("before", ["", "\n \t"])
def test_documents(tmp_path, document, before):
    path = tmp_path / "x"
    path.write_text(before + document.to_json(), encoding="utf-8")

    report = run_inspect(InspectConfig(files=(str(path),)))

    assert isinstance(report, DocumentReport)
    assert (report.kind, report.document) == (document.kind_of_file, document)


def test_a_foreign_file_is_summed_up_by_name(tmp_path):
    specs = {f"encoder.layers.{i}.q.weight": TensorSpec("F16", (2, 2)) for i in range(3)} | {
        "bias": TensorSpec("F32", ())
    }
    report = inspect_file(write(tmp_path / "x.safetensors", None, specs))

    assert report.kind == "foreign"
    assert report.parts["encoder.layers.*"].tensors == 3
    assert report.parts["bias"] == Tally(tensors=1, parameters=1, size_bytes=4)
    assert report.hint is not None
    assert "--arch" in report.hint


CONFIG = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 3,
    "label_names": ["a", "b", "c"],
    "pretrained_cfg": {"input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.5] * 3, "url": ""},
}


@pytest.fixture
def folder(tmp_path):
    """A model in timm's layout, in two shards."""
    names = sorted(SPECS)
    parts = {"model-1.safetensors": names[:3], "model-2.safetensors": names[3:]}
    for name, held in parts.items():
        write(tmp_path / name, None, {k: SPECS[k] for k in held})
    index = {"weight_map": {k: name for name, held in parts.items() for k in held}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.mark.parametrize("reference", ["{}", "local-dir:{}", "{}/model.safetensors.index.json"])
def test_a_folder_of_timms(folder, reference):
    report = inspect_file(reference.format(folder))

    assert report.total.tensors == len(SPECS)
    assert report.kind == "foreign"
    assert report.model.name == "vit_tiny_patch16_224"
    assert report.model.num_classes == 3
    assert report.model.labels == ("a", "b", "c")
    assert report.model.preprocess is not None
    assert report.model.preprocess.input_size == (3, 224, 224)
    assert report.hint is None
    assert set(report.parts) == {"embed", "attention", "mlp", "norm", "readout", "head"}


@pytest.mark.parametrize(
    "config",
    [{}, {"architectures": ["BertModel"]}, CONFIG | {"pretrained_cfg": {"mean": "odd"}}, {"label_names": 3}],
)
def test_an_odd_configuration_is_no_crash(folder, config):
    (folder / "config.json").write_text(json.dumps(config))

    assert inspect_file(folder).model.preprocess is None


def through_fifo(path: Path, content: bytes, **options: bool):
    """Inspect a FIFO, and fail if the writer could not write everything."""
    os.mkfifo(path)
    broken = []

    def feed() -> None:
        try:
            path.write_bytes(content)
        except BrokenPipeError as error:
            broken.append(error)

    writer = threading.Thread(target=feed)
    writer.start()
    try:
        return run_inspect(InspectConfig(files=(str(path),), **options))
    finally:
        writer.join(timeout=100)
        assert not broken


@pytest.mark.parametrize("about", [None, header(), hydra_header()], ids=["foreign", "base", "hydra"])
def test_a_stream_tells_as_much_as_a_file_and_is_read_to_its_end(tmp_path, monkeypatch, about):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    # `tempfile` caches the value of TMPDIR.
    monkeypatch.setattr("tempfile.tempdir", None)
    big = SPECS | {"pos_embed": TensorSpec("F32", (1, 1 << 20, 2))}
    if about is not None and about.plan is not None:
        plan = about.plan.model_copy(update={"fates": about.plan.fates | {"pos_embed": Fate.SHARED}})
        about = about.model_copy(update={"plan": plan})
    content = write(tmp_path / "x.st", about, big).read_bytes()
    expected = inspect_file(tmp_path / "x.st", tensors=True)

    found = through_fifo(tmp_path / "fifo", content, tensors=True)

    assert isinstance(found, CheckpointReport)
    assert found.listing == expected.listing
    assert (found.model, found.fused, found.lineage) == (expected.model, expected.fused, expected.lineage)
    assert not any((tmp_path / "tmp").iterdir())


class Trickle(io.RawIOBase):
    """Pipe with at most one byte per read."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            found, self.content = self.content, b""
            return found
        found, self.content = self.content[: min(size, 1)], self.content[min(size, 1) :]
        return found


@pytest.mark.parametrize("kind", ["checkpoint", "document"])
def test_standard_input_in_small_pieces(tmp_path, monkeypatch, kind):
    content = (
        write(tmp_path / "x.st", header()).read_bytes() if kind == "checkpoint" else MASK.to_json().encode()
    )
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Trickle(content)))

    report = run_inspect(InspectConfig(files=("-",)))

    assert report.file == "-"
    assert report.kind == ("base" if kind == "checkpoint" else "head-mask")


def broken_files(folder: Path) -> dict[str, tuple[bytes, type[HydraError], str]]:
    good = write(folder / "good", header()).read_bytes()
    length = int.from_bytes(good[:8], "little")
    text = json.loads(good[8 : 8 + length])

    def edited(**changes: object) -> bytes:
        about = json.loads(text["__metadata__"]["hydractl"]) | changes
        entry = text | {"__metadata__": {"hydractl": json.dumps(about)}}
        raw = json.dumps(entry).encode()
        return len(raw).to_bytes(8, "little") + raw + good[8 + length :]

    mask = json.loads(MASK.to_json())
    return {
        "empty": (b"", InputError, "is empty"),
        "noise": (b"hello, world, this is no file", InputError, "neither a safetensors file nor a JSON file"),
        "pickle": (b"\x80\x04\x95abcdefghij", CheckpointError, "is a pickle"),
        "archive": (b"PK\x03\x04" + b"x" * 40, CheckpointError, "is a pickle or an archive"),
        "cut": (good[:-1], CheckpointError, "it may be truncated"),
        "cut in the header": (good[:100], CheckpointError, "are too few for its header"),
        "five bytes": (good[:5], CheckpointError, "are too few for its header"),
        "no JSON in the header": (good[:8] + b"x" * (len(good) - 8), CheckpointError, "not a valid safetensors"),
        "unknown kind": (edited(kind="chimera"), CheckpointError, "kind"),
        "unknown key": (edited(extra=1), CheckpointError, "extra is not a known key"),
        "JSON cut": (b'{"schema": "hydractl.head-mask/1"', ManifestError, "is not JSON"),
        "JSON of others": (b'{"model_type": "vit", "schema": 3}', ManifestError, "has the unknown schema"),
        "JSON without schema": (b"{}", ManifestError, "unknown schema null"),
        "another version": (b'{"schema": "hydractl.scores/9"}', ManifestError, "hydractl.scores/9"),
        "a key twice": (b'{"schema": 1, "schema": 2}', ManifestError, "appears twice"),
        "unknown JSON key": (json.dumps(mask | {"extra": 1}).encode(), ManifestError, "extra is not a known key"),
        "not UTF-8": (b'{"schema": "\xff"}', ManifestError, "is not UTF-8"),
        "JSON too deep": (b'{"schema": ' + b"[" * 100_000, ManifestError, "is not JSON: is nested more than 200 levels deep"),
    }  # fmt: skip


CASES = (
    "empty", "noise", "pickle", "archive", "cut", "cut in the header", "five bytes", "no JSON in the header",
    "unknown kind", "unknown key", "JSON cut", "JSON of others", "JSON without schema", "another version", "a key twice",
    "unknown JSON key", "not UTF-8", "JSON too deep",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("streamed", [False, True], ids=["file", "stream"])
def test_a_broken_file_is_one_message_that_names_it(tmp_path, case, streamed):
    content, kind, text = broken_files(tmp_path)[case]
    path = tmp_path / "broken"

    if not streamed:
        path.write_bytes(content)

    with pytest.raises(kind) as caught:
        through_fifo(path, content) if streamed else run_inspect(InspectConfig(files=(str(path),)))

    assert caught.value.exit_code == 3
    assert caught.value.message.startswith(str(path))
    assert text in caught.value.message
    assert "header.safetensors" not in caught.value.message


def test_the_table_of_broken_files_is_complete(tmp_path):
    assert set(CASES) == set(broken_files(tmp_path))


@pytest.mark.parametrize(
    ("file", "kind", "text"),
    [
        ("none.st", CheckpointError, "no such file or folder"),
        ("org/name", CheckpointError, "no such file or folder"),
        ("hf-hub:org/name", UsageError, "`inspect` reads only local files"),
        ("arch:vit_tiny_patch16_224", UsageError, "`inspect` reads only local files"),
        ("m.json", UsageError, "`--tensors` is for checkpoints"),
        (".", CheckpointError, "no safetensors weights"),
    ],
)
def test_what_cannot_be_inspected(tmp_path, monkeypatch, file, kind, text):
    monkeypatch.chdir(tmp_path)
    Path("m.json").write_text(MASK.to_json(), encoding="utf-8")

    with pytest.raises(kind, match=text):
        run_inspect(InspectConfig(files=(file,), tensors=True))


@pytest.mark.parametrize(
    ("file", "way"),
    [
        ("hf-hub:org/name", "hf download ID"),
        ("arch:vit::depth=2", "`hydractl prune arch:vit::depth=2 "),
        ("arch:vit::patch_size=[8,12]", "`hydractl prune 'arch:vit::patch_size=[8,12]' "),
    ],
)
def test_what_is_no_file_yet_is_told_how_it_becomes_one(file, way):
    with pytest.raises(UsageError) as caught:
        InspectConfig(files=(file,))

    assert way in str(caught.value.hint)


def test_a_plan_and_tensors_that_differ(tmp_path):
    write(tmp_path / "x.st", hydra_header(other=Fate.SHARED))

    with pytest.raises(CheckpointError, match="`other` exists in only one of the file and its fuse plan"):
        inspect_file(tmp_path / "x.st")


@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_ranks_are_a_permutation_that_follows_the_scores(layers, heads, data):
    numbers = st.integers(-3, 3).map(float)
    table = tuple(tuple(data.draw(numbers) for _ in range(heads)) for _ in range(layers))
    scores = SCORES.model_copy(update={"towers": {"vision": TowerImportance(scores=table)}})

    found = ranks(scores)["vision"]

    assert sorted(rank for row in found for rank in row) == list(range(1, layers * heads + 1))
    first_to_go = [(score, i, j) for i, row in enumerate(table) for j, score in enumerate(row)]
    gone = sorted(first_to_go, key=lambda head: -found[head[1]][head[2]])
    assert gone == sorted(first_to_go)  # among equal scores, the lower head is removed first


@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_a_greedy_method_ranks_what_it_removed_and_nothing_else(layers, heads, data):
    order = data.draw(st.permutations([(i, j) for i in range(layers) for j in range(heads)]))
    gone = order[: data.draw(st.integers(0, len(order)))]
    removals = tuple(Removal(tower="vision", layer=i, head=j, objective=0.5) for i, j in gone)
    towers = {"vision": TowerImportance(scores=((0.0,) * heads,) * layers)}

    found = ranks(SCORES.model_copy(update={"towers": towers, "removals": removals}))["vision"]

    ranked = {(i, j): rank for i, row in enumerate(found) for j, rank in enumerate(row) if rank is not None}
    assert sorted(ranked, key=lambda head: -ranked[head]) == gone
    assert sorted(ranked.values()) == list(range(len(order) - len(gone) + 1, len(order) + 1))


PREDICTIONS = {
    "log_probs/base/id": TensorSpec("F32", (1, 20, 3)),
    "log_probs/Deep ensemble/id": TensorSpec("F32", (2, 20, 3)),
    "log_probs/base/noise": TensorSpec("F32", (1, 8, 3)),
    "labels/id": TensorSpec("I64", (20,)),
}


def test_predictions_are_recognised(tmp_path):
    report = inspect_file(write(tmp_path / "p.safetensors", None, PREDICTIONS))

    assert (report.kind, report.hint) == ("predictions", None)
    assert report.predictions == SavedPredictions(
        log_probs=(
            Predicted(row="Deep ensemble", data="id", members=2, samples=20, classes=3),
            Predicted(row="base", data="id", members=1, samples=20, classes=3),
            Predicted(row="base", data="noise", members=1, samples=8, classes=3),
        ),
        labels={"id": 20},
    )


def test_what_eval_saves_is_recognised(tmp_path):
    import torch

    from hydractl.metrics.per_sample import Responses
    from hydractl.prediction.run_models import write_predictions

    predictions = {"base": {"id": Responses(torch.zeros(1, 4, 3))}}
    labels = {"id": torch.zeros(4, dtype=torch.int64)}
    with (tmp_path / "p.st").open("wb") as file:
        write_predictions(file, predictions, labels, with_logits=False)

    assert inspect_file(tmp_path / "p.st").kind == "predictions"


def test_predictions_that_tell_logits_are_recognised(tmp_path):
    more = {"logsumexp/base/id": TensorSpec("F32", (1, 20))}

    report = inspect_file(write(tmp_path / "p.safetensors", None, PREDICTIONS | more))

    assert (
        report.predictions == inspect_file(write(tmp_path / "q.safetensors", None, PREDICTIONS)).predictions
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": TensorSpec("F32", (3,))},
        {"log_probs/base/more/id": TensorSpec("F32", (1, 20, 3))},
        {"log_probs/other/id": TensorSpec("F32", (20, 3))},
        {"labels/noise": TensorSpec("I64", (8, 1))},
    ],
)
def test_what_is_only_like_predictions_stays_foreign(tmp_path, changes):
    assert inspect_file(write(tmp_path / "p.st", None, PREDICTIONS | changes)).kind == "foreign"
    assert (
        inspect_file(write(tmp_path / "q.st", None, {"labels/id": PREDICTIONS["labels/id"]})).kind
        == "foreign"
    )
    assert inspect_file(write(tmp_path / "r.st", None, {})).kind == "foreign"


def test_ranks_go_over_all_towers():
    towers = {"vision": TowerImportance(scores=((0.1, 0.9),)), "text": TowerImportance(scores=((0.5,),))}

    assert ranks(SCORES.model_copy(update={"towers": towers})) == {"vision": ((3, 1),), "text": ((2,),)}


SCRIPT = """
import sys
from hydractl.stages.inspect.config import InspectConfig
from hydractl.stages.inspect.run import run_inspect
run_inspect(InspectConfig(files=(sys.argv[1],), tensors=True))
loaded = {"torch", "timm", "transformers", "numpy", "safetensors"} & set(sys.modules)
print(sorted(loaded))
"""


def test_a_file_of_two_gigabytes_needs_no_torch(tmp_path):
    path = write(tmp_path / "x.st", None)
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    table = json.loads(raw[8 : 8 + length])
    end = len(raw) - 8 - length
    table["big"] = {"dtype": "F32", "shape": [1 << 29], "data_offsets": [end, end + (1 << 31)]}
    text = json.dumps(table).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + end + (1 << 31))
    environment = {**os.environ, "PYTHONPATH": str(Path(hydractl.__file__).parents[1])}

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)], env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
