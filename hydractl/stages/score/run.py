"""score: scores the importance of each attention head."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import torch
from pydantic import TypeAdapter
from typing_extensions import override

from hydractl.checkpoint import write_tensors
from hydractl.data.batches import BatchShare, epoch_order
from hydractl.data.datasets import Items
from hydractl.data.encode import encoded
from hydractl.errors import CheckFailed, CheckpointError, ManifestError, OutputExists, UsageError, reason_of
from hydractl.families.load import OpenModel, load_model, open_model
from hydractl.fusion.feature_ood import FeatureExtractor
from hydractl.fusion.prompts import Classes
from hydractl.heads.budget import COMMON_KEEP_FRACTION, HeadBudget, total_heads
from hydractl.manifest.document import Fingerprint, OptionValue
from hydractl.manifest.head_mask import HeadId, HeadScores, Removal, Shape, TowerHeads, TowerScores
from hydractl.manifest.header import Architecture, Header, Kind, samples_of
from hydractl.messages import counted
from hydractl.output.publish import (
    Digested,
    OutputLock,
    append,
    has_content,
    is_stream,
    publish_text,
    publish_together,
)
from hydractl.plugins import load
from hydractl.processes.distributed import ProcessGroup, own_device, start_team
from hydractl.progress import SILENT, Progress
from hydractl.runtime import digest_text, torch_dtype, versions
from hydractl.scoring.circuit.density import check_halves
from hydractl.scoring.job import NOTHING_LEARNT, GateTraining, Log, Memory, Ranking, Samples, ScoreJob
from hydractl.scoring.settings import BudgetMeaning
from hydractl.stages.score.config import ScoreConfig, ScoreReport
from hydractl.stages.shared.finite import check_finite, stored_tensors
from hydractl.stages.shared.mask_selection import quota_of
from hydractl.stages.shared.open_inputs import RepeatedBatches, data_input, labels_of, open_reader, open_sets
from hydractl.stages.shared.outputs import check_outputs, claim, resumable
from hydractl.stages.shared.provenance import TOOL, make_step, scored_data
from hydractl.stages.shared.zero_shot_classes import ask
from hydractl.strict_json import compact, parse, read_limited
from hydractl.training.feeding import ItemFeed
from hydractl.training.resume import DROPPED, FORCED, OTHERS, OtherRunError, Snapshot, StateFolder
from hydractl.training.run_log import NO_LOG, RunLog, open_run_log
from hydractl.training.run_settings import changes, stored_texts, texts_of

SCHEMA = "hydractl.journal/1"
MEMORY, CHAIN = "memory", "chain"
LONGEST = 1 << 24
"""Maximum length of the first line, in bytes."""
_NUMBER: TypeAdapter[float | None] = TypeAdapter(float | None)
_MEMORY: TypeAdapter[dict[str, tuple[float, ...]]] = TypeAdapter(dict[str, tuple[float, ...]])


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
    run_log: RunLog = NO_LOG
    """Log of objectives by the number of removed heads."""
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
    config: ScoreConfig, document: HeadScores, *, heads: Shape, team: ProcessGroup, progress: Progress
) -> ScoreJournal:
    """Open the journal of an output, `<out>.journal`; a stream has none.

    The process that leads opens it; the others are told what it holds, and write none.

    Args:
        config: What was asked: which output is being made, and whether what another run left is dropped.
        document: Everything else that decides the scores.
        heads: Those that may be removed.
        team: The processes.
        progress: Hears of it.

    Raises:
        OutputExists: If another run's journal is there, or something that is not ours.
        ManifestError: If a damaged one is.
    """
    if team.leads:
        new = ScoreJournal(fingerprint=digest_text(document.to_json()), settings=settings_of(document))
        journal = _opened(config, new, heads=heads, progress=progress)
        team.broadcast(journal.text())
    else:
        journal = ScoreJournal.parsed(team.broadcast(""))
    if journal.recorded:
        progress.step(f"Resuming an interrupted run after {counted(len(journal.recorded), 'removal')}")
    return journal


def _opened(config: ScoreConfig, new: ScoreJournal, *, heads: Shape, progress: Progress) -> ScoreJournal:
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
    if journal.fingerprint != new.fingerprint and config.if_changed:
        progress.warn(DROPPED.format(why=OTHERS, where=path))
        return new
    if journal.fingerprint != new.fingerprint:
        raise OtherRunError(path, changes(journal.settings, new.settings))
    return journal


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


def check_training(config: ScoreConfig, opened: OpenModel, claim: OutputLock) -> None:
    """Refuse what cannot train, and weights that cannot be written, before any work.

    Raises:
        UsageError: If the weights of a zero-shot model would train, or `--trained` is a stream.
        OutputExists: If the file is there already.
    """
    if config.settings.trains_weights and opened.header.prompting is not None:
        raise UsageError(
            f"{config.model}: is a zero-shot model, whose weights cannot be trained",
            hint="add `--training pipelined`",
        )
    if config.trained is None:
        return
    if is_stream(config.trained):
        raise UsageError(f"`--trained {config.trained}`: is a stream", hint="name a file")
    check_outputs(
        [config.trained],
        force=claim.may_replace,
        models=[opened],
        data=config.references.values(),
        option="--trained",
    )


class State(NamedTuple):
    """The state of a run that trains: where it goes, and where to go on; neither without training."""

    folder: StateFolder | None = None
    start: Snapshot | None = None

    @property
    def resumes(self) -> bool:
        """Whether an interrupted run goes on."""
        return self.start is not None and bool(self.start.weights)

    def clear(self) -> None:
        """Remove it: the output is there, or going on is of no use."""
        if self.folder is not None:
            self.folder.clear()


def settings_of(document: HeadScores) -> dict[str, str]:
    """Return what decides scores, as a refusal names it; of the model and data their names and digests."""
    inputs = {"model": document.model, **{f"{role} data": data for role, data in document.data.items()}}
    return texts_of(
        {"method": document.method, "objective": document.objective, **document.options}
        | {
            name: f"{fingerprint.reference[-30:]} ({fingerprint.sha256[:19]})"
            for name, fingerprint in inputs.items()
        }
        | {"tool": document.tool}
    )


def open_state(config: ScoreConfig, opened: OpenModel, document: HeadScores, progress: Progress) -> State:
    """Open the state beside the output; a stream has none.

    Args:
        config: What was asked.
        opened: The model.
        document: Everything else that decides the scores.
        progress: Hears where the run goes on.

    Raises:
        UsageError: If the state of another run is there.
        CheckpointError: If it is damaged.
    """
    if not config.entry.trains or is_stream(config.out):
        return State()
    libraries = versions("torch", opened.family.library)
    folder = StateFolder(
        config.out.with_name(f"{config.out.name}.state"),
        digest_text(json.dumps([document.to_json(), libraries])),
        settings_of(document) | libraries,
    )
    return State(folder, folder.resumed(force=config.force, others=config.if_changed, progress=progress))


def offered(
    config: ScoreConfig,
    opened: OpenModel,
    items: Items,
    labels: torch.Tensor,
    *,
    indices: torch.Tensor | None,
    state: State,
) -> GateTraining:
    """Return what a method needs that trains.

    Args:
        config: What was asked.
        opened: The model.
        items: The in-distribution data.
        labels: Shape (N,), the model's class of each item.
        indices: Positions of the items to use, None for all.
        state: Of the run.
    """
    chosen = list(range(len(items))) if indices is None else indices.tolist()

    feed = partial(
        ItemFeed.open,
        items.subset(chosen),
        labels[chosen].tolist(),
        opened.header.preprocess,
        augment=(),
        batch_size=config.batch_size,
        seed=config.seed,
    )
    return GateTraining(
        feed=feed, folder=state.folder, start=state.start, keeps_weights=config.trained is not None
    )


def publish_scores(
    config: ScoreConfig,
    opened: OpenModel,
    scores: HeadScores,
    ranking: Ranking,
    *,
    claim: OutputLock,
) -> HeadScores:
    """Write the scores, and the trained weights if they are wanted: the scores then are of these.

    Args:
        config: What was asked.
        opened: The model.
        scores: To be written.
        ranking: May hold weights.
        claim: To the outputs.

    Returns:
        What was written.

    Raises:
        CheckFailed: If a trained weight does not fit its dtype.
        OutputError: If a file cannot be written.
    """
    if config.trained is None or ranking.weights is None:
        publish_text(config.out, scores.to_json(), claim)
        return scores
    tensors = stored_tensors(
        opened.checkpoint,
        ranking.weights,
        trained=ranking.weights.keys(),
        hint="lower `--weights-lr`",
    )
    with publish_together(claim) as begin:
        digested = Digested(begin(config.trained))
        write_tensors(digested, tensors, header=_header(config, opened, scores))
        trained = Fingerprint(reference=config.trained.name, sha256=digested.digest)
        scores = scores.model_copy(update={"model": trained})
        begin(config.out).write(scores.to_json().encode())
    return scores


def _header(config: ScoreConfig, opened: OpenModel, scores: HeadScores) -> Header:
    """Return the trained base's header: what the base was, and one more step."""
    data = scored_data(scores)
    step = make_step(
        config,
        family=opened.family,
        options={"method": config.method, **scores.options},
        inputs=(opened.as_input(), *data),
        seed=config.seed,
        results=scores.results,
    )
    samples = samples_of(data, opened.header)
    update: dict[str, object] = {"base": opened.base, "samples": samples, "made_by": step}
    if config.max_length is None:
        return opened.header.of_other_weights(update)
    # texts were cut in this run, and the model still reads longer ones
    stored_header = (
        opened.checkpoint.header or open_model(config.model, arch=config.arch, seed=config.seed).header
    )
    return opened.header.of_other_weights(update | {"preprocess": stored_header.preprocess})


LEAST_KEPT = {BudgetMeaning.KEPT: 1, BudgetMeaning.CHOICE: 1}
"""Least number of kept heads, by the meaning of the budget."""


class ScoreInputs(NamedTuple):
    """A base, its data sets by role, and the classes of a zero-shot model."""

    opened: OpenModel
    sets: Mapping[str, Items]
    classes: Classes | None


def run_score(config: ScoreConfig, progress: Progress = SILENT) -> ScoreReport:
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
        claim(config, [config.out] * team.leads, progress) as output_lock,
    ):
        opened = open_base(config)
        if team.leads:  # once: another process may come here when the first one has written
            _check_outputs(config, opened, output_lock)
        scored = scored_towers(config, opened.header.architecture)
        keep, removals = amounts(config, scored, progress)
        inputs = open_inputs(config, opened, progress)
        document = _describe(config, inputs, team, _options(config, inputs, keep=keep, removals=removals))
        journal = open_journal(config, document, heads=scored, team=team, progress=progress)
        state = open_state(config, opened, document, progress)
        team.in_order(())  # all have read the state before one writes it
        job = make_job(config, inputs, team, state, progress)
        job = replace(job, keep=keep, budget=removals, free=config.budget is None, log=journal)
        progress.step(f"Scoring {counted(total_heads(scored), 'head')} by {config.method}")
        with open_run_log(
            config.log_to,
            config.log_dir,
            out=config.out,
            options={"model": config.model, "method": config.method, **document.options},
            resumes=bool(journal.recorded or state.resumes),
            leads=team.leads,
        ) as journal.run_log:
            if job.training is not None:
                job = replace(job, training=replace(job.training, run_log=journal.run_log))
            ranking = _rank(config, job, state, progress)
        scores = _add_ranking(config, opened, document, ranking)
        if team.leads:
            scores = publish_scores(config, opened, scores, ranking, claim=output_lock)
            journal.discard()
            state.clear()
    return ScoreReport(
        path=config.out,
        scores=scores,
        resumed_from=len(journal.recorded),
        default_budget=config.budget is None
        and config.settings.budget_means not in {BudgetMeaning.NOTHING, BudgetMeaning.CHOICE},
        trained=config.trained,
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


def _check_outputs(config: ScoreConfig, opened: OpenModel, output_lock: OutputLock) -> None:
    check_outputs(
        [config.out],
        force=output_lock.may_replace,
        models=[opened],
        data=config.references.values(),
        files=[config.naming.file],
    )
    check_training(config, opened, output_lock)


def scored_towers(config: ScoreConfig, architecture: Architecture) -> dict[str, TowerHeads]:
    """Return the towers to score."""
    for name in config.towers:
        if name not in architecture.towers:
            raise UsageError(
                f"`--towers {name}`: {config.model} has no such tower",
                hint=f"it has {', '.join(architecture.towers)}",
            )
    return {n: t for n, t in architecture.towers.items() if not config.towers or n in config.towers}


def amounts(config: ScoreConfig, towers: Mapping[str, TowerHeads], progress: Progress) -> tuple[int, int]:
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


def open_inputs(config: ScoreConfig, opened: OpenModel, progress: Progress) -> ScoreInputs:
    """Open the data of a method, and determine the classes from the data, the user or the model."""
    sets = open_sets(opened, config.references, progress, workers=config.num_workers)
    classes = config.naming.classes(opened, data=sets["id"].class_names if "id" in sets else ())
    return ScoreInputs(opened, sets, classes)


def _options(config: ScoreConfig, inputs: ScoreInputs, *, keep: int, removals: int) -> dict[str, OptionValue]:
    """Return the options that shape the scores, and no others."""
    means, reads, classes = config.settings.budget_means, config.entry.needs_data, inputs.classes
    counts_kept = means == BudgetMeaning.KEPT or (means == BudgetMeaning.CHOICE and config.budget is not None)
    heads = total_heads(scored_towers(config, inputs.opened.header.architecture))
    options: dict[str, OptionValue] = {
        **config.settings.options(),
        "removals": removals if means == BudgetMeaning.REMOVALS else None,
        "keep": keep if means == BudgetMeaning.KEEP else None,
        "kept": heads - removals if counts_kept else None,
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


def _describe(
    config: ScoreConfig, inputs: ScoreInputs, team: ProcessGroup, options: dict[str, OptionValue]
) -> HeadScores:
    """Return the scores file without its scores: everything that decides them."""
    files = {
        role: data_input(item_set, team, _drawn_indices(config, item_set) if role == "id" else None)
        for role, item_set in inputs.sets.items()
    }
    return HeadScores(
        method=config.method,
        objective=config.settings.objective,
        options=options,
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


def make_job(
    config: ScoreConfig, inputs: ScoreInputs, team: ProcessGroup, state: State, progress: Progress
) -> ScoreJob:
    """Return the job of the method, without its amounts and its log."""
    opened, device = inputs.opened, own_device(config.device)
    model = load_model(opened, dtype=torch_dtype(config.dtype) if config.dtype else None)
    check_finite(model.library_state(), where=config.model, dtype=config.dtype)
    model = model.to(device)
    ask(model, opened, inputs.classes)
    like = torch.empty(0, device=device, dtype=model.dtype)
    deal = BatchShare(team.rank, team.world, as_given=config.entry.as_given)
    batches: dict[str, Iterable[Samples]] = {}
    training = None
    for role, item_set in inputs.sets.items():
        labels = labels_of(opened, item_set, inputs.classes, progress)[0] if role == "id" else None
        indices = None if labels is None else _drawn_indices(config, item_set)
        cached = encoded(
            item_set, opened.header.preprocess, batch_size=config.batch_size, indices=indices, deal=deal
        )
        batches[role] = RepeatedBatches(cached, labels, like)
        if labels is not None and config.settings.needs_features:
            check_halves(labels if indices is None else labels[indices])
        if labels is not None and config.entry.trains:
            training = offered(config, opened, item_set, labels, indices=indices, state=state)
    return ScoreJob(
        model=model,
        family=opened.family,
        architecture=opened.header.architecture,
        id_data=batches.get("id", ()),
        ood_data=batches.get("ood", ()),
        settings=config.settings,
        towers=tuple(scored_towers(config, opened.header.architecture)),
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
    if config.limit is None or config.limit >= len(item_set):
        return None
    return epoch_order(len(item_set), seed=config.seed, epoch=0)[: config.limit].sort().values


def _rank(config: ScoreConfig, job: ScoreJob, state: State, progress: Progress) -> Ranking:
    """Run the method; a training that failed would fail again, so it leaves nothing to go on with.

    Data that cannot be read now may be so later.
    """
    try:
        ranking: Ranking = load(config.entry.run)(job, progress)
    except CheckFailed:
        if job.team.leads:
            state.clear()
        raise
    return ranking


def _add_ranking(
    config: ScoreConfig, opened: OpenModel, document: HeadScores, ranking: Ranking
) -> HeadScores:
    """Return the scores file with its scores, and what made it."""
    towers = {
        name: TowerScores(scores=tuple(tuple(row) for row in table)) for name, table in ranking.scores.items()
    }
    step = make_step(config, family=opened.family, options={}, inputs=(), results=ranking.results)
    return document.model_copy(
        update={
            "towers": towers,
            "removals": ranking.removals,
            "baseline": ranking.baseline,
            "clusters": ranking.clusters,
            **step.model_dump(include={"results", "versions", "config_digest", "argv"}),
        }
    )
