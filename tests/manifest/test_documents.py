"""JSON documents: strict, canonical, and readable in all later versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hydractl.errors import ManifestError
from hydractl.heads.masks import full_mask
from hydractl.manifest.document import Document, Fingerprint, SealedDocument
from hydractl.manifest.head_mask import (
    HeadImportance,
    HeadMask,
    MaskOrigin,
    Removal,
    TowerImportance,
    TowerKeep,
)
from hydractl.manifest.header import Header, Sidecar, Step, check_mask_fits
from hydractl.manifest.report import DOCUMENTS, Report
from support.builders import base, sha

GOLDEN = Path(__file__).parents[1] / "golden"
GOLDENS = {"scores": HeadImportance, "head-mask": HeadMask, "checkpoint": Header}


def golden(name: str) -> dict:
    return json.loads((GOLDEN / f"{name}-1.json").read_text(encoding="utf-8"))


# --- laws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_files_are_read_for_ever_and_dumped_byte_for_byte(name):
    text = (GOLDEN / f"{name}-1.json").read_text(encoding="utf-8")
    assert GOLDENS[name].from_json(text, place="golden").to_json() == text


@pytest.mark.parametrize(
    ("name", "document"), [("scores", HeadImportance), ("checkpoint", Header), ("report", Report)]
)
def test_names_of_before_are_read_and_written_as_those_of_today(name, document):
    """The earlier keys `asked` and `typed` become `config_digest` and `argv`; both keys at once are an error."""
    before, today = (
        (GOLDEN / f"{name}-{version}.json").read_text(encoding="utf-8") for version in ("before-2", "2")
    )

    assert document.from_json(today, place="golden").to_json() == today
    assert document.from_json(before, place="golden").to_json() == today
    with pytest.raises(ManifestError, match="asked"):
        document.from_json(
            today.replace('"config_digest":', f'"asked": "sha256:{"00" * 32}", "config_digest":'),
            place="golden",
        )


def test_golden_values_arrive():
    scores = HeadImportance.read(GOLDEN / "scores-1.json")
    assert scores.towers["vision"].scores == ((0.25, -1.5), (3.0, 1e-07))
    assert scores.removals is not None
    assert [(r.layer, r.head, r.objective) for r in scores.removals] == [(0, 1, 0.95), (1, 1, 0.9)]
    assert scores.data["id"].count == 211
    assert scores.options["quick"] is False
    assert scores.options["none"] is None
    mask = HeadMask.read(GOLDEN / "head-mask-1.json")
    assert mask.towers["vision"].keep == ((0, 1, 3), (), (2,))
    assert mask.origin is not None
    assert (mask.origin.seed, mask.origin.member) == (3, 1)


layers = st.integers(1, 5).flatmap(
    lambda h: st.builds(
        lambda keep: TowerKeep(num_heads=h, keep=tuple(tuple(sorted(k)) for k in keep)),
        st.lists(st.sets(st.integers(0, h - 1)), min_size=1, max_size=5),
    )
)
words = st.text(max_size=8).filter(lambda s: s.isprintable())
options = st.dictionaries(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.:@+-]{0,7}", fullmatch=True),
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
    | st.lists(words, max_size=2).map(tuple) | st.lists(st.integers(), max_size=2).map(tuple),
    max_size=4,
)  # fmt: skip
masks = st.builds(
    HeadMask,
    towers=st.dictionaries(words, layers, min_size=1, max_size=2),
    architecture=st.none() | words,
    base=st.none() | words.map(sha),
    origin=st.none() | st.builds(MaskOrigin, strategy=words, budget=options, seed=st.none() | st.integers()),
)


@given(mask=masks)
@settings(max_examples=60)
def test_mask_round_trip(mask):
    text = mask.to_json()
    again = HeadMask.from_json(text, place="m")
    assert again == mask
    assert again.to_json() == text
    assert text.endswith("}\n")
    assert list(json.loads(text)) == sorted(json.loads(text))


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    table=st.tuples(st.integers(1, 3), st.integers(1, 3)).flatmap(
        lambda s: st.lists(st.lists(finite, min_size=s[1], max_size=s[1]), min_size=s[0], max_size=s[0])
    ),
    settings_=options,
    baseline=st.none() | finite,
)
@settings(max_examples=60)
def test_scores_round_trip(table, settings_, baseline):
    scores = HeadImportance(
        method="taylor", objective=None, options=settings_, architecture="a", data={}, tool="t",
        model=Fingerprint(reference="m", sha256=sha("m")), baseline=baseline,
        towers={"vision": TowerImportance(scores=tuple(map(tuple, table)))},
        removals=(Removal(tower="vision", layer=0, head=0, objective=0.5),),
    )  # fmt: skip
    text = scores.to_json()
    assert HeadImportance.from_json(text, place="s") == scores
    assert HeadImportance.from_json(text, place="s").to_json() == text
    assert HeadImportance.from_json(text, place="s").digest() == scores.digest()


def test_key_order_and_white_space_do_not_change_what_is_read():
    raw = golden("head-mask")
    shuffled = json.dumps(dict(reversed(raw.items())), indent=7)
    assert (
        HeadMask.from_json(shuffled, place="m").digest()
        == HeadMask.read(GOLDEN / "head-mask-1.json").digest()
    )


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_documents_are_frozen_and_have_a_schema(kind):
    document = DOCUMENTS[kind]
    assert document.kind_of_file == kind
    assert document.schema_name() == f"hydractl.{kind}/1"
    schema = document.model_json_schema(by_alias=True)
    assert schema["additionalProperties"] is False
    assert "schema" in schema["properties"]


def test_a_document_cannot_be_changed():
    mask = HeadMask.read(GOLDEN / "head-mask-1.json")
    with pytest.raises(ValidationError):
        mask.architecture = "other"


def test_a_mask_of_two_keys_written_by_hand_is_enough():
    text = '{"schema": "hydractl.head-mask/1", "towers": {"vision": {"num_heads": 2, "keep": [[0], []]}}}'
    assert HeadMask.from_json(text, place="m").towers["vision"].keep == ((0,), ())


# --- errors ----------------------------------------------------------------------------------------------------------


def at(path, value):
    """Return an edit: set `value` at a path of keys and indices; `...` deletes."""

    def edit(raw):
        *parents, last = path
        for part in parents:
            raw = raw[part]
        if value is ...:
            del raw[last]
        else:
            raw[last] = value

    return edit


KEEP = ("towers", "vision", "keep")
BAD_MASKS = {
    "unknown-key": (at(["extra"], 1), "extra is not a known key"),
    "unknown-nested": (at(["towers", "vision", "extra"], 1), "towers.vision.extra is not a known key"),
    "unknown-origin": (at(["origin", "extra"], 1), "origin.extra is not a known key"),
    "missing": (at(["towers"], ...), "towers is missing"),
    "missing-nested": (at(["towers", "vision", "keep"], ...), "towers.vision.keep is missing"),
    "no-towers": (at(["towers"], {}), "towers: "),
    "no-layers": (at(KEEP, []), "towers.vision.keep: "),
    "wrong-type": (at(KEEP, "all"), "towers.vision.keep: Input should be a valid"),
    "text-for-number": (at(["towers", "vision", "num_heads"], "4"), "towers.vision.num_heads: Input should be a valid integer"),
    "float-for-number": (at(["towers", "vision", "num_heads"], 4.0), "towers.vision.num_heads: Input should be a valid integer"),
    "bool-for-number": (at(["towers", "vision", "num_heads"], value=True), "towers.vision.num_heads: Input should be a valid integer"),
    "bool-for-head": (at([*KEEP, 0, 0], value=False), "towers.vision.keep[0][0]: Input should be a valid integer"),
    "text-for-head": (at([*KEEP, 2, 0], "2"), "towers.vision.keep[2][0]: Input should be a valid integer"),
    "negative-head": (at([*KEEP, 0, 0], -1), "towers.vision.keep[0][0]: Input should be greater than or equal to 0"),
    "head-out-of-range": (at([*KEEP, 2], [4]), "towers.vision: keep[2] has head 4, but there are 4 heads (0..3)"),
    "decreasing": (at([*KEEP, 0], [3, 1]), "towers.vision: keep[0] must be strictly increasing, got [3, 1]"),
    "twice": (at([*KEEP, 0], [1, 1]), "towers.vision: keep[0] must be strictly increasing, got [1, 1]"),
    "no-heads": (at(["towers", "vision", "num_heads"], 0), "towers.vision.num_heads: Input should be greater than or equal to 1"),
    "heads-beyond-all-models": (at(["towers", "vision", "num_heads"], 10**12), "towers.vision.num_heads: Input should be less than"),
    "layers-of-too-many-heads": (at(["towers", "vision", "num_heads"], 40000), "towers.vision: 3 layers of 40000 heads are more than 65536"),
    "bad-digest": (at(["base"], "sha256:zz"), "base: String should match pattern"),
    "null-tower": (at(["towers", "vision"], None), "towers.vision: "),
    "seed-text": (at(["origin", "seed"], "3"), "origin.seed: Input should be a valid integer"),
    "other-version": (at(["schema"], "hydractl.head-mask/2"), 'schema is "hydractl.head-mask/2", expected `hydractl.head-mask/1`'),
    "other-kind": (at(["schema"], "hydractl.scores/1"), 'schema is "hydractl.scores/1", expected `hydractl.head-mask/1`'),
    "no-schema": (at(["schema"], ...), "schema is null, expected `hydractl.head-mask/1`"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "message"), BAD_MASKS.values(), ids=BAD_MASKS)
def test_bad_masks_are_refused_with_the_json_path(edit, message):
    raw = golden("head-mask")
    edit(raw)
    with pytest.raises(ManifestError) as caught:
        HeadMask.from_json(json.dumps(raw), place="mask.json")
    assert str(caught.value).startswith(f"mask.json: {message}")
    assert "hydractl schema head-mask" in str(caught.value.hint)
    assert caught.value.exit_code == 3


HEADS = len(golden("scores")["towers"]["vision"]["scores"][0])
BAD_SCORES = {
    "ragged": (at(["towers", "vision", "scores"], [[1.0], [1.0, 2.0]]), "towers.vision: scores must be a rectangular table of layers by heads"),
    "empty": (at(["towers", "vision", "scores"], []), "towers.vision: scores must be a rectangular table of layers by heads"),
    "empty-row": (at(["towers", "vision", "scores"], [[]]), "towers.vision: scores must be a rectangular table of layers by heads"),
    "text": (at(["towers", "vision", "scores", 1, 0], "high"), "towers.vision.scores[1][0]: Input should be a valid number"),
    "bool": (at(["towers", "vision", "scores", 1, 0], value=True), "towers.vision.scores[1][0]: Input should be a valid number"),
    "null": (at(["towers", "vision", "scores", 1, 0], None), "towers.vision.scores[1][0]: Input should be a valid number"),
    "nan": (at(["towers", "vision", "scores", 1, 0], float("nan")), "towers.vision.scores[1][0]: Input should be a finite number"),
    "infinite": (at(["baseline"], float("inf")), "baseline: Input should be a finite number"),
    "removal-of-nothing": (at(["removals", 1, "layer"], 2), "document: removals[1] names head (vision, 2, 1), which the scores do not have"),
    "removal-past-the-last-head": (at(["removals", 1, "head"], HEADS), f"document: removals[1] names head (vision, 1, {HEADS}), which the scores do not have"),
    "removal-elsewhere": (at(["removals", 0, "tower"], "text"), "document: removals[0] names head (text, 0, 1), which the scores do not have"),
    "removal-twice": (at(["removals", 1, "layer"], 0), "document: removals[1] names head ('vision', 0, 1) twice"),
    "missing": (at(["removals", 0, "objective"], ...), "removals[0].objective is missing"),
    "count-bool": (at(["data", "id", "count"], value=True), "data.id.count: Input should be a valid integer"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "message"), BAD_SCORES.values(), ids=BAD_SCORES)
def test_bad_scores_are_refused_with_the_json_path(edit, message):
    raw = golden("scores")
    edit(raw)
    with pytest.raises(ManifestError) as caught:
        HeadImportance.from_json(json.dumps(raw), place="scores.json")
    assert str(caught.value).startswith(f"scores.json: {message}")


BAD_HEADERS = {
    "base-with-plan": (at(["kind"], "base"), "document: plan: required for a hydra and excluded otherwise"),
    "hydra-without-plan": (at(["plan"], None), "document: plan: required for a hydra and excluded otherwise"),
    "other-tower": (at(["masks", 0], {"text": {"num_heads": 4, "keep": [[0], [0], [0]]}}), "document: masks[0]: has towers ['text'], but"),
    "fewer-layers": (at(["masks", 1, "vision", "keep"], [[0]]), "document: masks[1].vision.keep: has 1 layers, but"),
    "other-heads": (at(["masks", 1, "vision", "num_heads"], 5), "document: masks[1].vision.num_heads: is 5, but"),
    "labels": (at(["labels"], ["one"]), "document: labels: 1 names for 2 classes"),
    "fate": (at(["plan", "fates", "pos_embed"], "lost"), "plan.fates.pos_embed: Input should be 'shared', 'merged' or 'grouped'"),
    "trunk": (at(["plan", "trunk"], -1), "plan.trunk: Input should be greater than or equal to 0"),
    "kind": (at(["kind"], "other"), "kind: Input should be 'base', 'member' or 'hydra'"),
    "no-masks": (at(["masks"], []), "masks: "),
    "members-beyond-all-hydras": (at(["masks"], [{}] * 257), "masks: Tuple should have at most 256 items"),
    "layers-beyond-all-models": (at(["architecture", "towers", "vision", "layers"], 10**9), "architecture.towers.vision.layers: Input should"),
    "heads-without-end": (at(["architecture", "towers", "vision"], {"layers": 300, "num_heads": 300, "head_dim": 1}), "architecture.towers.vision: 300 layers of 300 heads"),
    "another-task": (at(["architecture", "problem_type"], "regression"), "architecture.problem_type: Input should be 'multi_label_classification' or 'token_"),
    "classes-without-end": (at(["architecture", "num_classes"], 10**9), "architecture.num_classes: Input should be less"),
    "images-without-end": (at(["preprocess", "input_size"], [1, 30000, 30000]), "preprocess.input_size[1]: Input should be less"),
    "deep": (at(["made_by", "inputs", 0, "made_by", "extra"], 1), "made_by.inputs[0].made_by.extra is not a known key"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "message"), BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_bad_headers_are_refused_with_the_json_path(edit, message):
    raw = golden("checkpoint")
    edit(raw)
    with pytest.raises(ManifestError) as caught:
        Header.from_json(json.dumps(raw), place="a.st")
    assert str(caught.value).startswith(f"a.st: {message}")


TEXTS = {
    "empty": ("", "is not JSON: Expecting value"),
    "cut": ('{"schema": ', "is not JSON: Expecting value"),
    "nan": ('{"schema": "hydractl.head-mask/1", "towers": NaN}', "towers: "),
    "duplicate": (
        '{"schema": "hydractl.head-mask/1", "schema": "x"}',
        "is not JSON: key `schema` appears twice",
    ),
    "duplicate-nested": ('{"towers": {"vision": 1, "vision": 2}}', "is not JSON: key `vision` appears twice"),
    "list": ("[]", "document: "),
    "number": ("3", "document: "),
    "null": ("null", "document: "),
    "deep": ("[" * 200_000, "is not JSON: "),
    "long-number": ('{"a": ' + "9" * 5000 + "}", "is not JSON: "),
    "lone-surrogate": ('{"schema": "hydractl.head-mask/1", "architecture": "\\ud800", "towers": {}}', ""),
    "byte-order-mark": ('\ufeff{"schema": "hydractl.head-mask/1"}', "is not JSON: "),
}


@pytest.mark.parametrize(("text", "message"), TEXTS.values(), ids=TEXTS)
def test_what_is_no_document_is_refused(text, message):
    with pytest.raises(ManifestError) as caught:
        HeadMask.from_json(text, place="m.json")
    assert str(caught.value).startswith(f"m.json: {message}")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)))  # fmt: skip
@settings(max_examples=100)
def test_any_json_gives_a_manifest_error(value):
    for raw in (value, {"schema": "hydractl.head-mask/1", "towers": value}):
        with pytest.raises(ManifestError):
            HeadMask.from_json(json.dumps(raw), place="m")


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: None, "no such file"),
        (lambda p: p.mkdir(), "cannot be read: Is a directory"),
        (lambda p: p.write_bytes(b"\xff\xfe"), "is not UTF-8 text"),
        (lambda p: p.write_text("{"), "is not JSON"),
    ],
    ids=["missing", "folder", "binary", "cut"],
)
def test_files_that_cannot_be_read(tmp_path, make, message):
    make(tmp_path / "m.json")
    with pytest.raises(ManifestError, match=f"m.json: {message}"):
        HeadMask.read(tmp_path / "m.json")


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize(
    ("data", "code"),
    [((GOLDEN / "head-mask-1.json").read_bytes(), 0), (b"\xff", 3), (b"{", 3)],
    ids=["good", "binary", "cut"],
)
def test_standard_input(data, code):
    program = (
        "import sys; from pathlib import Path; from hydractl.manifest.head_mask import HeadMask; from hydractl.errors import HydraError\n"
        "try: sys.stdout.write(HeadMask.read(Path('-')).to_json())\n"
        "except HydraError as e: sys.exit(e.exit_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (code, b"" if code else data)


def test_the_full_mask_fits_its_architecture():
    architecture = base().header.architecture
    mask = full_mask(architecture.towers)
    check_mask_fits(mask, architecture, place="m")
    assert [len(k) for k in mask["vision"].keep] == [4, 4, 4]


def test_every_document_says_what_it_is():
    assert Sidecar.schema_name() == "hydractl.record/1"
    ours = [
        d
        for d in Document.__subclasses__()
        if d.__module__.startswith("hydractl.manifest.") and d is not SealedDocument
    ]
    assert {d.schema_name() for d in ours} == {
        "hydractl.scores/1", "hydractl.head-mask/1", "hydractl.report/1", "hydractl.checkpoint/1", "hydractl.record/1",
    }  # fmt: skip


@pytest.mark.parametrize(
    "update",
    [
        {"command": "`x`"}, {"command": "<img>"}, {"command": "a\n"}, {"command": ""}, {"command": "-rf"}, {"command": "a\u202e"},
        {"options": {"a b": 1}}, {"options": {"](http://x)": 1}}, {"results": {"|": 1}}, {"versions": {"a\x1b": "1"}},
        {"versions": {"torch": "1](http://x)"}}, {"versions": {"torch": "é"}}, {"versions": {"torch": "x" * 99}},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_card_shows_as_it_is_has_a_pattern(update):
    step = {"command": "finetune", "options": {"lr": 1}, "results": {}, "versions": {"torch": "2.1.0+cu121"}}

    assert Step.model_validate_json(json.dumps(step))
    with pytest.raises(ValidationError):
        Step.model_validate_json(json.dumps(step | update))
