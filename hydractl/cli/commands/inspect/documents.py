"""What `hydractl inspect` shows of masks, scores, lineage and comparisons, and the words it shares with checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hydractl.cli.output import line, model_cell, table
from hydractl.errors import harmless_line
from hydractl.messages import counted
from hydractl.reporting.heads_figure import distinct_names
from hydractl.reporting.lineage import Node, lineage, pairs, short

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from hydractl.manifest.head_mask import HeadMask, HeadScores, Mask, Tables
    from hydractl.manifest.header import Step
    from hydractl.stages.inspect.compare import Agreement, Comparison, ComparisonReport
    from hydractl.stages.inspect.head_choices import Choice
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


def maps(
    masks: Sequence[Mask], names: Sequence[str], out: Console, *, standing: Sequence[Tables | None] = ()
) -> None:
    """Show which heads masks keep, tower by tower, and of those with scores how their heads stand."""
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
                standing=tuple(None if shares is None else shares[tower] for shares in standing),
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


def fingerprint(reference: str, digest: str, number: int | None) -> str:
    """Return how a data set was named and what it held."""
    return f"{reference}, {short(digest)}" + (f", {counted(number, 'sample')}" if number is not None else "")


SOURCES = {
    "asked": "{option}",
    "recorded": "{option}, as in the scores",
    "default": "{option}, the default",
}


def show_comparison(report: ComparisonReport, out: Console) -> None:
    """Show choices of heads side by side, and every pair in numbers."""
    choices = report.choices
    rows = []
    for c in choices:
        source_text = f"scores by {c.method}" if c.method is not None else c.kind.replace("-", " ")
        budget = "" if c.cut is None else SOURCES[c.cut.source].format(option=c.cut.option)
        rows.append((model_cell(c.name), source_text, budget, f"{c.removed} of {c.heads}"))
    out.print(table(["choice", "what", "budget", "removed"], rows, left=3))
    for choice in choices:
        if choice.ranked is not None and choice.ranked < choice.heads:
            tied_heads = choice.heads - choice.ranked
            line(
                out,
                (
                    f"{model_cell(choice.name)} ranks only {counted(choice.ranked, 'head')}; the other "
                    f"{tied_heads} are tied"
                ),
            )
    names = [model_cell(choice.name) for choice in choices]
    labels = distinct_names(names)
    _maps(choices, labels, out)
    if report.pairs:
        out.print()
        _pairs(report.pairs, dict(zip(names, labels, strict=True)), out)


def _maps(choices: tuple[Choice, ...], labels: tuple[str, ...], out: Console) -> None:
    from hydractl.cli.tables import CROSS, KEPT_DROPPED, SHADES

    standing = [choice.standing for choice in choices]
    maps([choice.mask for choice in choices], labels, out, standing=standing)
    if any(standing):
        plain = out.options.ascii_only
        shades, (kept_sign, dropped_sign) = SHADES[plain], KEPT_DROPPED[plain]
        line(
            out,
            (
                f"scores: {CROSS[plain]} removed; {shades} kept, from the lowest quarter of all scores to the highest"
            ),
        )
        masks = "" if all(standing) else f"masks: {kept_sign} kept, {dropped_sign} removed; "
        line(out, f"{masks}numbers: number of heads kept")


def _pairs(pairs: tuple[Comparison, ...], labels: Mapping[str, str], out: Console) -> None:
    several = len(pairs[0].towers) > 1
    ranked = any(
        value is not None for pair in pairs for value in (pair.overall.spearman, pair.overall.kendall)
    )
    rows = [row for pair in pairs for row in _rows(pair, labels, several=several, ranked=ranked)]
    columns = ["first", "second", *(["tower"] if several else []), "overlap", "by chance", "Jaccard", "JSD"]
    columns += ["Spearman", "Kendall"] if ranked else []
    out.print(table(columns, rows, left=3 if several else 2))
    line(
        out,
        (
            "overlap: removed heads in common, as a fraction of the smaller set; by chance: expected for "
            "random sets of the same sizes"
        ),
    )
    line(out, "JSD: divergence between the distributions of removed heads over layers, 0 to 0.693 nats")


def _rows(
    pair: Comparison, labels: Mapping[str, str], *, several: bool, ranked: bool
) -> Iterator[tuple[str, ...]]:
    first, second = (labels[model_cell(name)] for name in (pair.first, pair.second))
    yield (first, second, *(["all"] if several else []), *_numbers(pair.overall, ranked=ranked))
    if several:
        for name, agreement in pair.towers.items():
            yield ("", "", name, *_numbers(agreement, ranked=ranked))


def _numbers(agreement: Agreement, *, ranked: bool) -> Iterator[str]:
    yield from (f"{value:.3f}" for value in (agreement.overlap, agreement.chance_overlap, agreement.jaccard))
    yield "-" if agreement.jsd_nats is None else f"{agreement.jsd_nats:.3f}"
    if ranked:
        yield from ("-" if v is None else f"{v:.3f}" for v in (agreement.spearman, agreement.kendall))
