"""`prune`: members equal the base without the dropped heads; a failed run writes nothing."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hydractl.checkpoint import Checkpoint
from hydractl.errors import CheckFailed, CheckpointError, HydraError, ManifestError, OutputExists, UsageError
from hydractl.families.open_model import load_model, open_model
from hydractl.families.tower import largest_difference
from hydractl.heads.budget import HeadBudget
from hydractl.manifest.head_mask import HeadMask, Removal
from hydractl.manifest.header import Kind
from hydractl.metrics.cost import count_macs
from hydractl.stages.prune.config import PruneConfig, mask_path
from hydractl.stages.prune.run import run_prune
from support.builders import DTYPES, Sample, base, mask_file, scores_file, sha
from support.progress_log import ProgressLog, cut_between_names
from support.variants import PLAIN, variant

TABLE = ((0.9, 0.1, 0.8, 0.7), (0.2, 0.3, 0.6, 0.5), (0.95, 0.4, 0.05, 0.85))
KEEP = ((0, 2, 3), (), (1,))


@pytest.fixture
def model(tmp_path):
    return base(PLAIN).save(tmp_path / "base.st")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def prune(model, out, **changes):
    return run_prune(PruneConfig(model=str(model), out=out, **changes))


# --- outputs ---------------------------------------------------------------------------------------


def test_a_mask_written_by_hand(tmp_path, model):
    mask = mask_file(tmp_path / "mask.json", base(PLAIN).header, *KEEP)

    report = prune(model, tmp_path / "m.st", masks=(mask,))

    member = open_model(str(tmp_path / "m.st"))
    expected = base(PLAIN).pruned(*KEEP)
    assert all(torch.equal(member.checkpoint.tensor(n), t) for n, t in expected.state.items())
    assert member.header.kind == Kind.MEMBER
    assert member.header.masks == expected.header.masks
    assert member.header.base == open_model(str(model)).checkpoint.digest
    assert HeadMask.read(tmp_path / "m.mask.json").towers == expected.header.masks[0]
    assert report.paths == (tmp_path / "m.st", tmp_path / "m.mask.json")
    assert (report.heads, report.members[0].heads_kept, report.members[0].heads_removed) == (12, 4, 8)
    assert report.members[0].largest_difference <= 1e-5


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("name", ["class-token", "no-qkv-bias", "qk-norm", "distilled", "hybrid", "map-pool"])
def test_parameters_macs_and_bytes_are_what_shapes_predict(tmp_path, name):
    sample = base(variant(name))
    model = sample.save(tmp_path / "base.st")
    mask = mask_file(tmp_path / "mask.json", sample.header, *KEEP)

    report = prune(model, tmp_path / "m.st", masks=(mask,))

    width, head_dim, removed = 32, 8, 8
    bias = 0 if name == "no-qkv-bias" else 3 * head_dim
    a_head = 3 * head_dim * width + bias + head_dim * width
    after, before = report.members[0].size, report.base
    assert before.parameters - after.parameters == removed * a_head
    assert before.parameters == sum(p.numel() for p in sample.library().parameters())
    assert after.parameters == sum(
        p.numel() for p in load_model(open_model(str(tmp_path / "m.st"))).parameters()
    )
    assert before.size_bytes - after.size_bytes == 4 * removed * a_head
    assert after.size_bytes == Checkpoint.open(tmp_path / "m.st").size_bytes
    member = sample.pruned(*KEEP)
    assert after.macs == count_macs(
        member.model().requires_grad_(requires_grad=False), member.inputs(batch=1)
    )
    assert after.macs < before.macs


def test_the_best_mask_of_a_budget(tmp_path, model):
    scores = scores_file(tmp_path / "s.json", TABLE)
    prune(model, tmp_path / "m.st", scores=(scores,), budget=HeadBudget(keep_per_layer=2))
    kept = HeadMask.read(tmp_path / "m.mask.json")
    assert kept.towers["vision"].keep == ((0, 2, 3), (2,), (0, 3))
    assert kept.origin is not None
    assert (kept.origin.strategy, kept.base) == ("best", Checkpoint.open(model).digest)


def test_equally_many_in_every_layer(tmp_path, model):
    scores = scores_file(tmp_path / "s.json", TABLE)
    prune(model, tmp_path / "m.st", scores=(scores,), budget=HeadBudget(keep_per_layer=2), per_layer=True)
    assert HeadMask.read(tmp_path / "m.mask.json").towers["vision"].keep == ((0, 2), (2, 3), (0, 3))


@pytest.mark.parametrize(
    ("budget", "kept"),
    [
        (HeadBudget(remove=0), 12), (HeadBudget(remove=12), 0), (HeadBudget(keep_fraction=0.5), 6), (HeadBudget(keep_per_layer=4), 12),
    ],
)  # fmt: skip
def test_budgets(tmp_path, model, budget, kept):
    report = prune(model, tmp_path / "m.st", scores=(scores_file(tmp_path / "s.json", TABLE),), budget=budget)
    assert report.members[0].heads_kept == kept


def test_members_cut_off_between_two_names_are_finished(tmp_path, model, monkeypatch):
    scores_file(tmp_path / "s.json", [[0.1, 0.2, 0.3, 0.4]] * 3)
    for folder in ("whole", "cut"):
        (tmp_path / folder).mkdir()
    told = {
        "scores": (tmp_path / "s.json",),
        "budget": HeadBudget(remove=4),
        "members": 3,
        "pool": 6,
        "verify": False,
    }
    prune(model, tmp_path / "whole" / "m-{i}.st", **told)
    out = tmp_path / "cut" / "m-{i}.st"
    cut_between_names(monkeypatch, lambda: prune(model, out, **told), 2)
    assert len([name for name in names(tmp_path / "cut") if name.startswith("m-")]) == 2

    prune(model, out, **told)

    assert names(tmp_path / "cut") == names(tmp_path / "whole")
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "cut" / path.name).read_bytes() == path.read_bytes()


def test_several_members_differ_and_agree_before_the_layer_they_diverge_from(tmp_path, model):
    scores = scores_file(tmp_path / "s.json", TABLE)
    report = prune(
        model,
        tmp_path / "m-{i}.st",
        scores=(scores,),
        budget=HeadBudget(remove=4),
        members=3,
        pool=8,
        trunk=1,
    )
    masks = [HeadMask.read(p).towers["vision"].keep for p in report.paths if p.suffix == ".json"]
    assert names(tmp_path) == [
        "base.st",
        "m-0.mask.json",
        "m-0.st",
        "m-1.mask.json",
        "m-1.st",
        "m-2.mask.json",
        "m-2.st",
        "s.json",
    ]
    assert len(set(masks)) == 3
    assert len({m[0] for m in masks}) == 1
    assert {m.heads_removed for m in report.members} == {4}


def test_one_member_for_each_scores_file(tmp_path, model):
    files = [scores_file(tmp_path / f"s{i}.json", TABLE[i:] + TABLE[:i]) for i in range(3)]
    report = prune(model, tmp_path / "m-{i}.st", scores=tuple(files), budget=HeadBudget(remove=6))
    assert len({HeadMask.read(m.mask_path).towers["vision"].keep for m in report.members}) == 3


def test_keeping_every_head_keeps_every_byte(tmp_path, model):
    prune(
        model,
        tmp_path / "m.st",
        scores=(scores_file(tmp_path / "s.json", TABLE),),
        budget=HeadBudget(remove=0),
    )
    before, after = Checkpoint.open(model), Checkpoint.open(tmp_path / "m.st")
    assert before.specs == after.specs
    assert all(list(before.spans[n].pieces()) == list(after.spans[n].pieces()) for n in before.specs)


@pytest.mark.spread(cases=4)
@pytest.mark.parametrize("stored", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("wanted", [None, "fp32", "bf16", "fp16"])
def test_dtypes_stay_unless_told_otherwise(tmp_path, stored, wanted):
    sample = base(PLAIN).cast(DTYPES[stored])
    mask = mask_file(tmp_path / "mask.json", sample.header, *KEEP)
    prune(sample.save(tmp_path / "base.st"), tmp_path / "m.st", masks=(mask,), dtype=wanted)
    member = open_model(str(tmp_path / "m.st")).checkpoint
    expected = sample.pruned(*KEEP)
    for name, tensor in expected.state.items():
        found = member.tensor(name)
        assert found.dtype == DTYPES[wanted or stored]
        assert torch.equal(found, tensor.to(DTYPES[wanted or stored]))


def with_number(sample: Sample, name: str, row: int, number: float) -> Sample:
    tensor = sample.state[name].clone()
    tensor[row] = number
    return Sample(sample.header, sample.state | {name: tensor})


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("stored", "number", "wanted", "holds"),
    [
        ("fp32", 1e5, "fp16", "`--dtype bf16` or `--dtype fp32`"),
        ("bf16", -1e5, "fp16", "`--dtype bf16` or `--dtype fp32`"),
        ("fp32", 3.4e38, "bf16", "leave `--dtype` out"),
    ],
)
def test_a_number_that_is_too_large_for_a_dtype_is_refused(tmp_path, stored, number, wanted, holds, verify):
    sample = with_number(base(PLAIN).cast(DTYPES[stored]), "norm.bias", 3, number)
    mask = mask_file(tmp_path / "mask.json", sample.header, *KEEP)
    model = sample.save(tmp_path / "base.st")

    with pytest.raises(
        CheckFailed, match=r"tensor `norm\.bias` is not finite as B?F16: 1 number of 32 is too large"
    ) as caught:
        prune(model, tmp_path / "m.st", masks=(mask,), dtype=wanted, verify=verify)

    assert holds in caught.value.hint
    assert names(tmp_path) == ["base.st", "mask.json"]


def test_a_number_that_is_too_large_may_be_in_a_head_that_goes(tmp_path):
    weight = "blocks.0.attn.qkv.weight"
    sample = with_number(base(PLAIN), weight, 72, 1e5)  # values of head 1, which `KEEP` drops
    mask = mask_file(tmp_path / "mask.json", sample.header, *KEEP)

    report = prune(sample.save(tmp_path / "base.st"), tmp_path / "m.st", masks=(mask,), dtype="fp16")

    assert report.members[0].largest_difference <= 1e-5
    found = open_model(str(tmp_path / "m.st")).checkpoint.tensor(weight)
    assert torch.equal(found, sample.pruned(*KEEP).state[weight].half())


def test_twice_is_the_same_bytes_whatever_the_folder(tmp_path, model):
    scores = scores_file(tmp_path / "s.json", TABLE)
    found = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        prune(
            model,
            tmp_path / folder / "m-{i}.st",
            scores=(scores,),
            budget=HeadBudget(remove=4),
            members=2,
            pool=8,
        )
        found.append([(p.name, p.read_bytes()) for p in sorted((tmp_path / folder).iterdir())])
    assert found[0] == found[1]
    assert str(tmp_path).encode() not in found[0][1][1] + found[0][0][1]


def test_another_seed_is_another_draw(tmp_path, model):
    scores = scores_file(tmp_path / "s.json", TABLE)
    masks = []
    for seed in range(4):
        prune(
            model, tmp_path / f"m{seed}.st", scores=(scores,), budget=HeadBudget(remove=3), pool=9, seed=seed
        )
        masks.append(HeadMask.read(tmp_path / f"m{seed}.mask.json").towers["vision"].keep)
    assert len(set(masks)) > 1


def test_lineage_names_inputs_by_digest_and_base_name(tmp_path, model):
    mask = mask_file(tmp_path / "mask.json", base(PLAIN).header, *KEEP)
    prune(model, tmp_path / "m.st", masks=(mask,))
    step = open_model(str(tmp_path / "m.st")).header.made_by
    assert step is not None
    assert step.command == "prune"
    assert [i.name for i in step.inputs] == ["base.st", "mask.json"]
    assert step.inputs[0].sha256 == Checkpoint.open(model).digest
    assert step.results["verified"] is True
    assert {"hydractl", "torch", "timm", "safetensors"} <= step.versions.keys()


def test_through_pipes(tmp_path, model, monkeypatch, capfdbinary):
    """`cat base.st | hydractl prune - --mask <(...) -o -`."""
    fifo = tmp_path / "mask"
    os.mkfifo(fifo)
    text = HeadMask(towers=base(PLAIN).pruned(*KEEP).header.masks[0]).to_json()
    writer = threading.Thread(target=lambda: fifo.write_text(text))
    writer.start()
    with model.open("rb") as file:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": file})())
        report = prune("-", Path("-"), masks=(fifo,))
    writer.join(timeout=100)
    (tmp_path / "out.st").write_bytes(capfdbinary.readouterr().out)
    prune(model, tmp_path / "m.st", masks=(mask_file(tmp_path / "mask.json", base(PLAIN).header, *KEEP),))
    piped, filed = Checkpoint.open(tmp_path / "out.st"), Checkpoint.open(tmp_path / "m.st")
    assert piped.specs == filed.specs
    assert report.paths == (Path("-"),)
    step = open_model(str(tmp_path / "out.st")).header.made_by
    assert step is not None
    assert [i.name for i in step.inputs] == ["-", "-"]
    assert mask_path(Path("-")) is None


def test_masks_for_other_weights_are_used_with_a_warning(tmp_path, model):
    progress_log = ProgressLog()
    mask = tmp_path / "mask.json"
    mask.write_text(HeadMask(towers=base(PLAIN).pruned(*KEEP).header.masks[0], base=sha("other")).to_json())
    run_prune(PruneConfig(model=str(model), out=tmp_path / "m.st", masks=(mask,)), progress_log)
    assert len(progress_log.warnings) == 1
    assert "was made for another base" in progress_log.warnings[0]


@pytest.mark.parametrize("architecture", [None, PLAIN.arch])
def test_a_mask_that_names_no_architecture_or_this_one_is_used(tmp_path, model, architecture):
    mask = HeadMask(towers=base(PLAIN).pruned(*KEEP).header.masks[0], architecture=architecture)
    (tmp_path / "mask.json").write_text(mask.to_json())
    assert prune(model, tmp_path / "m.st", masks=(tmp_path / "mask.json",)).members[0].heads_kept == 4


def test_a_mask_for_another_architecture_says_how_to_use_it_all_the_same(tmp_path, model):
    changes = bad_mask(lambda raw: raw.update(architecture="vit_other"))(tmp_path)
    with pytest.raises(ManifestError) as caught:
        prune(model, tmp_path / "m.st", **changes)
    assert (caught.value.exit_code, "without the key `architecture`" in caught.value.hint) == (3, True)


@pytest.mark.parametrize("stopped", [4, 7])
def test_scores_that_order_too_few_heads_say_how_many_to_remove(tmp_path, model, stopped):
    changes = with_scores(stopped=stopped, pool=9)(tmp_path)
    with pytest.raises(UsageError) as caught:
        prune(model, tmp_path / "m.st", **changes)
    assert caught.value.hint == "score again with `--remove 9` or more"
    prune(model, tmp_path / "m.st", **changes | {"pool": stopped})


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_members_may_diverge_from_any_layer_or_nowhere(tmp_path, model, layer):
    prune(model, tmp_path / "m.st", **with_scores(trunk=layer)(tmp_path))


def test_a_random_architecture_can_be_pruned(tmp_path):
    arch = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=3,num_heads=4,num_classes=7"
    prune(
        arch,
        tmp_path / "m.st",
        scores=(scores_file(tmp_path / "s.json", TABLE),),
        budget=HeadBudget(remove=5),
    )
    assert sum(map(len, open_model(str(tmp_path / "m.st")).header.masks[0]["vision"].keep)) == 7


# --- refusals --------------------------------------------------------------------------------------


def bad_mask(edit):
    def make(folder):
        raw = json.loads(HeadMask(towers=base(PLAIN).pruned(*KEEP).header.masks[0]).to_json())
        edit(raw)
        (folder / "mask.json").write_text(json.dumps(raw))
        return {"masks": (folder / "mask.json",)}

    return make


def with_scores(table=TABLE, *, stopped=None, **changes):
    """Return a writer of importances for all heads, or for a greedy search with an early stop."""
    removals = None if stopped is None else greedy(stopped)

    def make(folder):
        file = scores_file(folder / "s.json", table, removals=removals)
        return {"scores": (file,), "budget": HeadBudget(remove=4)} | changes

    return make


def greedy(count):
    heads = sorted((s, layer, h) for layer, row in enumerate(TABLE) for h, s in enumerate(row))
    return tuple(Removal(tower="vision", layer=layer, head=h, objective=0.5) for _, layer, h in heads[:count])


def with_model(make_model):
    def make(folder):
        (folder / "base.st").unlink()
        make_model(folder)
        return {"masks": (mask_file(folder / "mask.json", base(PLAIN).header, *KEEP),)}

    return make


def truncate(folder):
    path = base(PLAIN).save(folder / "base.st")
    os.truncate(path, path.stat().st_size - 100)


def member_of_it(folder):
    base(PLAIN).pruned(*KEEP).save(folder / "base.st")


def other_classes(folder):
    sample = base(PLAIN)
    state = sample.state | {"head.weight": torch.zeros(8, 32), "head.bias": torch.zeros(8)}
    type(sample)(sample.header, state).save(folder / "base.st")


def other_heads(folder):
    sample = base(PLAIN)
    state = sample.state | {"blocks.0.attn.qkv.weight": torch.zeros(24, 32)}
    type(sample)(sample.header, state).save(folder / "base.st")


def not_finite(folder):
    sample = base(PLAIN)
    state = sample.state | {"head.bias": torch.full((7,), float("nan"))}
    type(sample)(sample.header, state).save(folder / "base.st")


def overflowing(folder):
    sample = base(PLAIN)
    state = sample.state | {"head.weight": torch.full_like(sample.state["head.weight"], 3e38)}
    type(sample)(sample.header, state).save(folder / "base.st")


def bare(folder):
    save_file(base(PLAIN).state, folder / "base.st")


def vision(raw):
    return raw["towers"]["vision"]


ERRORS = {
    "head-out-of-range": (bad_mask(lambda r: vision(r)["keep"].__setitem__(1, [4])), ManifestError, "towers.vision: keep[1] has head 4, but there are 4 heads (0..3)"),
    "unknown-key": (bad_mask(lambda r: r.update(note="hand-made")), ManifestError, "note is not a known key"),
    "other-tower": (bad_mask(lambda r: r["towers"].update(text=vision(r))), ManifestError, "towers: has towers ['text', 'vision'], but vit_tiny_patch16_224 has ['vision']"),
    "fewer-layers": (bad_mask(lambda r: vision(r)["keep"].pop()), ManifestError, "towers.vision.keep: has 2 layers, but vit_tiny_patch16_224 has 3"),
    "other-head-count": (bad_mask(lambda r: vision(r).update(num_heads=5)), ManifestError, "towers.vision.num_heads: is 5, but vit_tiny_patch16_224 has 4 heads per layer"),
    "a-scores-file-as-mask": (lambda f: {"masks": (scores_file(f / "s.json", TABLE),)}, ManifestError, "expected `hydractl.head-mask/1`"),
    "a-checkpoint-as-mask": (lambda f: {"masks": (f / "base.st",)}, ManifestError, "base.st: is not"),
    "missing-mask": (lambda f: {"masks": (f / "none.json",)}, ManifestError, "none.json: no such file"),
    "scores-of-another-depth": (with_scores(TABLE[:2]), ManifestError, "s.json: towers.vision.scores is 2 layers by 4 heads, but"),
    "scores-of-another-width": (with_scores(((0.1,),) * 3), ManifestError, "s.json: towers.vision.scores is 3 layers by 1 heads, but"),
    "too-many-removed": (with_scores(budget=HeadBudget(remove=13)), UsageError, "`--remove 13`: cannot remove 13 heads: the model has 12"),
    "too-many-kept": (with_scores(budget=HeadBudget(keep_per_layer=5)), UsageError, "`--keep-heads 5`: cannot keep 5 heads per layer"),
    "pool-too-small": (with_scores(pool=3), UsageError, "`--pool 3`: `--remove 4` removes 4 heads from each member"),
    "pool-too-large": (with_scores(pool=13), UsageError, "`--pool 13`: the model has 12 heads"),
    "diverge-too-late": (with_scores(trunk=4), UsageError, "`--trunk 4`: must be in 0..3; the model has 3 layers"),
    "diverge-too-late-in-a-pool": (with_scores(trunk=4, pool=8, members=2, out="m-{i}.st"), UsageError, "must be in 0..3"),
    "fewer-ordered-than-removed": (with_scores(stopped=3), UsageError, "s.json: ranks only 3 heads, but `--remove 4` removes 4"),
    "fewer-ordered-than-go": (with_scores(stopped=3, budget=HeadBudget(keep_per_layer=2)), UsageError, "s.json: ranks only 3 heads, but `--keep-heads 2` removes 6"),
    "one-ordered": (with_scores(stopped=1, budget=HeadBudget(keep_fraction=0.5)), UsageError, "s.json: ranks only 1 head, but `--keep-fraction 0.5` removes 6"),
    "fewer-ordered-than-the-pool": (with_scores(stopped=5, pool=8), UsageError, "s.json: ranks only 5 heads, but `--pool 8` draws from 8"),
    "fewer-ordered-in-a-layer": (with_scores(stopped=3, budget=HeadBudget(keep_per_layer=2), per_layer=True), UsageError, "`--per-layer`: layer 0 of tower `vision` must lose 2 heads"),
    "other-architecture": (bad_mask(lambda r: r.update(architecture="vit_other")), ManifestError, "mask.json: architecture is `vit_other`, but"),
    "too-few-masks": (with_scores(pool=4, members=3, out="m-{i}.st"), UsageError, "3 different masks are required"),
    "unknown-dtype": (with_scores(dtype="fp8"), UsageError, "unknown dtype `fp8`"),
    "missing-model": (with_model(lambda _: None), CheckpointError, "base.st: no such file or folder"),
    "truncated-model": (with_model(truncate), CheckpointError, "it may be truncated"),
    "a-member": (with_model(member_of_it), CheckpointError, "is a member, but `prune` needs a base"),
    "wrong-class-count": (with_model(other_classes), CheckpointError, "tensor `head.bias` has shape (8,), but its architecture needs (7,)"),
    "wrong-heads": (with_model(other_heads), CheckpointError, "tensor `blocks.0.attn.qkv.weight` has shape (24, 32), but its architecture needs (96, 32)"),
    "not-finite": (with_model(not_finite), CheckpointError, "tensor `head.bias` holds 7 numbers of 7 that are not finite"),
    "overflowing": (with_model(overflowing), CheckFailed, "nothing was written"),
    "no-architecture": (with_model(bare), CheckpointError, "does not name its architecture"),
    "missing-folder": (with_scores(out="none/m.st"), HydraError, "does not exist"),
    "output-is-input": (with_scores(out="base.st", force=True), OutputExists, "is an input of this command"),
    "mask-would-replace-scores": (lambda f: {"scores": (scores_file(f / "m.mask.json", TABLE),), "budget": HeadBudget(remove=4), "force": True}, OutputExists, "m.mask.json: is an input of this command"),
}  # fmt: skip


@pytest.mark.parametrize("verify", [True, False], ids=["verify", "no-verify"])
@pytest.mark.parametrize(("make", "kind", "message"), ERRORS.values(), ids=ERRORS)
def test_what_is_wrong_is_said_and_nothing_is_left_behind(tmp_path, model, make, kind, message, verify):
    changes = make(tmp_path)
    out = tmp_path / str(changes.pop("out", "m.st"))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    if kind is CheckFailed and not verify:
        return
    with pytest.raises(kind) as caught:
        prune(model, out, verify=verify, **changes)
    assert message in str(caught.value)
    assert caught.value.exit_code in {2, 3, 5, 6}
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_existing_outputs_need_force_even_the_mask_alone(tmp_path, model):
    mask = mask_file(tmp_path / "mask.json", base(PLAIN).header, *KEEP)
    (tmp_path / "m.mask.json").write_text("mine")
    with pytest.raises(OutputExists, match=r"m\.mask\.json: already exists"):
        prune(model, tmp_path / "m.st", masks=(mask,))
    assert not (tmp_path / "m.st").exists()
    prune(model, tmp_path / "m.st", masks=(mask,), force=True)
    assert (tmp_path / "m.mask.json").read_text() != "mine"


def test_a_hydra_is_refused(tmp_path):
    from hydractl.stages.fuse.config import FuseConfig
    from hydractl.stages.fuse.run import run_fuse

    path = base(PLAIN).save(tmp_path / "base.st")
    run_fuse(FuseConfig(models=(str(path),), out=tmp_path / "hydra.st"))
    mask = mask_file(tmp_path / "mask.json", base(PLAIN).header, *KEEP)
    with pytest.raises(CheckpointError, match="is a hydra, but `prune` needs a base"):
        prune(tmp_path / "hydra.st", tmp_path / "m.st", masks=(mask,))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(tmp_path, model):
    mask = mask_file(tmp_path / "mask.json", base(PLAIN).header, *KEEP)
    with pytest.raises(HydraError, match="no space left") as caught:
        prune(model, Path("/dev/full"), masks=(mask,))
    assert caught.value.exit_code == 3
    assert names(tmp_path) == ["base.st", "mask.json"]


S, M = (Path("s.json"),), (Path("m.json"),)
CONFIGS = {
    "nothing": ({}, "give either `--scores` or `--mask`"),
    "both": ({"scores": S, "masks": M}, "`--scores` and `--mask` exclude each other"),
    "no-budget": ({"scores": S}, (
        "the number of heads to keep is missing: give one of `--keep-heads N`, "
        "`--remove R`, `--keep-fraction F"
    )),
    "mask-and-budget": ({"masks": M, "budget": HeadBudget(remove=1)}, "a mask already says which heads are kept"),
    "mask-and-layer": ({"masks": M, "trunk": 2}, "a mask already says which heads are kept"),
    "mask-and-members": ({"masks": M, "members": 2}, "a mask already says which heads are kept"),
    "members-and-several-scores": ({"scores": S * 2, "budget": HeadBudget(remove=1), "members": 2, "pool": 3}, "several `--scores` make one member each; leave out `--members"),
    "members-without-pool": ({"scores": S, "budget": HeadBudget(remove=1), "members": 2}, "`--members` needs a pool"),
    "pool-and-per-layer": ({"scores": S, "budget": HeadBudget(keep_per_layer=1), "pool": 3, "per_layer": True}, "`--pool` needs one global removal order: one `--scores` file and no `--per-layer`"),
    "per-layer-without-keep": ({"scores": S, "budget": HeadBudget(remove=1), "per_layer": True}, "`--per-layer` requires `--keep-heads N`"),
    "one-name-for-two": ({"masks": M * 2}, "2 members need 2 different output names"),
    "two-from-standard-input": ({"model": "-", "masks": (Path("-"),)}, "only one input can come from standard input"),
    "one-mask-name-for-two": ({"masks": M * 2, "out": Path("m.{i}")}, "2 members need 2 different output names"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), CONFIGS.values(), ids=CONFIGS)
def test_options_that_contradict_each_other(changes, message):
    with pytest.raises(UsageError, match=message.replace("?", r"\?")) as caught:
        PruneConfig(**{"model": "base.st", "out": Path("m.st")} | changes)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("wanted", [None, "fp16"])
def test_verification_measures_what_is_stored_against_the_masked_base(tmp_path, model, wanted):
    """Large projection weights make rounding measurable, but below the relative tolerance."""
    sample = base(PLAIN)
    state = sample.state | {"blocks.0.attn.proj.weight": sample.state["blocks.0.attn.proj.weight"] * 50}
    type(sample)(sample.header, state).save(model)
    mask = mask_file(tmp_path / "mask.json", sample.header, *KEEP)
    report = prune(model, tmp_path / "m.st", masks=(mask,), dtype=wanted)
    member = open_model(str(tmp_path / "m.st"))
    rounded = type(sample)(sample.header, state).cast(DTYPES[wanted or "fp32"])
    with torch.inference_mode():
        found = load_model(member, dtype=torch.float32)(sample.inputs())
        masked = rounded.masked(*KEEP).model()(sample.inputs())
    assert largest_difference(found, masked) == report.members[0].largest_difference <= 1e-5


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"budget": HeadBudget(remove=4), "pool": 13}, "`--pool 13`: the model has 12 heads", "at most `--pool 12`"),
        ({"budget": HeadBudget(remove=4), "pool": 3}, "`--pool 3`: `--remove 4` removes 4 heads", "`--pool 8`"),
        ({"budget": HeadBudget(remove=13)}, "cannot remove 13 heads: the model has 12", "at most `--remove 12`"),
        ({"budget": HeadBudget(keep_per_layer=5)}, "cannot keep 5 heads per layer", "for example `--keep-heads 4`"),
    ],
)  # fmt: skip
def test_numbers_of_heads_are_checked_before_weights_are_read(
    tmp_path, model, monkeypatch, changes, message, hint
):
    monkeypatch.setattr(
        "hydractl.stages.prune.run.check_finite_weights", lambda _: pytest.fail("weights were read")
    )
    with pytest.raises(UsageError, match=message) as caught:
        prune(model, tmp_path / "m.st", scores=(scores_file(tmp_path / "s.json", TABLE),), **changes)
    assert hint in str(caught.value.hint)


def test_a_member_without_heads_is_made_with_a_warning(tmp_path, model):
    progress_log = ProgressLog()
    config = PruneConfig(
        model=str(model), out=tmp_path / "m.st", scores=(scores_file(tmp_path / "s.json", TABLE),),
        budget=HeadBudget(keep_per_layer=0),
    )  # fmt: skip

    assert run_prune(config, progress_log).members[0].heads_kept == 0
    assert [text for text in progress_log.warnings if "no head remains in `vision`" in text]
