"""Commands that make a hydra: `import`, `score`, `prune`, `finetune`, `fuse`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, line, model_cell, size, table
from hydractl.messages import count, counted
from hydractl.output.publish import STDOUT, is_folder

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hydractl.manifest.head_mask import HeadImportance
    from hydractl.prediction.merge_trunk import MergeMeasurement, Quality
    from hydractl.pruning.diverse import DiverseReport
    from hydractl.pruning.members import Size
    from hydractl.stages.finetune.config import FinetuneConfig
    from hydractl.stages.finetune.run import FinetuneReport
    from hydractl.stages.fuse.config import FuseConfig
    from hydractl.stages.fuse.run import FuseReport
    from hydractl.stages.importing.config import ImportConfig
    from hydractl.stages.importing.run import ImportReport
    from hydractl.stages.prune.config import PruneConfig
    from hydractl.stages.prune.run import PruneReport
    from hydractl.stages.score.config import ScoreConfig, ScoreReport


@command("hydractl.stages.importing.config:ImportConfig", compares=True)
def import_weights(config: ImportConfig, terminal: Terminal) -> None:
    r"""Make a base from the weights of a training script.

    Finds the state dict in the file, strips the prefixes of DataParallel, torch.compile and Lightning, and
    reads architecture, number of classes, mean and std if the script saved them (timm, Lightning,
    transformers, open_clip). Options that contradict the file are rejected. Pickles are read as data: no code
    in a pickle runs. Several files become several bases.

    Examples:
      hydractl import model_best.pth.tar -o base.st
      hydractl import model_best.pth.tar --ema -o base.st
      hydractl import seed-0.pth.tar seed-1.pth.tar -o '{name}.st'
      hydractl import weights.pth --arch vit_tiny_patch16_224 \
        --labels cat,dog -o base.st
    """
    from hydractl.output.publish import OutputLock
    from hydractl.provenance.output import Output
    from hydractl.stages.importing.run import ImportReport, ImportReports, run_import

    progress = terminal.progress()
    if len(config.sources) > 1:  # Check all outputs before the first is written.
        paths = [path for path in config.output_files() if not is_folder(path)]
        lock = OutputLock(force=config.force or config.if_changed)
        Output(lock).check(*paths, files=map(Path, config.sources))
    reports, unchanged_paths = list[ImportReport](), list[Path]()
    for single_config in config.one_by_one():
        if single_config.if_changed:
            reason = Output.outdated(single_config)
            if reason is None:
                unchanged_paths += single_config.output_files()
                continue
            if reason:
                progress.step(f"Not up to date: {reason}")
        reports.append(run_import(single_config, progress))
    if not reports:
        terminal.up_to_date(unchanged_paths)
    elif len(config.sources) == 1:
        terminal.result(reports[0], show_import)
    else:
        terminal.result(
            ImportReports(imports=tuple(reports)),
            lambda several, out: out.print(_import_table(several.imports, named=True)),
        )


def show_import(report: ImportReport, out: Console) -> None:
    """Print the imported architecture, and the place of the weights in the file."""
    out.print(_import_table([report]))
    place = [f"under `{report.wrapper}`"] if report.wrapper else []
    place += [f"with the prefix `{report.prefix}`"] if report.prefix else []
    if place:
        line(out, f"Found {' and '.join(place)}")


def _import_table(reports: Sequence[ImportReport], *, named: bool = False) -> RenderableType:
    rows = [
        (
            *([report.path.name] if named else []),
            report.architecture,
            str(report.num_classes),
            str(report.heads),
            count(report.parameters),
            size(report.size_bytes),
        )
        for report in reports
    ]
    columns = ["architecture", "classes", "heads", "parameters", "bytes"]
    return table([*(["base"] if named else []), *columns], rows)


HEADS_SHOWN = 10
"""Number of heads in the table. Chosen by hand; twice the number doubles the table."""


@command("hydractl.stages.score.config:ScoreConfig")
def score(config: ScoreConfig, terminal: Terminal) -> None:
    r"""Measure the importance of each attention head.

    `prune` reads the result. The default budget keeps two thirds of the heads: a circuit search then ranks
    the other third, and `prune` cannot remove more than these. The same command resumes an interrupted
    circuit search. Under `torchrun`, processes share the batches, and the output has the same bytes.

    Examples:
      hydractl score base.st --data val/ --ood birds/ -o scores.json
      hydractl score base.st --data val/ --ood birds/ --search exact \
        -o scores.json
      hydractl score base.st --method taylor --data train/ -o scores.json
      hydractl score base.st --method random -o - | \
        hydractl prune base.st --scores - --keep-heads 8 -o member.st
    """
    from hydractl.stages.score.run import run_score

    terminal.result(run_score(config, terminal.progress()), show_importance)


def show_importance(report: ScoreReport, out: Console) -> None:
    """Print the first removals of a greedy method, or the heads with the lowest importance."""
    importance = report.scores
    if importance.removals is not None:
        rows = [
            (str(i + 1), f"{r.tower} {r.layer}.{r.head}", f"{r.objective:.4f}")
            for i, r in enumerate(importance.removals[:HEADS_SHOWN])
        ]
        out.print(
            table(
                ["step", "head removed", f"{importance.objective} after"],
                [("0", "", f"{importance.baseline:.4f}"), *rows],
            )
        )
        if len(importance.removals) > HEADS_SHOWN:
            last = importance.removals[-1]
            line(
                out,
                f"... {counted(len(importance.removals), 'removal')}; {importance.objective} {last.objective:.4f} after the last",
            )
        if "exact_evaluations" in importance.results:
            line(
                out,
                "Evaluated {evaluations:g} of {exact_evaluations} candidates on all data: {work:.1%} of the work of "
                "`--search exact`".format_map(importance.results),
            )
    else:
        heads = sorted(
            (s, n, layer, h)
            for n, t in importance.towers.items()
            for layer, row in enumerate(t.scores)
            for h, s in enumerate(row)
        )
        lowest = [(f"{n} {layer}.{h}", f"{s:.4g}") for s, n, layer, h in heads[:HEADS_SHOWN]]
        out.print(table(["lowest heads", "score"], lowest))
    if importance.clusters is not None:
        heads_in_all = counted(sum(map(len, importance.clusters)), "head")
        groups = counted(len(importance.clusters), "group")
        line(out, f"{heads_in_all} in {groups}: one of each is kept, and at least one in each layer")
    if report.default_budget:
        line(out, _default_budget(importance))


def _default_budget(importance: HeadImportance) -> str:
    total = sum(len(row) for tower in importance.towers.values() for row in tower.scores)
    if "kept" in importance.options:
        budget_text = (
            f"two thirds of the heads are kept, {importance.options['kept']} of {counted(total, 'head')}"
        )
    elif importance.removals is None:
        budget_text = "two thirds of the heads of each layer are kept"
    else:
        budget_text = (
            f"{len(importance.removals)} of {counted(total, 'head')} are removed, two thirds are kept"
        )
    return f"Default budget: {budget_text}. Set another with `--keep-heads N`, `--remove R` or `--keep-fraction F`"


@command("hydractl.stages.prune.config:PruneConfig")
def prune(config: PruneConfig, terminal: Terminal) -> None:
    r"""Remove attention heads from a base to make one or more members.

    Writes a head mask next to each member (`member-0.mask.json`). Under `torchrun`, processes share the
    candidates of `--strategy diverse`, and the members have the same bytes.

    Examples:
      hydractl prune base.st --scores scores.json --keep-heads 8 -o member.st
      hydractl prune base.st --scores scores.json --keep-heads 8 \
        --members 3 --pool 96 -o 'member-{i}.st'
      hydractl prune base.st --scores scores.json --keep-heads 8 \
        --members 3 --pool 96 --strategy diverse --data val/ -o 'member-{i}.st'
      hydractl prune base.st --strategy random --keep-heads 8 -o member.st
      hydractl prune base.st --mask mask.json -o member.st
    """
    from hydractl.stages.prune.run import run_prune

    terminal.result(run_prune(config, terminal.progress()), show_members)


def show_members(report: PruneReport, out: Console) -> None:
    """Print sizes before and after pruning."""
    rows = [(model_cell(report.model), str(report.heads), *_size_cells(report.base), "")]
    rows += [
        (
            "stdout" if m.path == STDOUT else str(m.path),
            str(m.heads_kept),
            *_size_cells(m.size),
            "" if m.largest_difference is None else f"{m.largest_difference:.1e}",
        )
        for m in report.members
    ]
    out.print(table(["model", "heads", "parameters", "MACs", "bytes", "difference from masked"], rows))
    for remark in report.found:
        line(out, remark)
    if report.diverse is not None:
        show_diverse(report.diverse, out)


def show_diverse(report: DiverseReport, out: Console) -> None:
    """Print the chosen masks, and the diversity of the chosen set compared with random sets."""
    rows = [
        (f"member {i}", f"draw {c.draw}", f"{c.objective:.4f}", "", "") for i, c in enumerate(report.chosen)
    ]
    rows += [(s.name, "", f"{s.objective:.4f}", f"{s.mi:.4f}", f"{s.disagreement:.4f}") for s in report.sets]
    out.print(table(["set", "mask", report.objective, "MI", "disagreement"], rows))


def _size_cells(cost: Size) -> tuple[str, str, str]:
    """Format parameters, MACs and bytes."""
    return count(cost.parameters), count(cost.macs), size(cost.size_bytes)


@command("hydractl.stages.finetune.config:FinetuneConfig")
def finetune(config: FinetuneConfig, terminal: Terminal) -> None:
    r"""Train a backbone, a base, a member or a hydra on labelled data.

    Draws a new classifier if the model has none, or other classes than the data. Trains a hydra on the mean loss of all
    members, including shared weights. A teacher sees the same batches and adds a term to the loss.

    The same command resumes an interrupted run. If training diverges, the exit code is 5 and nothing is
    written.

    Examples:
      hydractl finetune base.st --train train/ --val val/ -o tuned.st
      hydractl finetune base.st --train train/ --val val/ \
        --lr 1e-4 --epochs 5 --seed 1 -o tuned.st
      hydractl finetune hydra.st --train train/ --val val/ \
        --teacher a.st,b.st,c.st -o tuned.st
      hydractl finetune base.st --train train/ --val val/ \
        --recipe vit-finetune -o tuned.st
      hydractl finetune arch:vit_tiny_patch16_224 \
        --train train/ --val val/ -o base.st
    """
    from hydractl.stages.finetune.run import run_finetune

    terminal.result(run_finetune(config, terminal.progress()), show_training)


def show_training(report: FinetuneReport, out: Console) -> None:
    """Print validation metrics and trained parameters."""
    spans = {} if report.span_f1 is None else {"validation span F1 ↑": f"{report.span_f1:.4f}"}
    cells = (
        *spans.values(),
        f"{report.accuracy:.4f}",
        f"{report.nll:.4f}",
        f"{report.lr:g}",
        f"{report.step}/{report.total_steps}",
        count(report.trained_parameters),
        count(report.frozen_parameters),
    )
    columns = ["model", *spans, "validation accuracy ↑", "NLL ↓", "lr", "steps", "trained", "frozen"]
    out.print(table(columns, [(str(report.path), *cells)]))


ENSEMBLE = "the members' ensemble"


@command("hydractl.stages.fuse.config:FuseConfig")
def fuse(config: FuseConfig, terminal: Terminal) -> None:
    r"""Fuse members into one model with a single forward pass.

    Tensors that are equal in all members are stored and computed once. Different MLPs are averaged. All other
    tensors are kept for each member. For members trained from the same weights, `--trunk N` averages all
    differences in the first N blocks and none after these. With `--val`, N is the largest number of blocks whose
    average increases the NLL by at most `--max-nll-increase`. Under `torchrun`, processes share the batches.

    Examples:
      hydractl fuse a.st b.st c.st -o hydra.st
      hydractl fuse a.st b.st c.st --trunk 8 -o hydra.st
      hydractl fuse a.st b.st c.st --val val/ -o hydra.st
      hydractl fuse a.st b.st c.st --train train/ --val val/ \
        --temperature val/ -o hydra.st
      hydractl fuse a.st b.st c.st --mlp keep -o ensemble.st
    """
    from hydractl.stages.fuse.run import run_fuse

    terminal.result(run_fuse(config, terminal.progress()), show_hydra)


def show_hydra(report: FuseReport, out: Console) -> None:
    """Print fates of tensors, trunk, effect of merging, and the difference from the members."""
    from hydractl.manifest.terms import Temperature

    rows = [(fate, str(report.tensors[fate]), size(report.stored_bytes[fate])) for fate in report.tensors]
    total = sum(report.stored_bytes.values())
    out.print(
        table(
            ["tensors", "count", "bytes"],
            [*rows, ("in all", str(sum(report.tensors.values())), size(total))],
        )
    )
    line(
        out,
        (
            f"{counted(report.members, 'member')} {'takes' if report.members == 1 else 'take'} "
            f"{size(report.members_bytes)} separately, {size(total)} fused"
        ),
    )
    line(
        out,
        f"Trunk: {report.trunk} of {counted(report.layers, 'block')}, computed once"
        + (f", tensors that differ before block {report.merge_trunk} averaged" if report.merge_trunk else ""),
    )
    if report.scale != Temperature():
        line(out, f"Temperature: {report.scale}")
    if report.ood_scores:
        line(
            out,
            f"OOD score: {', '.join(report.ood_scores)}, {size(report.ood_scores_bytes)} in addition to the weights",
        )
    if report.measured is not None:
        show_measured(report.measured, out)
    if report.gap is not None:
        at = ", before temperature scaling" if report.temperature != 1 else ""
        line(
            out,
            f"Largest difference from the members{at}: logits {report.gap.logits:.1e}, probabilities {report.gap.probabilities:.1e}",
        )


def show_measured(quality: MergeMeasurement, out: Console) -> None:
    """Print the quality of hydras and of the members' ensemble. The last hydra is the output."""
    rows = [
        (ENSEMBLE, *_quality_cells(quality.members), "", ""),
        *(
            (
                f"{counted(trial.merge_trunk, 'block')} merged" if trial.merge_trunk else "no trunk merged",
                *_quality_cells(trial.hydra),
                f"{trial.loss:+.4f}",
                f"{trial.agreement:.3f}",
            )
            for trial in quality.tried
        ),
    ]
    out.print(
        table(
            ["model", "T", "Acc ↑", "NLL ↓", "MI", "Loss ↓", "Agree ↑"],
            rows,
            title=f"{quality.data}: {counted(quality.samples, 'sample')}",
        )
    )
    line(
        out,
        f"Loss is the NLL minus that of {ENSEMBLE}, Agree the fraction of equal predictions. Acc and Agree are in [0, 1]",
    )
    before, after = quality.members.mutual_information, quality.tried[-1].hydra.mutual_information
    if before > 0 and quality.tried[-1].merge_trunk:
        line(
            out,
            (
                f"Disagreement of the members (mutual information, MI): {after:.4f} nats, {after / before:.0%} of "
                f"the {before:.4f} of {ENSEMBLE}"
            ),
        )


def _quality_cells(quality: Quality) -> tuple[str, ...]:
    return (
        f"{quality.temperature:.3f}",
        f"{quality.accuracy:.3f}",
        f"{quality.nll:.4f}",
        f"{quality.mutual_information:.4f}",
    )
