"""`hydractl data`: printed references can be pasted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from hydractl.data.presets import PRESETS, ROLES
from hydractl.data.reference import DataRef


def test_a_line_a_data_set(call):
    seen = call("data", "list")

    assert [row.split()[0] for row in seen.out.splitlines()[2:]] == list(PRESETS)
    assert "2 near, 5 far, 1 ood-val" in next(row for row in seen.out.splitlines() if row.startswith("sst2"))


def test_all_of_a_data_set_is_shown_and_what_is_typed_reads_what_is_said(call):
    shown = call("data", "show", "imagenet-1k", "sst2").out
    told = json.loads(call("data", "show", "imagenet-1k", "sst2", "--json").out)["sets"]

    assert [one["name"] for one in told] == ["imagenet-1k", "sst2"]
    assert {"near", "far", "ood-val"} == {*told[0]["outside"]} <= {*ROLES}
    for one in told:
        for ref in [*one["parts"], *(ref for sets in one["outside"].values() for ref in sets)]:
            assert str(DataRef.parse(ref["typed"])) == ref["read"]
            assert {f"  {ref['typed']}", f"    {ref['read']}"} <= {
                row.split("   ")[0] if row.startswith("  preset") else row for row in shown.splitlines()
            }
    assert "hf auth login" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lst",), "did you mean `list`?"),
        (("sst2",), "`hydractl data show sst2`"),
        (("show",), "`hydractl data list` lists the names"),
        (("show", "sst3"), "did you mean `sst2`?"),
        (("list", "sst2"), "`hydractl data show sst2` shows one data set"),
    ],
)
def test_what_to_type_instead(call, words, said):
    seen = call("data", *words)

    assert (seen.code, seen.out) == (2, "")
    assert said in seen.err


def test_eval_on_a_benchmark_as_openood_lays_it_out(call, work):
    """ID, near and far OOD data of CIFAR-100, each with its own image list."""
    rng = np.random.Generator(np.random.PCG64(0))
    for name in ("images_classic", "benchmark_imglist/cifar100"):
        (work / "d" / name).mkdir(parents=True)
    for i in range(4):
        image = Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8))
        image.save(work / "d" / "images_classic" / f"{i}.png")
    lines = [f"{i}.png {i}\n" for i in range(4)]
    for name in ("cifar100", "cifar10", "tin", "mnist", "svhn", "texture", "places365"):
        (work / "d" / "benchmark_imglist" / "cifar100" / f"test_{name}.txt").write_text("".join(lines))

    seen = call(
        "eval", "base.st", "--data", "preset:cifar100::openood=d", "--near", "preset:cifar100/near::openood=d",
        "--far", "preset:cifar100/far::openood=d", "--metrics", "acc,auroc", "--bootstrap", "0", "--device", "cpu", "--no-latency",
        "--json",
    )  # fmt: skip

    (row,) = json.loads(seen.out)["rows"]
    assert seen.code == 0
    assert row["values"]["accuracy"]["count"] == 4
    assert {*row["ood"]} == {"cifar10", "tin", "mnist", "svhn", "textures", "places365"}
    assert row["means"] == {
        "all": {"auroc": 0.5},
        "far": {"auroc": 0.5},
        "near": {"auroc": 0.5},
    }  # All lists contain the same images.
