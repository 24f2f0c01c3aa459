"""`hydractl run`: a pipeline file becomes command lines, and up-to-date stages are not run again."""

from __future__ import annotations

import json
import random
import shlex
import tracemalloc
from pathlib import Path
from typing import get_args

import pytest

from hydractl.cli.commands import run as runs
from support.pairs import pair
from support.reviews import GADGETS, arch, gibberish, reviews

PIPELINE = """
[params]
members = 2
keep = 2
out = "r-{keep}"

[[stage]]
name = "members"
command = "prune"
repeat = "{members}"
model = "base.st"
strategy = "random"
keep = "{keep}"
seed = "{i}"
verify = false
out = "{out}-{i}.st"

[[stage]]
name = "together"
command = "prune"
model = "base.st"
scores = ["scores.json"]
keep = 2
members = 2
pool = 7
verify = false
out = "t-{i}.st"

[[stage]]
name = "fuse"
command = "fuse"
models = ["@members", "@together"]
out = "my hydra.st"

[[stage]]
name = "eval"
command = "eval"
model = "@fuse"
data = "digits::classes=0-6,limit=7"
compare = ["Apart=@members"]
latency = false
bootstrap = 0
out = "report.json"

[[stage]]
name = "predict"
command = "predict"
model = "@fuse"
data = ["digits::classes=0-6,limit=7"]
out = "said.csv"
"""
LINES = """\
# members
hydractl prune base.st --strategy random --keep 2 --seed 0 --no-verify -o r-2-0.st --if-changed
hydractl prune base.st --strategy random --keep 2 --seed 1 --no-verify -o r-2-1.st --if-changed
# together
hydractl prune base.st --scores scores.json --keep 2 --members 2 --pool 7 --no-verify -o 't-{i}.st' --if-changed
# fuse
hydractl fuse r-2-0.st r-2-1.st t-0.st t-1.st -o 'my hydra.st' --if-changed
# eval
hydractl eval 'my hydra.st' --data digits::classes=0-6,limit=7 --compare Apart=r-2-0.st,r-2-1.st --no-latency --bootstrap 0 -o report.json --if-changed
# predict
hydractl predict 'my hydra.st' digits::classes=0-6,limit=7 -o said.csv --if-changed
"""


@pytest.fixture
def pipeline(work):
    Path("p.toml").write_text(PIPELINE)
    return work


def test_a_dry_run_prints_the_commands_and_runs_none(pipeline, call):
    before = set(pipeline.iterdir())

    seen = call("run", "p.toml", "--dry-run")

    assert (seen.code, seen.err) == (0, "")
    assert seen.out == LINES
    assert set(pipeline.iterdir()) == before
    told = json.loads(call("run", "p.toml", "--dry-run", "--json").out)["stages"]
    assert [shlex.join(one["command"]) for one in told] == [
        line for line in LINES.splitlines() if line.startswith("hydractl")
    ]


def test_parameters_and_stages_are_chosen(pipeline, call):
    def dry(*more: str) -> str:
        return call("run", "p.toml", "--dry-run", "-q", *more).out

    assert dry("--set", "members=3", "--only", "members").count("prune") == 3
    assert "-o r-1-0.st" in dry("--set", "keep=1", "--only", "members")
    assert dry("--from", "fuse").splitlines() == dry().splitlines()[-3:]
    assert "fuse r-2-0.st r-2-1.st r-2-2.st t-0.st" in dry("--set", "members=3", "--only", "fuse")


def test_an_option_with_the_name_of_a_stage_key_is_written_with_dashes(pipeline, call):
    text = PIPELINE.replace('name = "eval"', 'name = "eval"\n--name = "row"')
    assert text != PIPELINE
    Path("n.toml").write_text(text)

    assert "--name row" in call("run", "n.toml", "--dry-run", "--only", "eval", "-q").out


def test_defaults_hold_for_all_stages_of_a_command_that_do_not_say_otherwise(pipeline, call):
    text = PIPELINE.replace("verify = false\n", "").replace("keep = 2\nmembers", "members")
    Path("d.toml").write_text(f"[defaults.prune]\nverify = false\nkeep = 2\n{text}")

    def words(file: str) -> list[list[str]]:
        return [sorted(line.split()) for line in call("run", file, "--dry-run", "-q").out.splitlines()]

    assert words("d.toml") == words("p.toml")


def test_values_that_begin_with_a_dash_stay_values(pipeline, call):
    text = PIPELINE.replace('"my hydra.st"', '"-my {keep} hydra.st"').replace(
        '["scores.json"]', '["-s.json"]'
    )
    Path("p.toml").write_text(text)

    words = [
        stage["command"] for stage in json.loads(call("run", "p.toml", "--dry-run", "--json").out)["stages"]
    ]

    assert "--scores=-s.json" in words[2]
    assert words[3][-3:] == ["-o", "-my 2 hydra.st", "--if-changed"]
    assert words[4][2] == words[5][2] == "./-my 2 hydra.st"
    seen = call("run", "p.toml", "--only", "members")
    assert seen.code == 0, seen.err
    Path("p.toml").write_text(text.replace(', "@together"', ""))
    seen = call("run", "p.toml", "--only", "fuse", "--only", "predict")
    assert (seen.code, Path("-my 2 hydra.st").exists()) == (0, True), seen.err


def test_folders_of_outputs_are_made(pipeline, call):
    seen = call("run", "p.toml", "--only", "members", "--set", "out=new/folder/r")

    assert seen.code == 0
    assert sorted(path.name for path in Path("new/folder").glob("*.st")) == ["r-0.st", "r-1.st"]
    assert call("run", "p.toml", "--only", "members", "--set", "out=base.st/r").code == 3


@pytest.mark.parametrize(
    ("spent", "position"),
    [
        ([], "command 1 of 4, about 1.7 min left"),
        ([40.0], "command 2 of 4, about 2.7 min left"),
        ([20.0, 0.1], "command 3 of 4, about 50 s left"),
        ([20.0, 0.1, 90.0], "command 4 of 4"),
    ],
)
def test_the_time_left_follows_the_pace_of_what_was_not_up_to_date(spent, position):
    countdown = runs.Countdown([20.0, 30.0, 50.0, 0.0])
    for seconds in spent:
        countdown.step(seconds)

    assert countdown.position == position


def test_what_is_up_to_date_is_not_made_again(pipeline, call):
    first = call("run", "p.toml")
    assert first.code == 0
    files = {path: path.stat().st_ino for path in pipeline.iterdir()}

    again = call("run", "p.toml", "-q")
    other = call("run", "p.toml", "--json", "--set", "members=1")

    assert (again.code, again.err) == (0, "")
    assert again.out.splitlines()[-2:] == ["report.json", "said.csv"]
    told = {one["stage"]: one["result"] for one in json.loads(other.out)["stages"]}
    assert told["together"]["up_to_date"] is True
    assert "up_to_date" not in told["fuse"]
    assert len(told["eval"]["rows"][1]["models"]) == 1
    unchanged = ("r-2-0.st", "r-2-1.st", "t-0.st")
    assert all((pipeline / name).stat().st_ino == files[pipeline / name] for name in unchanged)


def test_a_stage_that_fails_ends_the_run_with_its_own_code(pipeline, call):
    Path("my hydra.st").write_text("mine")

    seen = call("run", "p.toml")

    assert seen.code == 6
    assert "stage `fuse` failed with exit code 6" in seen.err
    assert not Path("report.json").exists()
    told = json.loads(call("run", "p.toml", "--json").out)
    assert [one["stage"] for one in told["stages"]] == ["members", "members", "together", "fuse"]
    assert told["error"] == told["stages"][-1]["result"]["error"]
    assert (told["error"]["kind"], told["error"]["exit_code"]) == ("output_exists", 6)
    Path("my hydra.st").unlink()
    assert call("run", "p.toml", "-q").code == 0


def test_an_interrupted_stage_ends_the_run(pipeline, call, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hydractl.stages.prune.run.run_prune", interrupt)

    assert call("run", "p.toml").code == 130


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("keep = 2\nmembers", "kep = 2\nmembers", "stage `together`: `kep` is not an option of `hydractl prune`"),
        ("kep", "kep", "did you mean `keep`"),
        ('"fuse"\nmodels', '"fuze"\nmodels', "did you mean `fuse`"),
        ("@together", "@togeter", "did you mean `together`"),
        ('"{members}"', '"{membrs}"', "did you mean `members`"),
        ('"{members}"', '"two"', "is not a valid number of repetitions"),
        ("pool = 7", "pool = 7\nforce = true", "`run` sets it"),
        ("pool = 7", "pool = true", "needs a value"),
        ("verify = false\nout = \"{out}", "verify = 3\nout = \"{out}", "is a flag"),
        ("pool = 7", "pool = {}", "is not a string, number"),
        ("pool = 7", "pool = [true]", "needs a value"),
        ("pool = 7", "pool = [7, 8]", "stage `together`: pool: 2 values are too many"),
        ("pool = 7", "pool = []", "stage `together`: pool: 0 values are too few"),
        ('"@fuse"\ndata = "', '"@members"\ndata = "', "stage `eval`: model: 2 values are too many"),
        ('models = ["@members", "@together"]', "models = []", "models: 0 values are too few"),
        ('models = ["@members", "@together"]', "", "stage `fuse`: `MODEL...` is missing"),
        ('models = ["@members", "@together"]\nout = "my hydra.st"', "", "see `hydractl fuse --help`"),
        ('"@members", "@together"', '"--force"', "stage `fuse`: models: `--force` begins with `-`"),
        ('"@members", "@together"', '"--force"', "for a file of that name write `./--force`"),
        ('"@members", "@together"', '"a.st", "-o=b.st"', "`-o=b.st` begins with `-`"),
        ('"@members", "@together"', '"--", "a.st"', "`--` begins with `-`"),
        ('model = "base.st"\nscores', 'model = "--help"\nscores', "model: `--help` begins with `-`"),
        ('"@members", "@together"', '"a\\u0000b.st"', "'a\\x00b.st' is empty or has a NUL character"),
        ('"@members", "@together"', '""', "models: '' is empty or has a NUL character"),
        ("bootstrap = 0", 'bootstrap = 0\nmetrics = ["a,b", "c"]', "metrics: `a,b` has a comma"),
        ("pool = 7", "", "stage `together`: `--members` needs a pool"),
        ('"random"', '"randm"', "stage `members`"),
        ("[params]", "[parms]", "did you mean `params`"),
        ("[params]", "[params", "is not TOML"),
        ('name = "fuse"', 'name = "members"', "needs a unique `name`"),
        ("pool = 7", "pool = 7\nseconds = -1", "seconds = -1: is not a time"),
        ("pool = 7", "pool = 7\nseconds = true", "seconds = true: is not a time"),
        ("[params]", "[defaults.fuze]\n[params]", "did you mean `fuse`"),
        ("[params]", "[defaults.export]\n[params]", "defaults: `export` is unknown"),
        ("[params]", "[defaults.fuse]\nkeep = 1\n[params]", "stage `fuse`: `keep` is not an option of `hydractl fuse`"),
        ("[params]", "[defaults]\nfuse = 1\n[params]", "`defaults` must have one table per command"),
    ],
)  # fmt: skip
def test_what_a_file_says_wrongly_is_told_before_anything_runs(pipeline, call, old, new, text):
    wrong = (
        PIPELINE.replace("keep = 2\nmembers", "kep = 2\nmembers")
        if old == new
        else PIPELINE.replace(old, new)
    )
    assert wrong != PIPELINE
    Path("p.toml").write_text(wrong)
    before = set(pipeline.iterdir())

    seen = call("run", "p.toml")

    assert seen.code == 3
    assert "p.toml: " in seen.err
    assert text in seen.err
    assert set(pipeline.iterdir()) == before


DOUBLING = "[params]\na0 = 'xxxxxxxxxx'\n" + "".join(f"a{i + 1} = '{{a{i}}}{{a{i}}}'\n" for i in range(40))
STAGE = "[[stage]]\nname = 's'\ncommand = 'prune'\nmodel = 'base.st'\nstrategy = 'random'\nkeep = 2\nverify = false\nout = 'r-{i}.st'\n"
LONG = STAGE.replace("r-", "r" * 200 + "-") + "repeat = 2\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DOUBLING + STAGE, "params: has more than 1,000,000 characters after substitution"),
        (f"[params]\na = '{'x' * 1000}'\nb = '{'{a}' * 2000}'\n" + STAGE, "params.b: has more than 1,000,000"),
        (STAGE + "repeat = 1000000000\n", "stage `s`: gives more than 10,000 command lines in total"),
        ((STAGE + "repeat = 6000\n").replace("'s'", "'t'").replace("prune", "nothing"), "`nothing` is not a command"),
        (LONG + "[[stage]]\nname = 'f'\ncommand = 'fuse'\nmodels = [" + "'@s', " * 9_000 + "]\nout = 'h.st'\n",
         "stage `f`: models: has more than 1,000,000 characters"),
        (LONG + "[[stage]]\nname = 'f'\ncommand = 'fuse'\nmodels = 'x=" + "@s," * 9_000 + "'\nout = 'h.st'\n",
         "stage `f`: models: has more than 1,000,000 characters"),
        (STAGE + "members = 1000000000\n", "stands for 1000000000 outputs, but the maximum is 10000"),
        (STAGE.replace("keep = 2", f"keep = 0x{'f' * 9999}"), "keep: is not a string, number, boolean"),
        (STAGE.replace("keep = 2", f"keep = {'9' * 9999}"), "is not TOML: "),
        ("x = " + "[" * 99_999, "is not TOML: values are nested too deep"),
        ("a." * 99_999 + "a = 1", "is not TOML: a key has too many parts"),
        ("'a' . \"\\\"\" ." * 9_999 + "a = 1", "is not TOML: a key has too many parts"),
        ("x = {" + "a." * 99_999 + "a = 1}", "is not TOML: a key has too many parts"),
        ("#" * 1_000_001, "has more than 1,000,000 bytes"),
        ("#" * 999_990 + "\n" + "a" * 8, "is not TOML"),
    ],
    ids=range(15),
)  # fmt: skip
def test_a_file_that_grows_is_refused_before_it_does(work, call, text, message):
    Path("p.toml").write_text(text)
    tracemalloc.start()

    seen = call("run", "p.toml", "--dry-run")

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (seen.code, seen.out, seen.err.count("error: ")) == (3, "", 1)
    assert message in seen.err
    assert peak < 64_000_000


def test_how_often_a_stage_is_repeated_names_what_says_it(pipeline, call):
    seen = call("run", "p.toml", "--set", "members=-1")

    assert seen.code == 3
    assert "p.toml: stage `members`: repeat = {members}: -1 is not a valid number of repetitions" in seen.err


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--set", "member=3"], "did you mean `members`"),
        (["--set", "members=many"], "must be a whole number, like 2"),
        (["--set", "members"], "expected NAME=VALUE"),
        (["--only", "fuze"], "did you mean `fuse`"),
        (["--from", "fuse", "--only", "fuse"], "exclude each other"),
        (["--example", "vit"], "give a pipeline file, or `--example`"),
    ],
)
def test_what_is_typed_wrongly_is_refused(pipeline, call, more, text):
    seen = call("run", "p.toml", *more)

    assert seen.code == 2
    assert text in seen.err


def test_examples_are_the_files_that_there_are(call):
    there = {path.stem for path in (Path(runs.__file__).parents[1] / "examples").glob("*.toml")}

    assert {*get_args(runs.Example)} == there
    assert f"<{'|'.join(get_args(runs.Example))}>" in call("run", "-h").out


def test_under_json_a_pipeline_without_a_command_is_a_document(work, call):
    Path("p.toml").write_text('[[stage]]\nname = "a"\ncommand = "doctor"\nrepeat = 0\n')

    assert json.loads(call("run", "p.toml", "--json").out) == {"stages": []}


def test_under_json_an_example_is_a_document(call):
    text = call("run", "--example", "vit").out

    assert json.loads(call("run", "--example", "vit", "--json").out) == {"pipeline": text}


@pytest.mark.parametrize("name", ["foo", "../examples/vit", ""])
def test_an_example_that_there_is_not_is_refused(call, name):
    seen = call("run", "--example", name)

    assert (seen.code, seen.out) == (2, "")
    assert all(f"`{one}`" in seen.err for one in get_args(runs.Example))


@pytest.mark.parametrize("name", get_args(runs.Example))
def test_every_example_is_understood(work, call, name):
    Path("x.toml").write_text(call("run", "--example", name).out)

    seen = call("run", "x.toml", "--dry-run")

    assert (seen.code, seen.err) == (0, "")
    assert "hydractl fuse" in seen.out
    assert "hydractl eval" in seen.out


SMALL = {
    "bert": "together=1 apart=1 merged=1 lr=1e-3 train=train.jsonl val=val.jsonl test=test.jsonl near=near.jsonl far=far.jsonl",
    "decoder": "epochs=1 tuning=1 keep=2 pool=6 train=train.jsonl val=val.jsonl test=test.jsonl near=near.jsonl far=far.jsonl",
    "clip": "model=clip.st sample=24 keep=2 train=digits::split=train,limit=48 test=digits::split=test,limit=48 "
    "near=photos::limit=24 far=noise::limit=24 classes=0,1,2,3,4,5,6,7,8,9",
}  # fmt: skip
FIRST = {"bert": "start", "decoder": "start", "clip": "score"}
"""First stage that runs; earlier stages prepare a pretrained model."""


@pytest.mark.more
@pytest.mark.parametrize("name", SMALL)
def test_examples_run_with_less_data(tmp_path, monkeypatch, call, name):
    """Tiny models with random weights replace the pretrained ones."""
    monkeypatch.chdir(tmp_path)
    settings = [*SMALL[name].split(), "members=2"]
    if name == "clip":
        pair("clip", tmp_path).save(tmp_path / "clip.st")
    else:
        bert = arch(tmp_path)
        for seed, part in enumerate(("train", "val", "test")):
            reviews(Path(f"{part}.jsonl"), 48, seed=seed)
        reviews(Path("near.jsonl"), 16, seed=3, things=GADGETS)
        gibberish(Path("far.jsonl"), 16, seed=4)
        llama = bert.replace("arch:bert::", "arch:llama::num_key_value_heads=2,pad_token_id=0,")
        settings.append(f"model={bert if name == 'bert' else llama}")
    more = [word for one in settings for word in ("--set", one)]
    Path("x.toml").write_text(call("run", "--example", name).out)

    first, again = (call("run", "x.toml", *more, "--from", FIRST[name]) for _ in range(2))

    assert (first.code, again.code) == (0, 0), first.err
    assert "Not up to date" not in again.err
    assert "report.json: up to date" in again.out


def test_escaped_texts_are_read_as_they_are():
    """Law: a pipeline reads `literal(text)` as `text`, for any braces and signs."""
    from hydractl.cli.app import command_tree
    from hydractl.cli.commands.run import written
    from hydractl.cli.pipeline import literal, parsed

    draw = random.Random(0)  # noqa: S311 - a law, not a key
    texts = ["".join(draw.choices("{}@=ab1", k=draw.randrange(1, 12))) for _ in range(500)]
    texts += ["{a}", "{{a}}", "{{{a}}}", "@a", "@@a", "x=@a,@b", "=@@", "{a}@{b}", "\x7f"]
    stage = {"name": "a", "command": "fuse", "models": texts, "out": "h.st"}
    pipeline = written([{key: literal(value) for key, value in stage.items()}], command="make")

    assert list(parsed(Path("p.toml"), pipeline, {}, command_tree())[0].lines[0][1:-2]) == texts
