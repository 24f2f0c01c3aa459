from __future__ import annotations

import json
from pathlib import Path

import pytest

from hydractl.checkpoint import Checkpoint
from hydractl.cli.commands import look as command
from hydractl.cli.output import console
from hydractl.manifest.header import InputFile, Step, Tokenization
from hydractl.training.resume import Metrics, Position, Snapshot, StateFolder

GOLDEN = Path(__file__).parents[2] / "golden"


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_base(call, work):
    seen = call("inspect", "base.st")

    assert seen.err == ""
    assert seen.out.startswith("base.st: base\n")
    shown = flat(seen.out)
    assert "architecture vit_tiny_patch16_224" in shown
    assert "tower vision 2 layers of 4 heads, each 8 wide" in shown
    assert "classes 7" in shown
    assert "preprocessing 1x8x8, bicubic, crop 1 center, mean 0.5, std 0.5" in shown
    assert "dtypes F32 (32 tensors)" in shown
    assert "parameters 26.44 k (26,439)" in shown
    assert "heads 8 of 8 kept" in shown
    assert "in all 32 26.44 k 105.76 kB" in shown
    assert "■" not in seen.out


def test_the_state_of_an_unfinished_run(call, work):
    best = Metrics(accuracy=0.5, nll=1.25)
    at = Position(candidate=1, step=7, best=best, best_step=4)
    StateFolder(work / "out.st.state", f"sha256:{'0' * 64}").save(Snapshot(position=at))

    seen = call("inspect", "out.st.state")

    assert (seen.code, seen.err) == (0, "")
    shown = flat(seen.out)
    assert "out.st.state: state of an unfinished run, after 7 steps with learning rate 2 of the grid" in shown
    assert "accuracy 0.5000, NLL 1.2500, at step 4" in shown
    assert (
        "hint: the same command resumes this run; `--force` discards it to start with other options" in shown
    )
    assert json.loads(call("inspect", "out.st.state", "--json").out)["document"]["position"]["step"] == 7


def test_a_member_is_mapped(call, work):
    seen = call("inspect", "m-0.st")
    keep = json.loads((work / "m-0.mask.json").read_text())["towers"]["vision"]["keep"]

    assert "heads 4 of 8 kept" in flat(seen.out)
    for layer, heads in enumerate(keep):
        row = "".join("■" if head in heads else "·" for head in range(4))
        assert f"    {layer}   {row} {len(heads)}\n" in seen.out
    assert "m-0.st  prune keep_per_layer=2 member=0 pool=7 seed=0 strategy=sample" in seen.out
    assert "├── base.st  sha256:" in seen.out


def test_a_mask_has_the_map_of_its_member(call, work):
    member, mask = call("inspect", "m-1.st").out, call("inspect", "m-1.mask.json").out

    def rows(text: str) -> list[str]:
        return [line for line in text.splitlines() if "■" in line]

    assert rows(member) == rows(mask) != []
    assert mask.startswith("m-1.mask.json: head mask, 4 of 8 heads kept\n")
    assert "strategy sample, keep_per_layer=2 pool=7" in flat(mask)


def test_a_mask_written_by_hand(call, work):
    raw = json.loads((work / "m-0.mask.json").read_text())
    hand = {key: raw[key] for key in ("schema", "towers")}
    (work / "hand.json").write_text(json.dumps(hand))

    assert "origin not recorded (may be written by hand)" in flat(call("inspect", "hand.json").out)


def test_a_hydra(call, work):
    seen = call("inspect", "hydra.st")

    shown = flat(seen.out)
    assert seen.out.startswith("hydra.st: hydra of 3 members\n")
    assert "heads 4 + 4 + 4 of 8 kept" in shown
    assert "trunk 0 of 2 blocks computed once" in shown
    assert "verified=true" in shown
    assert "attention grouped 6" in shown
    assert "mlp shared 8" in shown
    assert "layer m-0.st m-1.st m-2.st" in shown
    members = [call("inspect", f"m-{i}.st").out for i in range(3)]
    for layer in range(2):
        rows = [next(x for x in text.splitlines() if x.startswith(f"    {layer}   "))[8:] for text in members]
        assert f"    {layer}   {'   '.join(rows)}\n" in seen.out
    assert seen.out.count("scores.json  sha256:") == 3


def test_scores(call, work):
    seen = call("inspect", "scores.json")

    assert seen.out.startswith("scores.json: scores by circuit\n")
    assert "objective avg" in flat(seen.out)
    assert "data id base.st, sha256:" in flat(seen.out)
    assert "layer h0 h1 h2 h3\n    0  2  8  5  6\n    1  7  1  3  4\n" in seen.out
    assert "1. layer 0 head 1: 0.9000\n" in seen.out
    assert "8. layer 1 head 1: 0.7906\n" in seen.out


def test_heads_that_a_circuit_run_kept_have_no_rank(call, work):
    raw = json.loads((work / "scores.json").read_text())
    raw["removals"] = raw["removals"][:3]
    (work / "short.json").write_text(json.dumps(raw))

    seen = call("inspect", "short.json")

    assert "Ranks of the heads of tower vision: 8 was removed first, - was kept\n" in seen.out
    assert "layer h0 h1 h2 h3\n    0  -  8  -  6\n    1  7  -  -  -\n" in seen.out


@pytest.mark.parametrize("file", ["base.st", "hydra.st", "scores.json", "m-0.mask.json"])
def test_quiet_says_nothing_of_a_sound_file(call, work, file):
    seen = call("inspect", "-q", file)

    assert (seen.code, seen.out, seen.err) == (0, "", "")


def test_quiet_says_what_is_wrong(call, work):
    (work / "cut.st").write_bytes((work / "base.st").read_bytes()[:-100])

    seen = call("inspect", "-q", "cut.st")

    assert (seen.code, seen.out) == (3, "")
    assert seen.err.startswith("error: cut.st: ")


def test_predictions(call, work):
    data = "digits::split=test,classes=0-6,limit=14"
    argv = ["--no-latency", "--bootstrap", "0", "--device", "cpu", "--far", "noise=noise::limit=8", "-q"]
    assert call("eval", "hydra.st", "--data", data, *argv, "--save-predictions", "p.safetensors").code == 0

    seen = call("inspect", "p.safetensors")

    assert seen.out.startswith("p.safetensors: predictions\n")
    assert "row data members samples classes labels" in flat(seen.out)
    assert "hydra id 3 14 7 yes" in flat(seen.out)
    assert "hydra noise 3 8 7 no" in flat(seen.out)
    assert "hint" not in seen.out
    assert "labels/id" in call("inspect", "p.safetensors", "--tensors").out


def test_what_members_share_is_told_once_in_the_lineage(capsys):
    from hydractl.cli.commands.look import lineage_tree

    digests = [f"sha256:{i:064d}" for i in range(4)]
    trained = Step(
        command="finetune", options={"lr": 0.001}, inputs=(InputFile(name="random", sha256=digests[0]),)
    )
    base = InputFile(name="base.st", sha256=digests[1], made_by=trained)
    members = tuple(
        InputFile(
            name=f"m-{i}.st", sha256=digests[2 + i], made_by=Step(command="prune", options={}, inputs=(base,))
        )
        for i in range(2)
    )

    console().print(lineage_tree("hydra.st", Step(command="fuse", options={}, inputs=members)))

    out = capsys.readouterr().out
    assert out.count("finetune lr=0.001") == out.count("random") == out.count("(as above)") == 1
    assert out.count("base.st") == 2
    assert out.index("finetune lr=0.001") < out.index("base.st  sha256:000000000000  (as above)")


def test_a_report_is_shown_as_eval_shows_it(call, capsys):
    from hydractl.cli.commands.measure import show_report as render
    from hydractl.manifest.report import Report

    path = GOLDEN / "report-1.json"
    render(Report.read(path), console())
    expected = capsys.readouterr().out

    assert call("inspect", path).out == expected


@pytest.mark.parametrize("file", ["base.st", "m-0.st", "hydra.st"])
def test_json_of_a_checkpoint(call, work, file):
    found = json.loads(call("inspect", file, "--json", "--tensors").out)

    assert found["file"] == file
    assert found["kind"] == {"b": "base", "m": "member", "h": "hydra"}[file[0]]
    assert found["model"]["name"] == "vit_tiny_patch16_224"
    assert len(found["listing"]) == found["total"]["tensors"] == 32
    assert (found["fused"] is not None) == (file == "hydra.st")


@pytest.mark.parametrize(("file", "kind"), [("scores.json", "scores"), ("m-0.mask.json", "head-mask")])
def test_json_of_a_document_holds_the_document(call, work, file, kind):
    found = json.loads(call("inspect", file, "--json").out)

    assert found == {"file": file, "kind": kind, "document": json.loads((work / file).read_text())}


def test_listing_tensors(call, work):
    seen = call("inspect", "hydra.st", "--tensors")

    assert "blocks.0.attn.qkv.bias attention grouped F32 " in flat(seen.out)
    assert "head.bias head shared F32 7 28 B" in flat(seen.out)


def test_a_long_table_is_cut(call, work, monkeypatch):
    monkeypatch.setattr(command, "LINES_SHOWN", 3)
    monkeypatch.setattr(command, "PARTS_SHOWN", 2)
    count = len(Checkpoint.open(work / "base.st").specs)

    seen = flat(call("inspect", "base.st", "--tensors").out)

    assert f"{count - 3} tensors more: `--json` lists all" in seen
    assert " parts more in all " in seen


def test_a_base_has_no_column_of_fates(call, work):
    seen = call("inspect", "base.st", "--tensors")

    assert "head.bias head F32 7 28 B" in flat(seen.out)
    assert "fate" not in seen.out


def test_a_foreign_file_says_what_to_type(call, work):
    raw = (work / "base.st").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    table = json.loads(raw[8 : 8 + length])
    del table["__metadata__"]
    text = json.dumps(table).encode()
    (work / "bare.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])

    seen = call("inspect", "bare.safetensors")

    assert seen.out.startswith("bare.safetensors: foreign\n")
    assert "architecture not recorded" in flat(seen.out)
    assert (
        "hint: it does not name its architecture; give it: `hydractl score bare.safetensors --arch NAME"
        in seen.out
    )


def test_many_labels_are_shortened():
    from hydractl.cli.commands.look import _labelled

    assert _labelled(3, ("a", "b", "c")) == "3: a, b, c"
    assert _labelled(1000, [str(i) for i in range(1000)]).endswith("18, 19, ... and 980 more")


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [
        (None, "text, no tokenizer yet"),
        ("{}", "text, its own tokenizer with 5 tokens (the model knows 90)"),
    ],
)
def test_what_a_text_model_takes(tokenizer, text):
    from hydractl.cli.commands.look import _preprocess

    preprocess = Tokenization(tokenizer=tokenizer, max_length=16, pad_id=0, vocab_size=90)
    found = _preprocess(preprocess, 5 if tokenizer else None)

    assert found == f"{text}, at most 16 tokens per text; input_ids, attention_mask"
