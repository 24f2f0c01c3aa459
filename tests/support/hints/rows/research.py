"""Hints of `hydractl/research/`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hydractl.checkpoint import Checkpoint
from support.hints.rows.families import edit_header, restore
from support.hints.table import Row
from support.pairs import pair

DIGITS = "digits::classes=0-6,limit=14"
EVAL = f"eval base.st --data {DIGITS},split=test --bootstrap 0 --no-latency -o o.json"
EVAL_CLIP = "eval clip --data pictures.jsonl --classes a,b --bootstrap 0 --no-latency -o o.json"
PAIRS = "pairs.jsonl::text=caption"
PAIR_FILE = {
    "pairs.jsonl": "".join(
        f'{{"image": "images/{folder}/{number}", "caption": "{text}"}}\n'
        for folder, number, text in (
            ("a", "0.png", "the cat"),
            ("b", "1.jpg", "a mat"),
            ("a", "2.bmp", "sat on"),
        )
    )
}
SETS = f"--train {DIGITS} --val {DIGITS},split=val --test {DIGITS},split=test"
BENCH = f"bench base.st {SETS} -o out --dry-run"
BENCH_TEXTS = "bench bert --train texts.jsonl --val texts.jsonl --test texts.jsonl -o out --dry-run"
TUNE = f"--train {DIGITS} --val {DIGITS},split=val --steps 1 --batch-size 8 -o o.st"
PACKED = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,depth=1,num_heads=4,num_classes=7"
WIDE = PACKED.replace("depth=1", "depth=1,embed_dim=1024")
LATER = f"finetune base.st {TUNE} -q".replace("o.st", "later.st")
PROPOSITION = "--analyse proposition --corrupt gaussian-noise:1 --compare base="
EVAL_PAIR = EVAL_CLIP.replace("clip", "pair.st")


def _claim_base(path: str) -> None:
    """Write the digest of base.st into the header of a member of another base."""
    digest = Checkpoint.open(Path("base.st")).digest
    edit_header(path, lambda header: header.update(base=digest, made_by=None))


def _pair() -> None:
    """Write pair.st, a CLIP with a tokenizer."""
    pair("clip", Path()).save(Path("pair.st"))


ROWS = (
    Row(
        "compare with its base: `--compare base=BASE`",
        f"{EVAL.replace('base.st', 'w-0.st')} {PROPOSITION}base.st",
        f"{EVAL.replace('base.st', 'w-0.st')} {PROPOSITION}wide.st",
        before=(
            f"finetune {WIDE} {TUNE} -q".replace("o.st", "wide.st"),
            "prune wide.st --strategy random --keep-heads 2 -q -o w-0.st",
        ),
        prepare=partial(_claim_base, "w-0.st"),
        mend=partial(restore, "w-0.st"),
    ),
    Row(
        "for the last layer of a classifier use `laplace:`",
        f"{EVAL} --compare x=bayesvlm:base.st::data={PAIRS}",
        f"{EVAL} --compare x=laplace:base.st::data={DIGITS}",
        files=PAIR_FILE,
    ),
    Row(
        "give a base or a member of CLIP from transformers, with both towers",
        f"{EVAL_CLIP} --compare x=bayesvlm:clip::data={PAIRS}",
        f"{EVAL_PAIR} --compare x=bayesvlm:pair.st::data={PAIRS}",
        files=PAIR_FILE,
        mend=_pair,
    ),
    Row(
        "give one `--template`",
        f"{EVAL_PAIR} --compare x=bayesvlm:pair.st::data={PAIRS} --template 'a {{label}}' --template 'the {{label}}'",
        f"{EVAL_PAIR} --compare x=bayesvlm:pair.st::data={PAIRS} --template 'a {{label}}'",
        files=PAIR_FILE,
        prepare=_pair,
    ),
    Row(
        "use data with thousands of pairs",
        f"{EVAL_PAIR} --compare x=bayesvlm:pair.st::data={PAIRS},limit=1",
        f"{EVAL_PAIR} --compare x=bayesvlm:pair.st::data={PAIRS}",
        files=PAIR_FILE,
        prepare=_pair,
    ),
    Row(
        "add `text=COLUMN`, for example `{}`",
        f"{EVAL_PAIR} --compare x=bayesvlm:pair.st::data=pairs.jsonl",
        f"{EVAL_PAIR} --compare x=bayesvlm:pair.st::data=pairs.jsonl::text=caption",
        files=PAIR_FILE,
        prepare=_pair,
    ),
    Row(
        "give a base or a member with a trained classifier",
        f"{EVAL} --compare x=laplace:hydra.st::data={DIGITS}",
        f"{EVAL} --compare x=laplace:base.st::data={DIGITS}",
    ),
    Row(
        "leave it out to use `kron`",
        f"{EVAL} --compare x=laplace:wide.st::data={DIGITS},hessian=full",
        f"{EVAL} --compare x=laplace:wide.st::data={DIGITS}",
        before=(f"finetune {WIDE} {TUNE} -q".replace("o.st", "wide.st"),),
    ),
    Row(
        "add `rate=`: `{}`",
        f"{EVAL} --compare x=mc:base.st",
        f"{EVAL} --compare x=mc:base.st::rate=0.1,passes=2",
    ),
    Row(
        "give checkpoints from different steps of one training",
        f"{EVAL} --compare x=swag:base.st,base.st",
        f"{EVAL} --compare x=swag:base.st,later.st",
        before=(LATER,),
    ),
    Row(
        "give checkpoints without a temperature; `eval --temperature` fits one for all samples",
        f"{EVAL} --compare x=swag:base.st,t.st",
        f"{EVAL} --compare x=swag:base.st,later.st --temperature {DIGITS},split=val",
        before=(
            LATER,
            f"{EVAL} --temperature {DIGITS},split=val --save-model t.st -q".replace("o.json", "t.json"),
        ),
    ),
    Row(
        "give models with a classifier",
        f"{EVAL_CLIP} --compare x=swag:clip,clip",
        f"{EVAL} --compare x=swag:base.st,later.st",
        before=(LATER,),
    ),
    Row(
        "the checkpoints of `swag:` must come from one training, with the same architecture and heads",
        f"{EVAL} --compare x=swag:base.st,m-0.st",
        f"{EVAL} --compare x=swag:base.st,later.st",
        before=(LATER,),
    ),
    Row(
        "give a zero-shot base or member: a CLIP with both towers",
        f"{EVAL} --compare x=vilu:base.st::epochs=1,data={DIGITS}",
        f"{EVAL_PAIR} --compare x=vilu:pair.st::epochs=1,data=pictures.jsonl",
        mend=_pair,
    ),
    Row(
        "add `text=COLUMN`, for example `--pairs pairs.jsonl::text=caption`",
        f"{BENCH} --pairs pairs.jsonl --rivals bayesvlm",
        f"{BENCH} --pairs pairs.jsonl::text=caption",
        files=PAIR_FILE,
    ),
    Row("choose another folder", BENCH.replace("-o out", "-o a,b"), BENCH),
    Row(
        "give each row and data set its own name",
        f"{BENCH} --near a=noise --far a=noise",
        f"{BENCH} --near a=noise --far b=noise",
    ),
    Row(
        "leave it out, or add `bayesvlm` to `--rivals`",
        f"{BENCH} --rivals mc --pairs {PAIRS}",
        f"{BENCH} --rivals mc",
        files=PAIR_FILE,
    ),
    Row("use {}, or some of {}", f"{BENCH} --rivals zzzzzz", f"{BENCH} --rivals all"),
    Row(
        "add `{} {}`",
        f"{BENCH} --rivals deep-ensemble",
        f"{BENCH} --rivals deep-ensemble --start {PACKED}",
    ),
    Row("leave it out", f"{BENCH_TEXTS} --rivals mimo", f"{BENCH_TEXTS} --rivals mc"),
    Row(
        "use fewer `--members`, or leave the rival out",
        f"{BENCH} --rivals pruned-hydra --members 60",
        f"{BENCH} --rivals pruned-hydra --members 3",
    ),
    Row(
        "give its base, and this model with `--hydra-model` or `--compare`",
        BENCH.replace("base.st", "hydra.st"),
        f"{BENCH} --hydra-model hydra.st",
    ),
    Row(
        "`hydractl fuse base.st base.st base.st --trunk {} --own-blocks -o copies.st` makes one from a base",
        f"finetune hydra.st --method mimo {TUNE}",
        "fuse base.st base.st base.st --trunk 2 --own-blocks -o copies.st",
    ),
    Row(
        "give an architecture: `arch:NAME[::K=V,...]`",
        f"finetune base.st --method packed {TUNE}",
        f"finetune {PACKED},embed_dim=48 --method packed::members=3,alpha=1 {TUNE}",
    ),
    Row(
        "use a width that is a multiple of {}: `arch:{}::{}={}`",
        f"finetune {PACKED},embed_dim=32 --method packed::members=3,alpha=1 {TUNE}",
        f"finetune {PACKED},embed_dim=48 --method packed::members=3,alpha=1 {TUNE}",
    ),
)
