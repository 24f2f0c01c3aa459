"""Draw the picture of README: questions, a trunk with three members, and the answers that are accepted or held back.

    python benchmarks/picture.py --work picture/ -o docs/pictures/

Everything in the picture is the result of hydractl's commands, run in `--work` and reused if present: the classifier
and the ten fixed questions of `hydractl demo`, three copies with a last block of their own, their hydra, and its
answers. The program writes `trust-light.svg` and `trust-dark.svg`. Needs `pip install 'hydractl[demo]'`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from hydractl.cli.app import main as hydractl
from hydractl.families.open_model import open_model

TRAIN, TEST, VAL = "intents::split=train", "intents::split=test", "intents::split=val"
MEMBERS = 3
ROW, TOP, WIDTH = 37, 82, 1000
TRUNK, MEMBER, ANSWER, VERDICT = 285, 450, 585, 850
"""Left edges of the columns after the questions."""


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of a theme."""

    text: str
    quiet: str
    line: str
    fill: str
    accent: str
    accepted: str
    held_back: str


THEMES = {
    "light": Palette("#1f2328", "#59636e", "#8c959f", "#f6f8fa", "#0969da", "#1a7f37", "#bc4c00"),
    "dark": Palette("#f0f6fc", "#9198a1", "#6e7681", "#161b22", "#4493f8", "#3fb950", "#f0883e"),
}


def run(work: Path) -> tuple[int, int, Sequence[tuple[Mapping[str, str], Mapping[str, object]]]]:
    """Run all commands.

    Returns:
        Blocks of the trunk, all blocks, and pairs of question and answer.
    """
    demo, members = work / "demo", [work / f"member-{i}.st" for i in range(MEMBERS)]
    tuning = ("--trunk", "5", "--lr", "1e-4", "--epochs", "5", "--batch-size", "32")
    commands: list[list[str]] = [["demo", "-o", str(demo)]]
    commands += [
        ["finetune", str(demo / "intents.st"), "--train", TRAIN, "--val", f"{TEST},part=1/2", *tuning,
         "--seed", str(i), "-o", str(member), "--if-changed"]
        for i, member in enumerate(members)
    ]  # fmt: skip
    fitting, testing = f"{VAL},part=1/2", f"{VAL},part=2/2"
    commands += [
        ["fuse", *map(str, members), "--temperature", fitting, "--train", TRAIN, "--val", fitting,
         "-o", str(work / "hydra.st"), "--if-changed"],
        ["eval", str(work / "hydra.st"), "--data", testing, "--keep-known", "0.95", "--threshold-for", "risk<=0.05",
         "--no-latency", "--bootstrap", "0", "--save-model", str(work / "model.st"), "-o", str(work / "threshold.json"), "--if-changed"],
        ["predict", str(work / "model.st"), str(demo / "questions.jsonl"), "-o", str(work / "answers.jsonl"), "--if-changed"],
    ]  # fmt: skip
    for command in commands:
        if code := hydractl([*command, "-q"]):
            raise SystemExit(code)
    header = open_model(str(work / "hydra.st")).header
    files = (demo / "questions.jsonl", work / "answers.jsonl")
    pairs = zip(
        *([json.loads(text) for text in file.read_text().splitlines()] for file in files), strict=True
    )
    trunk = header.plan.trunk if header.plan else 0
    return trunk, sum(tower.layers for tower in header.architecture.towers.values()), [*pairs]


def text(x: float, y: float, content: str, colour: str, *, size: int = 17, more: str = "") -> str:
    """Return a line of text; `y` is the baseline."""
    return f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" {more}>{escape(content)}</text>'


def box(x: float, y: float, width: float, height: float, palette: Palette) -> str:
    """Return a rounded rectangle."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{palette.fill}" '
        f'stroke="{palette.accent}" stroke-width="2"/>'
    )


def curve(start: tuple[float, float], end: tuple[float, float], colour: str) -> str:
    """Return a curve between two points with horizontal ends."""
    middle = (start[0] + end[0]) / 2
    return (
        f'<path d="M{start[0]} {start[1]} C{middle} {start[1]} {middle} {end[1]} {end[0]} {end[1]}" '
        f'fill="none" stroke="{colour}" stroke-width="1.5"/>'
    )


def parts(
    trunk: int, blocks: int, pairs: Sequence[tuple[Mapping[str, str], Mapping[str, object]]], palette: Palette
) -> Iterator[str]:
    """Yield the elements of the picture."""
    height = ROW * len(pairs)
    middle = TOP + height / 2 - 6
    for x, heading in (
        (16, "questions"),
        (TRUNK, "one model"),
        (ANSWER, "answer (wrong: struck out)"),
        (VERDICT - 20, "accepted?"),
    ):
        yield text(x, 40, heading, palette.quiet)
    boxes = [middle - 110 + 85 * i for i in range(MEMBERS)]
    for i, (question, answer) in enumerate(pairs):
        y = TOP + ROW * i
        yield curve((215, y - 6), (TRUNK, middle), palette.line)
        yield text(16, y, question["text"], palette.text)
        accepted, right = answer["accepted"], answer["label"] == question["label"]
        colour = palette.accepted if accepted and right else palette.held_back
        strike = "" if right else 'text-decoration="line-through"'
        yield text(ANSWER, y, str(answer["label"]), palette.text if right else palette.quiet, more=strike)
        yield text(ANSWER + 225, y, f"{answer['probability']:.2f}", palette.quiet, more='text-anchor="end"')
        verdict = ("✓ yes" if right else "✗ yes, wrong") if accepted else f"no: {answer['reason']}"
        yield text(VERDICT - 20, y, verdict, colour, more='font-weight="600"')
    for top in boxes:
        yield curve((TRUNK + 120, middle), (MEMBER, top + 25), palette.accent)
        yield curve((MEMBER + 90, top + 25), (ANSWER - 14, middle), palette.accent)
    yield f'<path d="M{ANSWER - 14} {TOP - 20} V{TOP + height - 22}" stroke="{palette.accent}" stroke-width="2"/>'
    yield box(TRUNK, middle - 60, 120, 120, palette)
    for line, content in enumerate(("trunk", f"{trunk} of {blocks} blocks,", "run once")):
        yield text(TRUNK + 60, middle - 18 + 24 * line, content, palette.text if line == 0 else palette.quiet,
                   size=17 if line == 0 else 15, more='text-anchor="middle"')  # fmt: skip
    for i, top in enumerate(boxes):
        yield box(MEMBER, top, 90, 50, palette)
        yield text(
            MEMBER + 45, top + 31, f"member {i + 1}", palette.text, size=15, more='text-anchor="middle"'
        )


def main() -> None:
    """Run the commands and draw the picture for each theme."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for models and answers, reused if present"
    )
    parser.add_argument("-o", type=Path, required=True, help="folder for the pictures")
    options = parser.parse_args()
    trunk, blocks, pairs = run(options.work)
    options.o.mkdir(parents=True, exist_ok=True)
    for name, palette in THEMES.items():
        height = TOP + ROW * len(pairs) - 10
        content = "\n".join(parts(trunk, blocks, pairs, palette))
        (options.o / f"trust-{name}.svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="system-ui, -apple-system, Segoe UI, sans-serif">\n{content}\n</svg>\n'
        )


if __name__ == "__main__":
    main()
