"""`hydractl prune`: what its table calls models, and what it says about budgets."""

from __future__ import annotations

import pytest

from hydractl.cli.output import model_cell


@pytest.mark.parametrize(
    ("reference", "shown"),
    [
        ("base.st", "base.st"),
        ("a/b::c.st", "a/b::c.st"),
        ("arch:vit_tiny_patch16_224", "arch:vit_tiny_patch16_224"),
        ("arch:vit_tiny_patch16_224::depth=2,num_classes=7", "arch:vit_tiny_patch16_224::..."),
        ("-", "stdin"),
    ],
)
def test_what_tables_call_a_model(reference, shown):
    assert model_cell(reference) == shown


def test_the_table_stays_narrow_and_the_json_says_all(call, work):
    arch = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=7"
    argv = ("prune", arch, "--scores", "scores.json", "--keep", "2", "--no-verify", "-o", "new.st")

    seen = call(*argv)

    assert "arch:vit_tiny_patch16_224::...  " in seen.out
    assert max(map(len, seen.out.splitlines())) < 120
    assert f'"model": "{arch}"' in call(*argv, "--force", "--json").out


@pytest.mark.parametrize(
    "options",
    [
        ("--keep", "9"),
        ("--remove", "9"),
        ("--keep", "2", "--remove", "3"),
        ("--keep-fraction", "0"),
        ("--keep", "2", "--pool", "3"),
        ("--keep", "2", "--pool", "9"),
        ("--keep", "2", "--pool", "4", "--members", "2"),
        ("--remove", "2", "--per-layer"),
        ("--remove", "2", "--diverge-from", "3"),
        (),
    ],
)
def test_messages_about_budgets_speak_of_options(call, work, options):
    seen = call("prune", "base.st", "--scores", "scores.json", *options, "-o", "new-{i}.st")

    assert (seen.code, seen.out) == (2, "")
    assert "`--" in seen.err
    assert "_" not in seen.err
