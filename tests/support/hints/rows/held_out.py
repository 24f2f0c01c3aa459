"""Hints of held-out data, tags, decoded sizes, names of `make` and files of a newer release."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from support.hints.table import Row

TRAIN = "digits::classes=0-6,limit=14"
TEST = "digits::classes=0-6,limit=40,split=test"
DATA = f"--val {TEST} --test digits::classes=0-6,limit=20,split=val,part=2/2 --risk 0.9 -q"
HALVES = f"--val {TEST},part=1/2 --test {TEST},part=2/2 --risk 0.9 -q"
SCORE = "score base.st --data digits::classes=0-6,limit=14 -o o.json"
EVAL = "eval base.st --data digits::classes=0-6,limit=21,split=test --no-latency --bootstrap 0 -q"
CONLL = "the O\ncat B-x\nsat O\n\na O\nmat O\n"
TABLES = "--no-latency --bootstrap 0"


def _link(name: str) -> None:
    """Give a member a name that is not UTF-8."""
    shutil.copy("m-0.st", os.fsencode(name))


def _folder(name: str) -> None:
    Path(name).mkdir()
    shutil.copy("m-0.st", Path(name, "m.st"))


def _letters() -> None:
    """Make a second tagger whose tokenizer has tokens for the letters of `the` only."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    shutil.copytree("words", "letters")
    for path in Path("letters").glob("tokenizer*"):
        path.unlink()
    letters = Tokenizer(models.BPE({"t": 0, "h": 1}, []))
    letters.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="t").save_pretrained("letters")  # noqa: S106 - no password


def _patched(name: str, code: str) -> str:
    """Return code that runs while a function returns True."""
    return f"python from unittest import mock\nwith mock.patch({name!r}, return_value=True):\n    {code}"


ROWS = (
    Row(
        "check the path",
        "python from pathlib import Path; from hydractl.checkpoint import Checkpoint; Checkpoint.open(Path('zzzz.st'))",
        "inspect base.st",
    ),
    Row(
        "check the path",
        f"make qqqqqqqqqqq.pth m-1.st {DATA} -o out/",
        f"make m-0.st m-1.st {HALVES} -o out/",
    ),
    Row(
        "for example `{}={}`",
        f"make 'a[0]=m-0.st' m-1.st {HALVES} -o out/",
        f"make a-0=m-0.st m-1.st {HALVES} -o out/",
    ),
    Row(
        "rename the folder, or link it: `ln -s FOLDER NAME`",
        f"make a,b/m.st m-1.st {HALVES} -o out/",
        f"make ab/m.st m-1.st {HALVES} -o out/",
        prepare=lambda: _folder("a,b"),
        mend=lambda: Path("a,b").rename("ab"),
    ),
    Row(
        "{}{}give other labelled data as `--val`; or train the models again with `--val {}`, and give `make` `--val {}`",
        f"make m-0.st m-1.st --val {TRAIN} --test {TEST} --risk 0.9 -q -o out/",
        f"make m-0.st m-1.st {HALVES} -o out/",
    ),
    Row(
        "rename the file or folder",
        f"make m-\udcff.st m-1.st {HALVES} -o out/",
        f"make m-0.st m-1.st {HALVES} -o out/",
        prepare=lambda: _link("m-\udcff.st"),
    ),
    Row(
        "options have their own keys; for a file of that name write `./{}`",
        "run wrong.toml",
        "run right.toml",
        files={
            name: f'[[stage]]\nname = "a"\ncommand = "fuse"\nmodels = ["{first}m-0.st", "m-1.st"]\nout = "o.st"\n'
            for name, first in (("wrong.toml", "-"), ("right.toml", "./"))
        },
    ),
    Row(
        "make the image smaller, or add `::max-item={}` to the data",
        "predict base.st images/a::max-item=10 --no-skip-bad",
        "predict base.st images/a::max-item=243 --no-skip-bad",
    ),
    Row(
        "add `::classes-by={}` if they are the first {} classes of the model, or name the model's classes with `hydractl import --labels`",
        f"eval base.st --data images {TABLES}",
        f"eval base.st --data images::classes-by=position {TABLES}",
    ),
    Row(
        "crop the image to a less extreme aspect ratio",
        "python from PIL import Image; from hydractl.data.preprocess import TensorResize; "
        "TensorResize(size=None, side=224, crop=(224, 224), mode='bilinear')(Image.new('RGB', (1, 200000)))",
        "predict base.st images/a",
    ),
    Row(
        "add `::label-separator={}` in quotes, or `::label-separator={}` if they are names",
        "finetune bert --train own.csv --val own.csv --steps 1 -o o.st",
        "finetune bert --train 'own.csv::label-separator=|' --val 'own.csv::label-separator=|' --steps 1 -o o.st",
        files={"own.csv": "text,label\na cat,bad\na mat,long\nthe cat,bad|long\nthe mat,long|bad\n"},
    ),
    Row(
        "if you trust the file, add `::max-item={}`",
        test="tests/data/sources/test_tables.py::test_a_small_file_that_expands_is_refused",
    ),
    Row(
        "rename a file with a word and its label per line: `mv {} {}`",
        f"eval words --data train.txt {TABLES}",
        f"eval words --data train.conll {TABLES}",
        files={"train.txt": CONLL},
        mend=lambda: Path("train.txt").rename("train.conll"),
    ),
    Row(
        "select the columns: `{}`",
        f"eval words --data own.conll {TABLES}",
        f"eval words --data 'own.conll::text=column 2,label=tags' {TABLES}",
        files={"own.conll": "1\tthe\t_\tO\n2\tcat\t_\tB-x\n\n1\ta\t_\tO\n2\tmat\t_\tO\n"},
    ),
    Row(
        "choose the columns: {}; or `::text=COLUMN` for single texts",
        test="tests/data/sources/test_text_columns.py::test_several_pairs_are_a_choice",
    ),
    Row(
        "check that the column of words is the right one: `::text=COLUMN`",
        test="tests/data/test_first_tokens.py::test_lists_of_words_have_the_tokens_and_first_tokens_of_the_library",
    ),
    Row(
        "evaluate models with different tokenizers apart",
        f"eval words --data own.jsonl {TABLES} --compare other=letters",
        f"eval words --data own.jsonl {TABLES}",
        files={"own.jsonl": '{"tokens": ["the", "on"], "ner_tags": ["O", "B-x"]}\n'},
        prepare=_letters,
    ),
    Row(
        "leave it out",
        f"eval words --data own.jsonl {TABLES}",
        f"eval words --data words.jsonl {TABLES}",
        files={"own.jsonl": '{"tokens": ["cat"], "ner_tags": ["B-x"]}\n{"tokens": [], "ner_tags": []}\n'},
    ),
    Row(
        "give a `tokenizer.json`: `arch:openclip:NAME::tokenizer=PATH/tokenizer.json`",
        _patched(
            "hydractl.families.openclip.family.is_python_tokenizer",
            "from pathlib import Path; from hydractl.families.openclip import family as t; "
            "t.tokenization({'hf_tokenizer_name': 'x'}, Path('bert/tokenizer.json'), (8, 61))",
        ),
        "predict clip images/a --classes photo,drawing",
    ),
    Row(
        "use `--device cpu`, or `--no-latency` to keep only one row in memory",
        "python import torch; from hydractl import EvalConfig, evaluate; from hydractl.prediction import run_models as m; "
        "from unittest import mock\nwith mock.patch.object(m, 'load_any', side_effect=torch.OutOfMemoryError()):\n"
        "    evaluate(EvalConfig(model='base.st', data='digits::classes=0-6,limit=9', latency=False))",
        f"{EVAL} --device cpu -o o.json",
    ),
    Row(
        "to accept that difference, add `--tolerance {}`",
        "python from hydractl.exporting.comparison import require_near; require_near(0.01, 1e-4, inputs_name='x')",
        "export base.st -o o.pt2 --tolerance NUMBER",
    ),
    Row(
        "write a `.pt2`, or prune more heads",
        "python from unittest import mock; from pathlib import Path; from hydractl.stages.export.config import ExportConfig; "
        "from hydractl.stages.export.run import run_export\n"
        "with mock.patch('hydractl.exporting.formats.MOST_BYTES', 9):\n"
        "    run_export(ExportConfig(model='base.st', out=Path('o.onnx')))",
        "export base.st -o o.pt2",
    ),
    Row(
        "one of them has no class names: `import --labels a,b,c` and `make --labels a,b,c` name those of imported weights",
        "fuse named.st bare.st -o o.st",
        "fuse named.st again.st -o o.st",
        before=tuple(
            f"import w.pth --arch timm {labels} -q -o {name}.st"
            for name, labels in (
                ("named", "--labels a,b,c,d,e,f,g"),
                ("again", "--labels a,b,c,d,e,f,g"),
                ("bare", ""),
            )
        ),
    ),
    Row(
        "`hydractl eval {} --data HELD_OUT --threshold-for 'risk<=0.05' -o report.json` writes a report of it",
        "predict five.st images/a --threshold report.json",
        f"{EVAL} --threshold-for 'risk<=0.99' -o o.json",
    ),
    Row(
        "read the errors {}, and give images that can be read",
        "predict base.st broken.png",
        "predict base.st images/a/0.png",
        files={"broken.png": b"\x89PNG\r\n\x1a\n"},
    ),
    Row(
        "add `--data DATA`, for example `--data val/`, or use a method that reads no data: `--method magnitude`",
        "score base.st --method taylor -o o.json",
        "score base.st --method magnitude -o o.json",
    ),
    Row(
        "for example `--keep-fraction 0.5`",
        f"{SCORE} --method cahp --keep-heads 0",
        f"{SCORE} --method cahp --keep-fraction 0.5",
    ),
    Row(
        "lower `--weights-lr`",
        "python import torch; from hydractl.checkpoint import Checkpoint; from pathlib import Path; "
        "from hydractl.research.scores.gates import GateRun, TrainedWeights\n"
        "from types import SimpleNamespace as N; c = Checkpoint.open(Path('base.st'))\n"
        "w = {n: torch.full_like(x, float('inf')) if x.is_floating_point() else x for n, x in c.tensors().items()}\n"
        "e = (TrainedWeights(save_model=Path('t.st')),)\n"
        "GateRun(N(extensions=e), N(checkpoint=c)).publish(None, None, N(weights=w), None)",
        "score base.st --data digits::classes=0-6,limit=14 --method l0 --epochs 1 --batch-size 8 --training joint "
        "--weights-lr 1e-4 -o o.json",
        research=True,
    ),
    Row(
        "use OOD scores of logits, such as energy",
        "fuse multi --train labels.jsonl --val labels.jsonl -o o.st",
        "fuse multi -o o.st",
    ),
    Row(
        "for example `--keep-heads {}`",
        "prune base.st --scores scores.json --keep-heads 9 -o o.st",
        "prune base.st --scores scores.json --keep-heads NUMBER -o o.st",
    ),
    Row(
        "give at most `--remove {}`",
        "prune base.st --scores scores.json --remove 90 -o o.st",
        "prune base.st --scores scores.json --remove NUMBER -o o.st",
    ),
    Row(
        "give `--temperature` another value, or leave it out",
        "eval cold.st --data digits::classes=0-6,limit=9,split=test --no-latency --bootstrap 0 --temperature 500",
        "eval cold.st --data digits::classes=0-6,limit=9,split=test --no-latency --bootstrap 0 --temperature 1",
        before=("fuse m-0.st m-1.st --temperature 500 -q -o cold.st",),
    ),
    Row(
        "use one of {}, with the prefix always before or always after the type; `::map=OLD:NEW,...` renames classes of data",
        "finetune bert --train own.conll --val own.conll --steps 1 -o o.st",
        "finetune bert --train words.conll --val words.conll --steps 1 -o o.st",
        files={"own.conll": "the O\ncat B-x\nsat L-x\n\na O\nmat I-x\non E-x\n"},
    ),
    Row(
        "a newer release may have made it: `{} --upgrade`",
        "prune base.st --scores new.json --remove 1 -o o.st",
        "inspect scores.json",
        prepare=lambda: Path("new.json").write_text(
            Path("scores.json").read_text().replace("hydractl.scores/1", "hydractl.scores/99")
        ),
    ),
)
