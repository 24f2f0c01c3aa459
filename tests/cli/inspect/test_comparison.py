from __future__ import annotations

import json

import pytest

MASKS = ("m-0.mask.json", "m-1.mask.json")


def flat(text: str) -> str:
    return " ".join(text.split())


def test_masks_side_by_side(call, work):
    seen = call("inspect", *MASKS)
    apart = [call("inspect", name).out for name in MASKS]

    assert seen.err == ""
    assert "m-0.mask.json head mask 4 of 8" in flat(seen.out)
    assert "first second overlap by chance Jaccard JSD" in flat(seen.out)
    for layer in range(2):
        rows = [next(x for x in text.splitlines() if x.startswith(f"    {layer}   "))[8:] for text in apart]
        row = next(line for line in seen.out.splitlines() if line.startswith(f"    {layer}   "))
        assert flat(row) == f"{layer} {rows[0]} {rows[1]}"


def test_the_question_of_the_paper_takes_one_command(call, work):
    """How much do Taylor's and the circuit's removed heads overlap, and how different are their layers?"""
    raw = json.loads((work / "scores.json").read_text())
    taylor = {
        **raw,
        "method": "taylor",
        "removals": None,
        "baseline": None,
        "objective": None,
        "options": {"keep": 3},
    }
    taylor["towers"]["vision"]["scores"] = [[0.1, 0.2, 0.8, 0.9], [0.7, 0.6, 0.5, 0.4]]
    (work / "taylor.json").write_text(json.dumps(taylor))
    raw["options"]["removals"], raw["removals"] = 4, raw["removals"][:4]
    (work / "circuit.json").write_text(json.dumps(raw))

    seen = call("inspect", "taylor.json", "circuit.json")

    assert "taylor.json scores by taylor --keep 3 --per-layer, as in the scores 2 of 8" in flat(seen.out)
    assert "circuit.json scores by circuit --remove 4, as in the scores 4 of 8" in flat(seen.out)
    assert "circuit.json ranks only 4 heads; the other 4 are tied" in seen.out
    common = len(
        {(r["layer"], r["head"]) for r in raw["removals"]} & {(0, 0), (1, 3)}
    )  # the least of each layer
    assert f"taylor.json circuit.json {common / 2:.3f} 0.500 {common / (6 - common):.3f}" in flat(seen.out)
    assert "Spearman Kendall" in flat(seen.out)
    assert "×" in seen.out
    assert "█" in seen.out


def test_a_hydra_is_its_members(call, work):
    seen = call("inspect", "hydra.st", "m-0.st")

    assert seen.out.count("hydra.st: m-0.st") > 1
    assert "hydra.st: m-0.st m-0.st 1.000 0.500 1.000 0.000" in flat(seen.out)


def test_a_base_removes_nothing(call, work):
    assert "base.st m-0.st 0.000 0.000 0.000 -" in flat(call("inspect", "base.st", "m-0.st").out)


def test_json_has_every_number(call, work):
    found = json.loads(call("inspect", "scores.json", *MASKS, "--remove", "4", "--json").out)

    assert [c["name"] for c in found["choices"]] == ["scores.json", *MASKS]
    assert found["choices"][0]["cut"] == {"option": "--remove 4", "source": "asked"}
    assert (
        found["choices"][1]["mask"]["vision"]["keep"]
        == json.loads((work / MASKS[0]).read_text())["towers"]["vision"]["keep"]
    )
    assert [(p["first"], p["second"]) for p in found["pairs"]] == [
        ("scores.json", MASKS[0]),
        ("scores.json", MASKS[1]),
        MASKS,
    ]
    keys = {"overlap", "chance_overlap", "jaccard", "jsd_nats", "spearman", "kendall"}
    assert all(p["overall"].keys() == p["towers"]["vision"].keys() == keys for p in found["pairs"])
    assert found["plot"] is None


def test_quiet_prints_the_figure_alone(call, work):
    assert call("inspect", *MASKS, "-q").out == ""
    seen = call("inspect", *MASKS, "-q", "--plot", "heads.png")

    assert (seen.code, seen.out, seen.err) == (0, "heads.png\n", "")
    assert (work / "heads.png").read_bytes().startswith(b"\x89PNG")


def test_a_figure_of_one_file(call, work):
    seen = call("inspect", "scores.json", "--plot", "heads.svg")

    assert seen.out.endswith("Wrote heads.svg\n")
    assert "first" not in seen.out
    assert "█" in seen.out


def test_signs_that_any_terminal_has(call, work, monkeypatch):
    from rich.console import ConsoleOptions

    monkeypatch.setattr(ConsoleOptions, "ascii_only", True)

    out = call("inspect", "scores.json", "m-0.mask.json").out

    assert out.isascii()
    assert "scores: x removed; :+*# kept, from the lowest quarter" in out


BAD = {
    "a report": (("m-0.st", "report.json"), 3, "report.json: is a report, which selects no heads"),
    "another shape": (
        ("m-0.st", "other.json"), 3, "other.json: is for vision 1x2 heads, but m-0.st is for vision 2x4",
    ),
    "a figure that is there": (("m-0.st", "--plot", "there.png"), 6, "there.png: already exists"),
    "too large a budget": (("m-0.st", "scores.json", "--remove", "9"), 2, "cannot remove 9 heads"),
    "no scores": (("m-0.st", "m-1.st", "--remove", "1"), 2, "a budget turns scores into masks, but no file has scores"),
    "another ending": (("m-0.st", "none.st", "--plot", "x.jpg"), 2, "a figure must have the suffix .png or .svg"),
    "missing": (("m-0.st", "none.st"), 3, "none.st: no such file"),
}  # fmt: skip


@pytest.mark.parametrize(("argv", "code", "text"), BAD.values(), ids=BAD)
def test_bad_input_is_one_message_and_leaves_nothing(call, work, argv, code, text):
    from hydractl.manifest.head_mask import HeadMask, TowerKeep

    other = HeadMask(towers={"vision": TowerKeep(num_heads=2, keep=((0,),))})
    (work / "other.json").write_text(other.to_json())
    (work / "there.png").write_text("")
    report = call("eval", "base.st", "--data", "digits::split=test,classes=0-6,limit=7", "--no-latency", "--bootstrap",
                  "0", "--device", "cpu", "-q", "-o", "report.json") if text.startswith("report") else None  # fmt: skip
    assert report is None or report.code == 0
    before = set(work.iterdir())

    seen = call("inspect", *argv)

    assert (seen.code, seen.out) == (code, "")
    assert seen.err.startswith("error: ")
    assert text in seen.err
    assert set(work.iterdir()) == before
