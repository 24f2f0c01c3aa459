"""Hints of `hydractl/training/`."""

from __future__ import annotations

from pathlib import Path

from support.hints.table import Row

DATA = "--train digits::classes=0-6,limit=16 --val digits::classes=0-6,limit=14,split=val --batch-size 8"
TUNE = f"finetune base.st {DATA} -o o.st"
ONE = f"{TUNE} --steps 1"
TEXTS = "finetune bert --train texts --val texts --batch-size 4 -o o.st --steps 1"
STATE = f"{TUNE} --steps 2 --save-every 1 -q"


def leave_folder(name: str) -> None:
    """Put a foreign file where the state of a run is stored."""
    Path(name).mkdir()
    Path(name, "notes.txt").write_text("mine")


def _state() -> None:
    leave_folder("o.st.state")


def _move_state() -> None:
    Path("o.st.state").rename("elsewhere")


ROWS = (
    Row(
        "fuse the members with these `--classes` and `--template` first",
        test="tests/stages/export/test_classes.py::test_a_folder_does_not_give_other_names_to_stored_embeddings",
    ),
    Row(
        "use a lower learning rate, or start from weights in float32",
        test="tests/stages/finetune/test_finetune.py::test_rounded_weights_without_finite_outputs_are_not_written",
    ),
    Row(
        "leave it out, or add `{}`; for texts use `--label-smoothing` and `--dropout`",
        f"{TEXTS} --mixup 0.2",
        f"{TEXTS} --label-smoothing 0.1",
    ),
    Row(
        "leave it out to use DDP",
        test="tests/stages/finetune/test_many.py::test_what_parts_cannot_do_is_refused",
    ),
    Row(
        "leave out `--fsdp_offload_params`",
        test="tests/stages/finetune/test_many.py::test_what_parts_cannot_do_is_refused",
    ),
    Row(
        "lower `--lr`, or add `--clip 1.0`",
        f"{TUNE} --steps 4 --lr 1e30",
        f"{TUNE} --steps 4 --lr 1e-4",
    ),
    Row(
        "leave out `--method`, or give a base or a member",
        f"finetune hydra.st {DATA} -o o.st --steps 1 --method lora-ensemble",
        f"finetune base.st {DATA} -o o.st --steps 1 --method lora-ensemble",
        research=True,
    ),
    Row(
        "train more layers without `--train-parts` and `--trunk`, or use another method",
        f"{ONE} --method lora-ensemble --train-parts head",
        f"{ONE} --method lora-ensemble",
        research=True,
    ),
    Row("choose from {}", f"{ONE} --method zzz", f"{ONE} --method lora-ensemble", research=True),
    Row("add `--trunk {}`", f"{ONE} --trunk 9", f"{ONE} --trunk 2"),
    Row(
        "add `--trunk 0` to train all blocks",
        f"{ONE} --recipe cifar100 --warmup 0",
        f"{ONE} --recipe cifar100 --warmup 0 --trunk 0",
    ),
    Row(
        "train more with `--train-parts` or `--trunk`",
        f"{ONE} --train-parts mlp --trunk 2",
        f"{ONE} --train-parts mlp --trunk 1",
    ),
    Row(
        "leave one of them out",
        f"{TUNE} --epochs 2 --early-stop 1 --keep-last",
        f"{TUNE} --epochs 2 --early-stop 1",
    ),
    Row(
        "leave out `embed` from `--train-parts`",
        f"{ONE} --train-parts embed,mlp --trunk 1",
        f"{ONE} --train-parts mlp --trunk 1",
    ),
    Row(
        "use one of {}",
        "python from hydractl.training.recipe import recipe_of; recipe_of('zzz', {})",
        f"{ONE} --recipe vit-finetune",
    ),
    Row(
        "add `head` to `--train-parts`, or add `--keep-head`",
        f"{ONE} --train-parts mlp --reset-head",
        f"{ONE} --train-parts mlp,head --reset-head",
    ),
    Row(
        "add parts of blocks to `--train-parts`",
        f"{ONE} --train-parts head --trunk 1",
        f"{ONE} --train-parts head,mlp --trunk 1",
    ),
    Row(
        "choose another `--schedule`, or leave `--min-lr-rate` out",
        f"{ONE} --schedule constant --min-lr-rate 0.1",
        f"{ONE} --schedule cosine --min-lr-rate 0.1",
    ),
    Row(
        "raise `--batch-size`",
        f"{ONE} --mixup 0.2".replace("--batch-size 8", "--batch-size 1"),
        f"{ONE} --mixup 0.2",
    ),
    Row(
        "start earlier, or train longer with `{}`",
        f"{TUNE} --epochs 2 --swa 2",
        f"{TUNE} --epochs 4 --swa 2",
    ),
    Row(
        "use a later start, or a shorter `--warmup`",
        f"{TUNE} --epochs 4 --swa 1 --warmup 0.9",
        f"{TUNE} --epochs 4 --swa 1 --warmup 0.1",
    ),
    Row(
        "use for example `--warmup 0.05` for 5 % of all steps",
        f"{ONE} --warmup 5",
        f"{ONE} --warmup 0.05",
    ),
    Row(
        "move it to another place, or choose another name with `-o`",
        STATE,
        STATE,
        prepare=_state,
        mend=_move_state,
    ),
    Row(
        "add `--log-dir DIR`",
        f"{ONE} --log-to tensorboard",
        f"{ONE} --log-to tensorboard --log-dir logs",
        files={"o.st.logs": "a file"},
    ),
    Row("`pip install {}`", f"{ONE} --log-to wandb", ONE),
)
