"""Steps of `score` for methods that learn gates: training data, the state of an interrupted training, trained weights."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import cast

import torch
from typing_extensions import override

from hydractl.checkpoint import write_tensors
from hydractl.data.datasets import Items
from hydractl.errors import UsageError
from hydractl.families.load import OpenModel, open_model
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.head_mask import HeadScores
from hydractl.manifest.header import Header, samples_of
from hydractl.output.publish import Digested, OutputLock, is_stream, publish_together
from hydractl.progress import Progress
from hydractl.research.scores.gates import GateTraining
from hydractl.research.scores.options import GateSettings, TrainedWeights
from hydractl.runtime import digest_text, versions
from hydractl.scoring.job import Ranking
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.journal import MethodRun, settings_of
from hydractl.stages.shared.finite import stored_tensors
from hydractl.stages.shared.outputs import check_outputs
from hydractl.stages.shared.provenance import make_step, scored_data
from hydractl.training.feeding import ItemFeed
from hydractl.training.resume import Snapshot, StateFolder


class GateRun(MethodRun):
    """Trains gates from shuffled batches. The state is saved beside the output; an output stream has none."""

    folder: StateFolder | None = None
    start: Snapshot | None = None

    @override
    def check(self, config: ScoreConfig, opened: OpenModel, claim: OutputLock) -> None:
        if cast("GateSettings", config.settings).trains_weights and opened.header.prompting is not None:
            raise UsageError(
                f"{config.model}: is a zero-shot model, whose weights cannot be trained",
                hint="add `--training pipelined`",
            )
        trained = _trained_path(config)
        if trained is None:
            return
        if is_stream(trained) or trained.resolve() == config.out.resolve():
            raise UsageError(
                f"`--trained {trained}`: "
                f"{'is a stream' if is_stream(trained) else 'is also the output file of the scores'}",
                hint="name another file",
            )
        check_outputs(
            [trained],
            force=claim.may_replace,
            models=[opened],
            data=config.references.values(),
            option="--trained",
        )

    @override
    def open_state(
        self, config: ScoreConfig, opened: OpenModel, document: HeadScores, progress: Progress
    ) -> None:
        if is_stream(config.out):
            return
        libraries = versions("torch", opened.family.library)
        self.folder = StateFolder(
            config.out.with_name(f"{config.out.name}.state"),
            digest_text(json.dumps([document.to_json(), libraries])),
            settings_of(document) | libraries,
        )
        self.start = self.folder.resumed(force=config.force, others=config.if_changed, progress=progress)
        self.resumes = bool(self.start.weights)

    @override
    def training(
        self,
        config: ScoreConfig,
        opened: OpenModel,
        items: Items,
        labels: torch.Tensor,
        indices: torch.Tensor | None,
    ) -> GateTraining:
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
            feed=feed, folder=self.folder, start=self.start, keeps_weights=_trained_path(config) is not None
        )

    @override
    def publish(
        self,
        config: ScoreConfig,
        opened: OpenModel,
        scores: HeadScores,
        ranking: Ranking,
        claim: OutputLock,
    ) -> HeadScores:
        """Write the scores, and with `--trained` the trained weights; the scores are then of the trained base.

        Raises:
            CheckFailed: If a trained weight does not fit its dtype.
            OutputError: If a file cannot be written.
        """
        trained = _trained_path(config)
        if trained is None or ranking.weights is None:
            return super().publish(config, opened, scores, ranking, claim)
        tensors = stored_tensors(
            opened.checkpoint,
            ranking.weights,
            trained=ranking.weights.keys(),
            hint="lower `--weights-lr`",
        )
        with publish_together(claim) as begin:
            digested = Digested(begin(trained))
            write_tensors(digested, tensors, header=_header(config, opened, scores))
            model = Fingerprint(reference=trained.name, sha256=digested.digest)
            scores = scores.model_copy(update={"model": model})
            begin(config.out).write(scores.to_json().encode())
        return scores

    @override
    def clear_state(self) -> None:
        if self.folder is not None:
            self.folder.clear()


def _trained_path(config: ScoreConfig) -> Path | None:
    return next((e.trained for e in config.extensions if isinstance(e, TrainedWeights)), None)


def _header(config: ScoreConfig, opened: OpenModel, scores: HeadScores) -> Header:
    """Return the header of the trained base: that of the base with one more step."""
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
    # `--max-length` shortens texts in this run only; the trained model still reads longer texts
    stored_header = (
        opened.checkpoint.header or open_model(config.model, arch=config.arch, seed=config.seed).header
    )
    return opened.header.of_other_weights(update | {"preprocess": stored_header.preprocess})
