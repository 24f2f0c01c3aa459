"""What `score` does for methods that train: batches to train on, a state to go on from, and the weights that come of it."""

from __future__ import annotations

import json
from functools import partial
from typing import NamedTuple

import torch

from hydractl.checkpoint import write_tensors
from hydractl.data.datasets import Items
from hydractl.errors import UsageError
from hydractl.families.load import OpenModel, open_model
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.head_mask import HeadScores
from hydractl.manifest.header import Header, samples_of
from hydractl.output.atomic_write import Digested, is_stream, publish_text, publish_together
from hydractl.output.locks import OutputLock
from hydractl.progress import Progress
from hydractl.runtime import digest_text, versions
from hydractl.scoring.job import GateTraining, Ranking
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.shared.finite import stored_tensors
from hydractl.stages.shared.output_record import make_step, scored_data
from hydractl.stages.shared.outputs import check_outputs
from hydractl.training.feeding.feed import ItemFeed
from hydractl.training.resume import Snapshot, StateFolder
from hydractl.training.run_settings import texts_of


def check_training(config: ScoreConfig, opened: OpenModel, claim: OutputLock) -> None:
    """Refuse what cannot train, and weights that cannot be written, before any work.

    Raises:
        UsageError: If the weights of a zero-shot model would train, or `--trained` is a stream or the output.
        OutputExists: If the file is there already.
    """
    if config.settings.trains_weights and opened.header.prompting is not None:
        raise UsageError(
            f"{config.model}: is a zero-shot model, whose weights cannot be trained",
            hint="add `--training pipelined`",
        )
    if config.trained is None:
        return
    if is_stream(config.trained) or config.trained.resolve() == config.out.resolve():
        raise UsageError(
            f"`--trained {config.trained}`: "
            f"{'is a stream' if is_stream(config.trained) else 'is also the output file of the scores'}",
            hint="name another file",
        )
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
