"""score: scores the importance of each attention head."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

import torch
from pydantic import TypeAdapter
from typing_extensions import override

from hydractl import progress
from hydractl.data.batches import BatchShare, epoch_order
from hydractl.data.datasets import Items
from hydractl.data.encode import encoded
from hydractl.errors import CheckFailed, CheckpointError, ManifestError, OutputExists, UsageError, reason_of
from hydractl.families.finite import check_finite
from hydractl.families.load import OpenModel, load_model
from hydractl.heads.budget import COMMON_KEEP_FRACTION, HeadBudget, total_heads
from hydractl.manifest.document import Fingerprint, OptionValue
from hydractl.manifest.head_mask import HeadId, HeadScores, Removal, Shape, TowerHeads, TowerScores
from hydractl.manifest.header import Architecture, Kind, samples_of
from hydractl.messages import counted
from hydractl.output.publish import append, has_content, is_stream, publish_text
from hydractl.plugins import load
from hydractl.prediction.class_names import Classes, ask
from hydractl.prediction.feature_ood import FeatureExtractor
from hydractl.prediction.open_inputs import data_input, labels_of, open_reader, open_sets
from hydractl.processes.distributed import ProcessGroup, own_device, start_team
from hydractl.progress import stage
from hydractl.provenance.output import TOOL, Output, make_step, resumable
from hydractl.pruning.selection import quota_of
from hydractl.runtime import digest_text, torch_dtype
from hydractl.scoring.circuit.outcomes import check_halves
from hydractl.scoring.job import NOTHING_LEARNT, Log, Memory, Ranking, RepeatedBatches, Samples, ScoreJob
from hydractl.scoring.settings import BudgetMeaning
from hydractl.stages.score.config import ScoreConfig, ScoreReport
from hydractl.strict_json import compact, parse, read_limited
from hydractl.training.resume import DROPPED, FORCED, OTHERS, OtherRunError, changes, stored_texts, texts_of
from hydractl.training.run_log import open_run_log

SCHEMA = "hydractl.journal/1"
MEMORY, CHAIN = "memory", "chain"
LONGEST = 1 << 24
"""Maximum length of the first line, in bytes."""
_NUMBER: TypeAdapter[float | None] = TypeAdapter(float | None)
_MEMORY: TypeAdapter[dict[str, tuple[float, ...]]] = TypeAdapter(dict[str, tuple[float, ...]])


class MethodRun:
    """Steps of a run that only some methods have. This class is for methods without: it writes the scores."""

    resumes = False
    """Whether an interrupted training is resumed."""

    def check(self, config: ScoreConfig, opened: OpenModel, output: Output) -> None:
        """Refuse a model that the method cannot train, and outputs that cannot be written, before data are read."""

    def open_state(self, config: ScoreConfig, opened: OpenModel, document: HeadScores) -> None:
        """Open the state of an interrupted training of the scores of `document`."""

    def training(
        self,
        config: ScoreConfig,
        opened: OpenModel,
        items: Items,
        labels: torch.Tensor,
        indices: torch.Tensor | None,
    ) -> object:
        """Return the training resources of the job, from the ID data at `indices` (None for all) and labels (N,) of all items."""

    def publish(
        self,
        config: ScoreConfig,
        opened: OpenModel,
        scores: HeadScores,
        ranking: Ranking,
        output: Output,
    ) -> HeadScores:
        """Write the scores and return them."""
        del opened, ranking
        with output.publish() as begin:
            begin(config.out).write(scores.to_json().encode())
        return scores

    def clear_state(self) -> None:
        """Remove the state of the training."""


@dataclass(kw_only=True)
class ScoreJournal(Log):
    """Removals on disk, each there before the next begins.

    Attributes:
        path: None where nothing is written: for a stream, and in a process that does not lead.
        fingerprint: Of everything that shapes the output.
        settings: What of that a refusal may name, as `texts_of` has it.
    """

    path: Path | None = None
    fingerprint: str
    settings: Mapping[str, str] = field(default_factory=dict)
    chain: str = ""
    """Digest of the last line."""
    removals: int = 0
    """Number of removals that are logged, or were on disk."""

    @classmethod
    def parsed(cls, text: str, path: Path | None = None) -> Self:
        """Return what a journal says; a last line without its newline does not count.

        Raises:
            ValueError: If it is none, or a line does not follow from the one before it.
        """
        first, *documents = _followed(text) or [{}]
        memories = [_MEMORY.validate_python(document.pop(MEMORY, {})) for document in documents]
        return cls(
            path=path,
            fingerprint=str(first.get("fingerprint")),
            settings=stored_texts(first.get("settings")),
            baseline=_NUMBER.validate_python(first.get("baseline")),
            recorded=tuple(Removal.model_validate(document, strict=True) for document in documents),
            memory=memories[-1] if memories else NOTHING_LEARNT,
        )

    def text(self) -> str:
        """Return what the journal says, whole lines."""
        first: dict[str, object] = {
            "schema": SCHEMA,
            "fingerprint": self.fingerprint,
            "baseline": self.baseline,
        } | ({"settings": dict(self.settings)} if self.settings else {})
        removals = [_document(removal, NOTHING_LEARNT) for removal in self.recorded[:-1]]
        removals += [_document(removal, self.memory) for removal in self.recorded[-1:]]
        self.chain = ""
        return "".join(map(self._line, (first, *removals)))

    def _line(self, document: dict[str, object]) -> str:
        """Return a document as the next line."""
        self.chain = _link(self.chain, document)
        return json.dumps({**document, CHAIN: self.chain}) + "\n"

    @override
    def begin(self, baseline: float) -> None:
        """Write the first line of a new journal, or cut an old one back to its whole lines."""
        self.baseline, self.removals = baseline, len(self.recorded)
        if self.path is not None:
            publish_text(self.path, self.text())
        if not self.recorded:
            self.run_log.log({"objective": baseline}, step=0)

    @override
    def record(self, removal: Removal, memory: Memory = NOTHING_LEARNT) -> None:
        """Add one removal, and what the search remembers after it."""
        if self.path is not None:
            append(self.path, self._line(_document(removal, memory)).encode())
        self.removals += 1
        self.run_log.log({"objective": removal.objective}, step=self.removals)

    def discard(self) -> None:
        """Remove the journal: its output is there."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def settings_of(document: HeadScores) -> dict[str, str]:
    """Return the settings that determine the scores as a refusal names them; models and data with names and digests."""
    inputs = {"model": document.model, **{f"{role} data": data for role, data in document.data.items()}}
    return texts_of(
        {"method": document.method, "objective": document.objective, **document.options}
        | {
            name: f"{fingerprint.reference[-30:]} ({fingerprint.sha256[:19]})"
            for name, fingerprint in inputs.items()
        }
        | {"tool": document.tool}
    )


def _document(removal: Removal, memory: Memory) -> dict[str, object]:
    return removal.model_dump() | ({MEMORY: dict(memory)} if memory else {})


def _link(before: str, document: dict[str, object]) -> str:
    """Return the digest that a line ends with."""
    return digest_text(before + compact(document, sort_keys=True))


def _followed(text: str) -> list[dict[str, object]]:
    """Return the whole lines of a journal, each of which follows from the one before it.

    Raises:
        ValueError: If one is no object, or does not follow.
    """
    documents, chain = [], ""
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        document = parse(line, keys_once=True)
        if not isinstance(document, dict):
            raise ValueError(f"line {number} is not a JSON object")  # noqa: TRY004 - translated by the caller
        stored_chain = document.pop(CHAIN, None)
        chain = _link(chain, document)
        if stored_chain != chain:
            raise ValueError(f"the digest of line {number} does not match")
        documents.append(document)
    return documents


def open_journal(
    config: ScoreConfig, document: HeadScores, *, heads: Shape, team: ProcessGroup
) -> ScoreJournal:
    """Open the journal of an output, `<out>.journal`; a stream has none.

    The process that leads opens it; the others are told what it holds, and write none.

    Args:
        config: What was asked: which output is being made, and whether what another run left is dropped.
        document: Everything else that decides the scores.
        heads: Those that may be removed.
        team: The processes.

    Raises:
        OutputExists: If another run's journal is there, or something that is not ours.
        ManifestError: If a damaged one is.
    """
    if team.leads:
        new = ScoreJournal(fingerprint=digest_text(document.to_json()), settings=settings_of(document))
        journal = _opened(config, new, heads=heads)
        team.broadcast(journal.text())
    else:
        journal = ScoreJournal.parsed(team.broadcast(""))
    if journal.recorded:
        progress.step(f"Resuming an interrupted run after {counted(len(journal.recorded), 'removal')}")
    return journal


def _opened(config: ScoreConfig, new: ScoreJournal, *, heads: Shape) -> ScoreJournal:
    if is_stream(config.out):
        return new
    path = config.out.with_name(f"{config.out.name}.journal")
    text = _text(path)
    if config.force and text:
        progress.warn(DROPPED.format(why=FORCED, where=path))
    new.path = path
    if config.force or not text:
        return new
    try:
        journal = ScoreJournal.parsed(text, path)
        if journal.fingerprint == new.fingerprint:
            _check_heads(journal.recorded, heads)
    except ValueError as error:
        raise ManifestError(
            f"{path}: is damaged: {reason_of(error)}",
            hint="add `--force` to discard it and start again",
        ) from error
    if journal.fingerprint == new.fingerprint:
        return journal
    if not config.if_changed:
        raise OtherRunError(path, changes(journal.settings, new.settings))
    progress.warn(DROPPED.format(why=OTHERS, where=path))
    return new


def _check_heads(removals: tuple[Removal, ...], heads: Shape) -> None:
    """Refuse removals of heads that are not there, or that are gone already.

    Raises:
        ValueError: If one is so.
    """
    removed: set[HeadId] = set()
    for removal in removals:
        shape, head = heads.get(removal.tower), removal.id
        if (
            shape is None
            or removal.layer >= shape.layers
            or removal.head >= shape.num_heads
            or head in removed
        ):
            raise ValueError(f"{head} does not exist or is already removed")
        removed.add(head)


def _is_journal(path: Path) -> bool:
    """Return whether the first line of a file is that of a journal. Other files are never read further or changed."""
    with contextlib.suppress(OSError, ValueError):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                first = parse(file.readline(LONGEST))
            return isinstance(first, dict) and first.get("schema") == SCHEMA
    return False


def _text(path: Path) -> str:
    """Return what a journal says, nothing where there is none.

    Raises:
        OutputExists: If something stands there that is not ours.
        ManifestError: If it cannot be read.
    """
    if not (path.is_symlink() or has_content(path)):
        return ""
    if not _is_journal(path):
        raise OutputExists(
            f"{path}: the journal of the run goes here, but the existing file is not from this version of hydractl",
            hint="move it to another place, or choose another name with `-o`",
        )
    try:
        with path.open("rb") as file:
            return read_limited(file).decode(errors="replace")
    except (OSError, ValueError) as error:
        raise ManifestError(
            f"{path}: cannot be read: {reason_of(error)}", hint="move it to another place"
        ) from error


LEAST_KEPT = {BudgetMeaning.KEPT: 1, BudgetMeaning.CHOICE: 1}
"""Least number of kept heads, by the meaning of the budget."""


class ScoreInputs(NamedTuple):
    """Inputs of a method.

    Attributes:
        opened: The base.
        sets: Its data sets by role.
        classes: The classes of a zero-shot model.
        scored: The towers to score.
        keep: Number of heads that each layer keeps, for methods that score layer by layer.
        removals: Total number of heads to remove, for greedy methods.
    """

    opened: OpenModel
    sets: Mapping[str, Items]
    classes: Classes | None
    scored: Mapping[str, TowerHeads]
    keep: int
    removals: int


@stage
def run_score(config: ScoreConfig) -> ScoreReport:
    """Score every head of a base and write the scores file.

    A greedy run writes a journal, from which an interrupted run resumes. The output has the same bytes after a resumption
    and with any number of processes, which share the batches; the first writes.

    Raises:
        InputError: If the model or the data cannot be used.
        OutputExists: If the output or the journal of another run already exists, or another command is writing it.
        Interrupted: If another process of the run ended unexpectedly.
    """
    with (
        resumable(config.out, force=config.force),
        start_team(own_device(config.device)) as team,
        Output.claim(config, [config.out], writes=team.leads) as output,
    ):
        opened = open_base(config)
        method_run: MethodRun = load(config.entry.method_run)() if config.entry.method_run else MethodRun()
        if team.leads:  # once: another process may come here when the first one has written
            output.check(
                config.out,
                models=[opened],
                data=config.references.values(),
                files=[config.naming.file],
            )
            method_run.check(config, opened, output)
        scored = scored_towers(config, opened.header.architecture)
        keep, removals = amounts(config, scored)
        sets = open_sets(opened, config.references, workers=config.num_workers)
        classes = config.naming.classes(opened, data=sets["id"].class_names if "id" in sets else ())
        inputs = ScoreInputs(opened, sets, classes, scored, keep, removals)
        document = _describe(config, inputs, team)
        journal = open_journal(config, document, heads=scored, team=team)
        method_run.open_state(config, opened, document)
        team.in_order(())  # all have read the state before one writes it
        job = replace(make_job(config, inputs, team, method_run), log=journal)
        progress.step(f"Scoring {counted(total_heads(scored), 'head')} by {config.method}")
        with open_run_log(
            config.log_to,
            config.log_dir,
            out=config.out,
            options={"model": config.model, "method": config.method, **document.options},
            resumes=bool(journal.recorded or method_run.resumes),
            leads=team.leads,
        ) as journal.run_log:
            try:
                ranking: Ranking = load(config.entry.run)(job)
            except CheckFailed:
                # a training that failed would fail again; data that cannot be read now may be readable later
                if team.leads:
                    method_run.clear_state()
                raise
        towers = {
            name: TowerScores(scores=tuple(tuple(row) for row in table))
            for name, table in ranking.scores.items()
        }
        step = make_step(config, family=opened.family, options={}, inputs=(), results=ranking.results)
        scores = document.model_copy(
            update={
                "towers": towers,
                "removals": ranking.removals,
                "baseline": ranking.baseline,
                "clusters": ranking.clusters,
                **step.model_dump(include={"results", "versions", "config_digest", "argv"}),
            }
        )
        if team.leads:
            scores = method_run.publish(config, opened, scores, ranking, output)
            journal.discard()
            method_run.clear_state()
    return ScoreReport(
        path=config.out,
        scores=scores,
        resumed_from=len(journal.recorded),
        default_budget=config.budget is None
        and config.settings.budget_means not in {BudgetMeaning.NOTHING, BudgetMeaning.CHOICE},
        trained=next((path for path in config.output_files() if path != config.out), None),
    )


def open_base(config: ScoreConfig) -> OpenModel:
    """Open the model to score.

    Raises:
        CheckpointError: If it is missing, malformed or not a base.
        UsageError: As `open_reader`.
    """
    opened = open_reader(
        config.model,
        arch=config.arch,
        seed=config.seed,
        max_length=config.max_length,
        reads=config.entry.needs_data,
    )
    if opened.header.kind != Kind.BASE:
        raise CheckpointError(
            f"{config.model}: is a {opened.header.kind}, but `score` needs a base",
            hint="score its base",
        )
    task = opened.header.architecture.task
    if config.method == "cahp" and not task.has_one_question:
        raise UsageError(
            f"`--method {config.method}`: compares classes of inputs, but {config.model} answers {task.labels}",
            hint="use another method, such as `--method taylor`",
        )
    return opened


def scored_towers(config: ScoreConfig, architecture: Architecture) -> dict[str, TowerHeads]:
    """Return the towers to score."""
    for name in config.towers:
        if name not in architecture.towers:
            raise UsageError(
                f"`--towers {name}`: {config.model} has no such tower",
                hint=f"it has {', '.join(architecture.towers)}",
            )
    return {n: t for n, t in architecture.towers.items() if not config.towers or n in config.towers}


def amounts(config: ScoreConfig, towers: Mapping[str, TowerHeads]) -> tuple[int, int]:
    """Return the number of heads per layer to keep (methods by layer) and the total number to remove (greedy methods)."""
    means = config.settings.budget_means
    budget = config.budget or HeadBudget(keep_fraction=COMMON_KEEP_FRACTION)
    removals, keep = quota_of(budget, towers).removals, budget.kept_a_layer(towers)
    if config.budget is not None and means == BudgetMeaning.NOTHING:
        progress.warn(
            f"`{config.budget.option_text}` has no effect: scores by `{config.method}` do not depend "
            "on the budget; give it to `prune`"
        )
    layers, total = sum(t.layers for t in towers.values()), total_heads(towers)
    kept_heads = total - removals
    if not LEAST_KEPT.get(means, 0) <= kept_heads <= total - (means == BudgetMeaning.KEPT):
        raise UsageError(
            f"`--method {config.method}`: keeping {kept_heads} of {counted(total, 'head')} leaves nothing to select",
            hint="for example `--keep-fraction 0.5`",
        )
    if means == BudgetMeaning.KEEP and config.budget is not None and keep * layers != kept_heads:
        progress.warn(
            f"`--method {config.method}` keeps the same number of heads in each layer: {keep} each, "
            f"{counted(keep * layers, 'head')} in total; `{config.budget.option_text}` keeps {kept_heads}"
        )
    return keep, removals


def _options(config: ScoreConfig, inputs: ScoreInputs) -> dict[str, OptionValue]:
    """Return the options that shape the scores, and no others."""
    means, reads, classes = config.settings.budget_means, config.entry.needs_data, inputs.classes
    counts_kept = means == BudgetMeaning.KEPT or (means == BudgetMeaning.CHOICE and config.budget is not None)
    options: dict[str, OptionValue] = {
        **config.settings.options(),
        "removals": inputs.removals if means == BudgetMeaning.REMOVALS else None,
        "keep": inputs.keep if means == BudgetMeaning.KEEP else None,
        "kept": total_heads(inputs.scored) - inputs.removals if counts_kept else None,
        "seed": config.seed if config.entry.seeded or config.limit is not None else None,
        "batch_size": config.batch_size if reads else None,
        "limit": config.limit if reads else None,
        "dtype": config.dtype if reads else None,
        "max_length": config.max_length if reads else None,
        "towers": config.towers or None,
        "classes": None if classes is None else classes.names,
        "templates": None if classes is None else classes.templates,
    }
    return {name: option for name, option in options.items() if option is not None}


def _describe(config: ScoreConfig, inputs: ScoreInputs, team: ProcessGroup) -> HeadScores:
    """Return the scores file without its scores: everything that decides them."""
    files = {
        role: data_input(item_set, team, _drawn_indices(config, item_set) if role == "id" else None)
        for role, item_set in inputs.sets.items()
    }
    return HeadScores(
        method=config.method,
        objective=config.settings.objective,
        options=_options(config, inputs),
        model=Fingerprint(reference=inputs.opened.as_input().name, sha256=inputs.opened.checkpoint.digest),
        architecture=inputs.opened.header.architecture.name,
        data={
            role: Fingerprint(
                reference=config.references[role], sha256=file.sha256, count=inputs.sets[role].total
            )
            for role, file in files.items()
        },
        towers={},
        samples=samples_of(files.values()),
        tool=TOOL,
    )


def make_job(config: ScoreConfig, inputs: ScoreInputs, team: ProcessGroup, method_run: MethodRun) -> ScoreJob:
    """Return the job of the method, without its log."""
    opened, device = inputs.opened, own_device(config.device)
    model = load_model(opened, dtype=torch_dtype(config.dtype) if config.dtype else None)
    check_finite(model.library_state(), where=config.model, dtype=config.dtype)
    model = model.to(device)
    ask(model, opened, inputs.classes)
    like = torch.empty(0, device=device, dtype=model.dtype)
    deal = BatchShare(team.rank, team.world, as_given=config.entry.as_given)
    batches: dict[str, Iterable[Samples]] = {}
    training: object = None
    for role, item_set in inputs.sets.items():
        labels = labels_of(opened, item_set, inputs.classes)[0] if role == "id" else None
        indices = None if labels is None else _drawn_indices(config, item_set)
        cached = encoded(
            item_set, opened.header.preprocess, batch_size=config.batch_size, indices=indices, deal=deal
        )
        batches[role] = RepeatedBatches(cached, labels, like)
        if labels is not None:
            training = method_run.training(config, opened, item_set, labels, indices)
            if config.settings.needs_features:
                check_halves(labels if indices is None else labels[indices])
    return ScoreJob(
        model=model,
        family=opened.family,
        architecture=opened.header.architecture,
        id_data=batches.get("id", ()),
        ood_data=batches.get("ood", ()),
        settings=config.settings,
        keep=inputs.keep,
        budget=inputs.removals,
        free=config.budget is None,
        towers=tuple(inputs.scored),
        seed=config.seed,
        max_memory=config.max_memory,
        compiles=config.model if config.compile else None,
        team=team,
        training=training,
        features=FeatureExtractor.of(model, opened.family, name=config.model)
        if config.settings.needs_features
        else None,
    )


def _drawn_indices(config: ScoreConfig, item_set: Items) -> torch.Tensor | None:
    """Return the positions of the samples that a limit draws, None without one."""
    return (
        None
        if config.limit is None or config.limit >= len(item_set)
        else epoch_order(len(item_set), seed=config.seed, epoch=0)[: config.limit].sort().values
    )
