"""Result of fusion, its measurements, and its header."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from hydractl import progress
from hydractl.data.batches import CACHE_BYTES, BatchShare, check_reads, limited
from hydractl.data.labels import filled_names, has_default_names, match_classes
from hydractl.data.open_dataset import open_items
from hydractl.data.reference import DataRef
from hydractl.errors import CheckFailed, UsageError
from hydractl.families.load import OpenModel, load_model
from hydractl.families.tower import Towers
from hydractl.fusion.build import hydra_from_state
from hydractl.fusion.hydra import Hydra
from hydractl.fusion.plan import Fusion
from hydractl.manifest.document import Fingerprint, OptionValue, pack
from hydractl.manifest.header import Fate, FittedScores, Header, InputFile, Kind, SampledFile, samples_of
from hydractl.manifest.temperature import Temperature
from hydractl.messages import counted
from hydractl.metrics.diversity import mutual_information
from hydractl.metrics.ood_scores import ENERGY_DENSITY, VERSION
from hydractl.metrics.per_sample import Responses, answers, ensemble_log_probs
from hydractl.metrics.registry import FIT, VAL
from hydractl.metrics.temperature import divisor, scale_log_probs
from hydractl.prediction.answers import Scaling, inputs_of, predict
from hydractl.prediction.feature_ood import FitOn, Predictor, Scores, fit_on, overlap_of_val
from hydractl.prediction.inference import PreparedData, fits
from hydractl.prediction.open_inputs import data_input, digests, identified, labels_of, warn
from hydractl.processes.distributed import ProcessGroup, answering_device
from hydractl.provenance.up_to_date import make_step
from hydractl.stages.fuse.config import FuseConfig

UNKNOWN_DIGEST = f"sha256:{'0' * 64}"
"""Placeholder with the length of a digest, until the digest is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Quality of the mean of the members' probabilities, with logits divided by `temperature`.

    Attributes:
        accuracy: Accuracy, in [0, 1].
        nll: NLL, in nats.
        temperature: Temperature of all members.
        mutual_information: Disagreement of the members, in nats, mean over samples.
    """

    accuracy: float
    nll: float
    temperature: float
    mutual_information: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A measured hydra.

    Attributes:
        merge_trunk: Block before which all tensors that differ are averaged.
        hydra: Its quality.
        loss: NLL of the hydra minus that of the members' ensemble, in nats.
        agreement: Fraction of samples with the same prediction as the ensemble.
    """

    merge_trunk: int
    hydra: Quality
    loss: float
    agreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Effect of merging on labelled data.

    Attributes:
        data: Name of the data.
        samples: Number of samples.
        members: Quality of the ensemble of the original members.
        tried: Hydras in the order of evaluation; the last one is written.
    """

    data: str
    samples: int
    members: Quality
    tried: tuple[Tried, ...]

    def results(self) -> dict[str, OptionValue]:
        """Return the values for the lineage."""
        last = self.tried[-1]
        return {
            "merge_trunk": last.merge_trunk,
            "validation_count": self.samples,
            "validation_accuracy": last.hydra.accuracy,
            "validation_nll": last.hydra.nll,
            "mutual_information": last.hydra.mutual_information,
            "members_accuracy": self.members.accuracy,
            "members_nll": self.members.nll,
            "members_mutual_information": self.members.mutual_information,
            "agreement": last.agreement,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Contents of the output: fused tensors, temperature and OOD scores, with their measurements and data."""

    fusion: Fusion
    temperature: Temperature
    measured: Measured | None = None
    scores: Scores | None = None
    fitted: FittedScores | None = None
    sources: tuple[InputFile, ...] = ()

    def beside(self) -> dict[str, Tensor]:
        """Return the tensors that are stored in addition to the weights."""
        return {} if self.scores is None else self.scores.tensors()


def make_header(
    config: FuseConfig, members: Sequence[OpenModel], outcome: Outcome, *, digest: str | None = None
) -> Header:
    """Return the header of a hydra; `digest` is a placeholder for its members' digests."""
    first, fusion, measured = members[0], outcome.fusion, outcome.measured
    step = make_step(
        config,
        family=first.family,
        options={
            "mlp": config.mlps,
            "merge_trunk": config.merge_trunk,
            "own_from": config.own_from,
            "max_loss": config.max_loss,
            "temperature": config.measuring.given_temperature,
            "fitted": None if outcome.fitted is None else outcome.fitted.scores,
            "max_length": config.measuring.max_length,
            "force_merge": config.force_merge or None,
            "classes": config.naming.names or None,
            "templates": config.naming.templates or None,
        },
        inputs=[*(m.as_input(digest=digest) for m in members), *outcome.sources],
        seed=config.seed if config.verify else None,
        results=({"verified": True} if config.verify else {})
        | ({} if measured is None else measured.results())
        | ({} if config.measuring.temperature_data is None else {"temperature": outcome.temperature.common}),
    )
    return first.header.of_other_weights(
        {
            "kind": Kind.HYDRA,
            "masks": tuple(m.header.masks[0] for m in members),
            "plan": fusion.plan,
            **outcome.temperature.fields,
            "fitted": outcome.fitted,
            "samples": samples_of(outcome.sources, *(m.header for m in members)),
            "made_by": step,
        }
    )


HYDRA, ENSEMBLE = "the hydra", "the members' ensemble"

LogProbs = Mapping[DataRef, Tensor]
"""Members' log-probabilities (M, N, C) on each data set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSet:
    """A data set as models read it, with labels (N,) of the models' classes."""

    inputs: PreparedData
    labels: Tensor


class MergeEvaluator:
    """The data sets, opened once, and what members and hydras say of them."""

    def __init__(
        self, config: FuseConfig, members: Sequence[OpenModel], stored: Temperature, team: ProcessGroup
    ) -> None:
        """Open the data.

        Args:
            config: What is fused, on which data it is measured, and how models run there.
            members: At least one, all with the same classes.
            stored: The temperature where none is fitted.
            team: Who asks models together.

        Raises:
            DataError: If a set cannot be used, has no labels, or not those of the members.
            UsageError: If nothing names the classes of a zero-shot model.
        """
        self.config, self.measuring, self.members, self.stored = config, config.measuring, members, stored
        self.team, self.progress = team, progress
        self.device = answering_device(self.measuring.device)
        first = members[0]
        check_reads(first.header.preprocess, model=first.reference)
        warn(first)
        if not first.header.num_classes:
            raise UsageError(
                f"{first.reference}: has no class names yet, so nothing can be measured",
                hint="give the class names of the data: `--classes cat,dog`",
            )
        self.how = limited(first.header.preprocess, self.measuring.max_length, model=first.reference)
        self.sets: dict[DataRef, LabelledSet] = {}
        for option, ref in self.measuring.labelled.items():
            if ref not in self.sets:
                self.sets[ref] = self._opened(ref, option)
        items = next(iter(self.sets.values())).inputs.dataset
        labels, names = first.header.labels, items.class_names
        if has_default_names(labels) and len(names) == first.header.num_classes and not items.numbered:
            places = match_classes(items, labels, num_classes=len(names))  # `_opened` warns
            update = {"labels": filled_names((), names, places, len(names))}
            self.members = [replace(m, header=m.header.model_copy(update=update)) for m in members]

    def _opened(self, ref: DataRef, option: str) -> LabelledSet:
        items = open_items(ref, self.how, workers=self.measuring.num_workers)
        labels, _ = labels_of(self.members[0], items, None, option=option)
        return LabelledSet(
            inputs=PreparedData(
                items,
                batch_size=self.measuring.batch_size,
                limit_bytes=CACHE_BYTES // len(self.measuring.labelled),
                deal=BatchShare(self.team.rank, self.team.world),
            ),
            labels=labels,
        )

    def choose(self, fusion: Fusion) -> Outcome:
        """Return what to write: with `auto` the hydra that merges most of those whose loss is small enough.

        Members are asked once, one by one; then one hydra at a time, merging less and less. Where nothing was averaged the hydra
        is its members and is not asked.

        Args:
            fusion: The one that merges most.

        Raises:
            CheckFailed: If none is good enough.
        """
        data, auto, max_loss = self.measuring.data, self.config.auto, self.config.max_loss or 0.0
        if data is None:
            temperature = self.temperature(self.log_probs_of_hydra(fusion, HYDRA), HYDRA)
            return Outcome(fusion=fusion, temperature=temperature, sources=self.sources)
        # memory holds one member at a time
        log_probs_by_member = [self.log_probs_of(partial(load_model, m), m.reference) for m in self.members]
        member_log_probs = {
            ref: torch.cat([by_set[ref] for by_set in log_probs_by_member]) for ref in self.sets
        }
        before, predicted, of_members = self.quality(data, member_log_probs, ENSEMBLE)
        tried: list[Tried] = []
        for merge_trunk in range(fusion.merge_trunk, -1, -1):
            candidate = fusion.merging(merge_trunk)
            quality, classes, temperature = before, predicted, of_members
            if Fate.MERGED in candidate.fates.values():
                name = f"{HYDRA} merged before block {merge_trunk}" if auto else HYDRA
                quality, classes, temperature = self.quality(
                    data, self.log_probs_of_hydra(candidate, name), name
                )
            agreement = float((classes == predicted).double().mean())
            loss = quality.nll - before.nll
            tried.append(Tried(merge_trunk=merge_trunk, hydra=quality, loss=loss, agreement=agreement))
            progress.step(
                f"{counted(merge_trunk, 'block')} merged: NLL {quality.nll:.4f}, {loss:+.4f} against "
                f"{ENSEMBLE}; accuracy {quality.accuracy:.4f}, agreement {agreement:.4f}"
            )
            if not auto or loss <= max_loss:
                if auto and fusion.merge_trunk and not merge_trunk:
                    progress.warn(
                        "merging any block costs more than allowed, so every member keeps its own blocks"
                    )
                items = self.sets[data].inputs.dataset
                measured = Measured(data=items.name, samples=items.total, members=before, tried=tuple(tried))
                return Outcome(
                    fusion=candidate, temperature=temperature, measured=measured, sources=self.sources
                )
        least = min(tried, key=lambda trial: trial.loss)
        raise CheckFailed(
            f"every hydra loses more than {max_loss:g} nats; the best one, with `--merge-trunk "
            f"{least.merge_trunk}`, loses {least.loss:.4g}; nothing was written",
            hint=(
                f"add `--max-loss {1.05 * least.loss:.2g}`, or leave out `--mlp merge` so that members keep their own MLPs"
            ),
        )

    @property
    def sources(self) -> tuple[InputFile, ...]:
        """The data sets as lineage has them."""
        return tuple(data_input(labelled.inputs.dataset, self.team) for labelled in self.sets.values())

    def log_probs_of_hydra(self, fusion: Fusion, name: str) -> LogProbs:
        """Return what a hydra says that is not written yet, its logits as they are."""
        draft = Outcome(fusion=fusion, temperature=Temperature())
        header = make_header(self.config, self.members, draft, digest=UNKNOWN_DIGEST)

        def load() -> Hydra:
            return hydra_from_state(header, {n: fusion.tensor(n) for n in fusion.specs}, where=HYDRA)

        return self.log_probs_of(load, name)

    def log_probs_of(self, load: Callable[[], Towers], name: str) -> LogProbs:
        """Return what a model says.

        Raises:
            InputError: If its logits are not finite, or it does not fit into the memory of the device.
        """
        with fits(name, self.device):
            model = load().to(self.device)
        return {
            ref: predict(
                Predictor(model=model, name=name, reads=self.how), labelled_set.inputs, team=self.team
            ).log_probs
            for ref, labelled_set in self.sets.items()
        }

    def temperature(self, log_probs: LogProbs, name: str) -> Temperature:
        """Return the temperature of whoever said it: fitted, or the one that was given or stored."""
        ref = self.measuring.temperature_data
        if ref is None:
            return self.stored
        return (
            Scaling.fit(
                Responses(log_probs[ref]), self.sets[ref].labels, row=name, header=self.members[0].header
            )
            .on_top_of(())
            .rounded()
        )

    def quality(
        self, ref: DataRef, log_probs_by_set: LogProbs, name: str
    ) -> tuple[Quality, Tensor, Temperature]:
        """Return the quality of an ensemble on a data set, its predicted classes (N,), and its temperature.

        Each label or word of a sample counts as one.
        """
        temperature = self.temperature(log_probs_by_set, name)
        scaled = Responses(scale_log_probs(log_probs_by_set[ref], divisor(temperature)))
        member_log_probs, labels = scaled.flattened().log_probs.double(), self.sets[ref].labels
        log_probs = ensemble_log_probs(member_log_probs)
        per_sample = answers(log_probs.exp(), labels[labels >= 0], log_probs=log_probs)
        quality = Quality(
            accuracy=float(per_sample["hits"].double().mean()),
            nll=float(per_sample["nll"].mean()),
            temperature=temperature.common,
            mutual_information=mutual_information(member_log_probs.exp()),
        )
        return quality, log_probs.argmax(1), temperature


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreFitter:
    """Training data, and held-out data of the same classes, that `energy+density` is fitted on.

    Attributes:
        config: Configuration of the fusion.
        members: The members.
        on: The data of `--fit` and `--val`.
        sources: Lineage entries of the two.
        team: The processes.
    """

    config: FuseConfig
    members: Sequence[OpenModel]
    on: FitOn
    sources: tuple[SampledFile, SampledFile]
    team: ProcessGroup

    @classmethod
    def open(cls, config: FuseConfig, members: Sequence[OpenModel], team: ProcessGroup) -> Self | None:
        """Open the data of `--fit` and of `--val`; None without them.

        Raises:
            DataError: If a set cannot be used, or `--fit` has no labels, or not those of the members.
        """
        measuring, first = config.measuring, members[0]
        if measuring.fit is None or measuring.val is None:
            return None
        refs = (measuring.fit, measuring.val)
        check_reads(first.header.preprocess, model=first.reference)
        how = limited(first.header.preprocess, measuring.max_length, model=first.reference)
        opened = [open_items(ref, how, workers=measuring.num_workers) for ref in refs]
        labels, _ = labels_of(first, opened[0], None, option=f"--{FIT}")
        training, held_out = (
            inputs_of(items, name=name, batch_size=measuring.batch_size, team=team)
            for name, items in zip((FIT, VAL), opened, strict=True)
        )
        (fit_digest, fit_content), (val_digest, val_content) = (
            identified(items, digests(items, team)) for items in opened
        )
        if doubt := overlap_of_val(val_content, fit_content):
            progress.warn(doubt)
        return cls(
            config=config,
            members=members,
            on=FitOn(training, labels, held_out),
            sources=(
                SampledFile(name=opened[0].name, sha256=fit_digest, samples=pack(fit_content)),
                SampledFile(name=opened[1].name, sha256=val_digest, samples=pack(val_content)),
            ),
            team=team,
        )

    def add(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the score of the hydra at its temperature.

        Raises:
            DataError: If the score cannot be fitted on such data.
            InputError: If the hydra does not fit into the memory of the device.
        """
        progress.step(f"Fitting the OOD score {ENERGY_DENSITY}")
        device = answering_device(self.config.measuring.device)
        header = make_header(self.config, self.members, outcome, digest=UNKNOWN_DIGEST)
        how = limited(header.preprocess, self.config.measuring.max_length, model=HYDRA)
        with fits(HYDRA, device):
            tensors = {name: outcome.fusion.tensor(name) for name in outcome.fusion.specs}
            hydra = hydra_from_state(header, tensors, where=HYDRA).to(device)
        hydra.set_temperature(outcome.temperature)
        predictor = Predictor(model=hydra, name=HYDRA, reads=how)
        family = self.members[0].family
        scores = fit_on(predictor, family, (ENERGY_DENSITY,), self.on, self.team)
        source = self.sources[0]
        fitted = FittedScores(
            scores=(ENERGY_DENSITY,),
            data=Fingerprint(reference=source.name, sha256=source.sha256, count=len(self.on.inputs)),
            temperature=scores.temperature,
            version=VERSION,
        )
        return replace(outcome, scores=scores, fitted=fitted, sources=(*outcome.sources, *self.sources))
