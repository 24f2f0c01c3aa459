"""Hints of `hydractl/cli/`."""

from __future__ import annotations

from pathlib import Path

from support.hints.table import Row

PARAMETERS = "[params]\nmembers = 3\n"
STAGE = '[[stage]]\nname = "fuse"\ncommand = "fuse"\nmodels = ["m-0.st", "m-1.st"]\nout = "o.st"\n'
FILE = {"p.toml": PARAMETERS + STAGE}
TRY = "run p.toml --dry-run"
HALVES = "--val digits::classes=0-6,split=val --test digits::classes=0-6,split=test -o made"
MAKES = f"make m-0.st m-1.st {HALVES} --dry-run"
LONG = "z" * 600


def _write(text: str) -> None:
    Path("p.toml").write_text(text)


def _broken(hint: str, text: str, mended: str = PARAMETERS + STAGE) -> Row:
    """Return the row of a pipeline file that the user corrects."""
    return Row(hint, TRY, TRY, files={"p.toml": text}, mend=lambda: _write(mended))


ROWS = (
    Row(
        "{}, or add `--skip-bad`",
        "predict base.st images --no-skip-bad",
        "predict base.st images --skip-bad",
        files={"images/a/9.png": "no image"},
    ),
    Row(
        "choose a folder without a comma in its name",
        "demo -o a,b --dry-run",
        "demo -o a --dry-run",
    ),
    Row("add `--task digits`", "demo --full --dry-run", "demo --task digits --full --dry-run"),
    Row(
        "`pip install 'hydractl[demo]'`; `hydractl demo --task digits` needs no package",
        test="tests/cli/demo/test_inputs.py::test_a_missing_package_is_named",
    ),
    Row("`--dry-run` prints the commands", MAKES.replace("--dry-run", "--save-pipeline -"), MAKES),
    Row("leave it out, or give such files", f"{MAKES} --arch vit_tiny_patch16_224", MAKES),
    Row(
        "leave it out, or give several models",
        f"make m-0.st {HALVES} --max-nll-increase 0.1 --dry-run",
        f"make m-0.st {HALVES} --dry-run",
    ),
    Row(
        "add `--hydra {}`, or leave the option out",
        f"make m-0.st {HALVES} --epochs 1 --dry-run",
        f"make m-0.st {HALVES} --train digits::classes=0-6,split=train --hydra tuned --epochs 1 --dry-run",
    ),
    Row(
        "leave it out, or give a single model",
        f"{MAKES} --hydra tuned",
        MAKES,
    ),
    Row(
        "leave it out, or add `--hydra tuned`",
        f"make m-0.st {HALVES} --pick m-0 --dry-run",
        f"make m-0.st {HALVES} --dry-run",
    ),
    Row("choose from {}", f"{MAKES} --pick ensemble", f"{MAKES} --pick m-0"),
    Row("leave one of them out", f"{MAKES} --risk none --keep-known none", f"{MAKES} --risk none"),
    Row(
        "`hydractl import {} -o model.st`, then `hydractl make model.st`",
        test="tests/cli/test_make.py::test_what_cannot_be_is_refused",
    ),
    Row(
        "use `--hydra {}`, which needs no training",
        test="tests/cli/test_make.py::test_a_zero_shot_model_gets_class_names_and_a_hydra_without_training",
    ),
    Row(
        "add `--classes A,B,C` or `--classes names.txt`, and `--template` for other prompts",
        test="tests/cli/test_make.py::test_a_zero_shot_model_gets_class_names_and_a_hydra_without_training",
    ),
    Row(
        "add `--train DATA`, or leave out `--hydra`",
        test="tests/cli/test_make.py::test_data_that_give_no_meaningful_model_are_refused_before_the_first_stage",
    ),
    Row(
        "give data with the classes of the model, or select them with `::classes=`",
        test="tests/cli/test_make.py::test_data_that_give_no_meaningful_model_are_refused_before_the_first_stage",
    ),
    Row(
        "give labelled samples of every class",
        test="tests/cli/test_make.py::test_data_that_give_no_meaningful_model_are_refused_before_the_first_stage",
    ),
    Row(
        "metrics: {}; for example `--smallest nll=0.01`",
        f"{MAKES} --smallest brier=1",
        f"{MAKES} --smallest nll=0.01",
    ),
    Row("give `{}`", f"make a=m-0.st {HALVES} --dry-run", f"make m-0.st {HALVES} --dry-run"),
    Row("`hydractl run --example vit > hydra.toml` writes an example", "run", "run --example vit"),
    Row("for example `--set members=5`", f"{TRY} --set members", f"{TRY} --set members=5", files=FILE),
    Row("leave one of them out", f"{TRY} --only fuse --from fuse", f"{TRY} --only fuse", files=FILE),
    Row("stages: {}", f"{TRY} --only zzzz", f"{TRY} --only fuse", files=FILE),
    _broken("`hydractl run --example vit` prints a valid file", "members: 3"),
    _broken("`run` sets it", f"{STAGE}force = true\n"),
    _broken("begin each stage with `[[stage]]`", PARAMETERS),
    _broken("choose from {}", STAGE.replace('"fuse"\nm', '"zzzzzz"\nm')),
    Row(
        "for example `--set {}={}`",
        f"{TRY} --set members=many",
        f"{TRY} --set members=3",
        files=FILE,
    ),
    Row("it has {}", f"{TRY} --set zzzz=1", f"{TRY} --set members=1", files=FILE),
    _broken("known: {}", f"zzzzzz = 1\n{STAGE}"),
    _broken(
        "parameters may refer to each other too often",
        f'[params]\na = "{LONG}"\nb = "{"{a}" * 100}"\nc = "{"{b}" * 100}"\n{STAGE}',
    ),
    _broken("see `hydractl {} --help`", f"{STAGE}zzzzzz = 1\n"),
    _broken("stages run in the order of the file", STAGE.replace("m-1.st", "@zzzz")),
    _broken("there are {}", STAGE.replace("m-1.st", "{zzzz}")),
    _broken("write `[defaults.finetune]`, and `option = value` below", f"defaults = 1\n{STAGE}"),
    _broken("write `[params]` and then lines `name = value`", f"params = 1\n{STAGE}"),
    Row(
        "`hydractl run {}` resumes that plan; `--force` replaces it and runs the stages that change",
        f"{MAKES} --save-pipeline plan.toml --risk 0.2",
        "run plan.toml --dry-run",
        before=(f"{MAKES} --save-pipeline plan.toml",),
    ),
    Row(
        "please report it, with the lines above: https://github.com/hydractl/hydractl/issues",
        test="tests/cli/test_app.py::test_other_failures_are_documents_too",
    ),
    Row(
        "{}…{}",
        f"{TRY} --only zzzz",
        f"{TRY} --only {LONG}",
        files={"p.toml": STAGE.replace('"fuse"\nc', f'"{LONG}"\nc')},
    ),
)
