"""What `hydractl inspect` shows of masks, scores and lineage, and the words it shares with checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydractl.cli.output import line, model_cell
from hydractl.errors import harmless_line
from hydractl.messages import counted, quoted
from hydractl.reporting.lineage import Node, lineage, pairs, short

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from hydractl.manifest.head_mask import HeadMask, HeadScores, Mask
    from hydractl.manifest.header import Step
    from hydractl.stages.inspect.lineage import LineageReport
    from hydractl.training.resume import StateFile


def show_mask(file: str, mask: HeadMask, out: Console) -> None:
    """Show a head mask."""
    from hydractl.cli.tables import facts
    from hydractl.heads.budget import total_heads
    from hydractl.heads.masks import total_kept

    kept_heads, total = total_kept(mask.towers), total_heads(mask.towers)
    line(out, f"{file}: head mask, {kept_heads} of {counted(total, 'head')} kept")
    rows = [("architecture", mask.architecture or "any model of this shape")]
    if mask.base:
        rows.append(("base", short(mask.base)))
    if origin := mask.origin:
        rows.append(("strategy", origin.strategy + (f", {pairs(origin.budget)}" if origin.budget else "")))
        origin_fields = {
            "method": origin.method,
            "seed": origin.seed,
            "member": origin.member,
            "tool": origin.tool,
        }
        rows += [(name, str(value)) for name, value in origin_fields.items() if value is not None]
        rows += [("scores", short(digest)) for digest in origin.scores]
    else:
        rows.append(("origin", "not recorded (may be written by hand)"))
    out.print(facts(rows))
    maps([mask.towers], ["kept"], out)


def show_scores(file: str, scores: HeadScores, out: Console) -> None:
    """Show scores: how they came about, the heads' ranks, and a greedy method's order of removal."""
    from hydractl.cli.tables import RankMap, facts
    from hydractl.stages.inspect.run import ranks

    line(out, f"{file}: scores by {scores.method}")
    rows = [("objective", scores.objective)] if scores.objective else []
    rows += [("options", pairs(scores.options))] if scores.options else []
    scalars = {name: value for name, value in scores.results.items() if not isinstance(value, tuple | list)}
    rows += [("results", pairs(scalars))] if scalars else []
    if scores.clusters is not None:
        sizes = ", ".join(str(len(cluster)) for cluster in scores.clusters)
        rows += [("clusters", f"{len(scores.clusters)}, of {sizes} heads")]
    rows += [
        ("model", f"{scores.model.reference}, {scores.architecture}, {short(scores.model.sha256)}"),
        *((f"data {name}", fingerprint(f.reference, f.sha256, f.count)) for name, f in scores.data.items()),
        ("tool", scores.tool),
    ]
    out.print(facts(rows))
    ranked = ranks(scores, file=file)
    total = sum(len(row) for tower in ranked.values() for row in tower)
    has_kept_heads = any(rank is None for tower in ranked.values() for row in tower for rank in row)
    meaning = (
        f"{total} was removed first, - was kept" if has_kept_heads else f"1 of {total} is the most important"
    )
    for tower, table_of_ranks in ranked.items():
        out.print()
        line(out, f"Ranks of the heads of tower {tower}: {meaning}")
        out.print(RankMap(ranks=table_of_ranks, total=total))
    if scores.removals is not None:
        _removals(scores, out)


def show_state(file: str, state: StateFile, out: Console) -> None:
    """Show how far an unfinished training has come, and how to finish it."""
    at, best = state.position, state.position.best
    where = f" with learning rate {at.candidate + 1} of the grid" if at.candidate else ""
    line(out, f"{file}: state of an unfinished run, after {counted(at.step, 'step')}{where}")
    if best is not None:
        line(
            out, f"Best validation: accuracy {best.accuracy:.4f}, NLL {best.nll:.4f}, at step {at.best_step}"
        )
    line(out, "hint: the same command resumes this run; `--force` discards it to start with other options")


def _removals(scores: HeadScores, out: Console) -> None:
    from hydractl.cli.tables import Newspaper

    steps = scores.removals or ()
    start = "" if scores.baseline is None else f" ({scores.baseline:.4f} before)"
    digits, tower = len(str(len(steps))), len(scores.towers) > 1
    lines = [
        f"{i:>{digits}}. {f'{s.tower} ' if tower else ''}layer {s.layer} head {s.head}: {s.objective:.4f}"
        for i, s in enumerate(steps, 1)
    ]
    out.print()
    line(out, f"Order of removal, and the objective after each step{start}:")
    out.print(Newspaper(lines=tuple(lines)))


def maps(masks: Sequence[Mask], names: Sequence[str], out: Console) -> None:
    """Show which heads masks keep, tower by tower."""
    from hydractl.cli.tables import HeadMaps

    for tower, first in masks[0].items() if masks else ():
        out.print()
        if len(masks[0]) > 1:
            line(out, f"tower {tower}")
        out.print(
            HeadMaps(
                names=tuple(names),
                keep=tuple(mask[tower].keep for mask in masks),
                num_heads=first.num_heads,
            )
        )


def lineage_tree(file: str, step: Step) -> Tree:
    """Return the stages that led to a file as a tree."""
    from rich.text import Text
    from rich.tree import Tree

    def text(node: Node) -> Text:
        words = (node.name, short(node.sha256), "(as above)" if node.is_repeated else node.step)
        return Text(harmless_line("  ".join(filter(None, words))), overflow="fold")

    def grow(tree: Tree, node: Node) -> Tree:
        for source in node.made_of:
            grow(tree.add(text(source)), source)
        return tree

    root = lineage(file, step)
    return grow(Tree(text(root)), root)


def show_lineage(report: LineageReport, out: Console) -> None:
    """Show the stages that made a model, or the result of the verification of each file."""
    for verified_file in report.verified:
        as_read = (
            f" is `{verified_file.read_as}`" if not verified_file.problem else f": {verified_file.problem}"
        )
        line(
            out,
            f"{'failed' if verified_file.problem else 'ok'}: {verified_file.file}{as_read}, {short(verified_file.sha256)}",
        )
    if report.left:
        line(out, f"not verified: {quoted(report.left)}")
    if report.step is None:
        line(out, f"{model_cell(report.model)}: a {report.kind} that was not made by hydractl")
    elif not report.verified:
        out.print(lineage_tree(model_cell(report.model), report.step))


def fingerprint(reference: str, digest: str, number: int | None) -> str:
    """Return how a data set was named and what it held."""
    return f"{reference}, {short(digest)}" + (f", {counted(number, 'sample')}" if number is not None else "")
