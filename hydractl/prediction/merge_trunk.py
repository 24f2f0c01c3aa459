"""Quality lost by averaging members' tensors in a hydra, and OOD scores of hydras before they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from hydractl import progress
from hydractl.data.batches import CACHE_BYTES, check_readable_by, with_max_length
from hydractl.data.labels import filled_names, has_default_names, match_classes
from hydractl.data.open_dataset import open_items
from hydractl.data.reference import DataRef
from hydractl.errors import CheckFailed, UsageError
from hydractl.families.open_model import OpenModel, load_model
from hydractl.families.tower import Towers
from hydractl.fusion.build import hydra_of
from hydractl.fusion.plan import Fusion
from hydractl.manifest.document import Fingerprint, OptionValue, pack_digests
from hydractl.manifest.header import FittedScores, InputFile, SampledFile
from hydractl.manifest.terms import Temperature
from hydractl.messages import counted
from hydractl.metrics.diversity import mutual_information
from hydractl.metrics.ood_scores import ENERGY_DENSITY, VERSION
from hydractl.metrics.per_sample import Responses, answers, ensemble_log_probs
from hydractl.metrics.registry import FIT, VAL
from hydractl.metrics.temperature import divisor, scale_log_probs
from hydractl.prediction.feature_ood import FitOn, Predictor, Scores, fit_on, overlap_of_val
from hydractl.prediction.inference import PreparedData, memory_guard
from hydractl.prediction.open_inputs import data_input, digests, identify, labels_of, warn_of_model
from hydractl.prediction.run_models import Execution, Scaling, predict
from hydractl.processes.distributed import answering_device

HYDRA, ENSEMBLE = "the hydra", "the members' ensemble"

LogProbs = Mapping[DataRef, Tensor]
"""Members' log-probabilities (M, N, C) on each data set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Quality of an ensemble: the mean of the members' probabilities, with logits divided by `temperature`.

    Attributes:
        accuracy: Accuracy, in [0, 1].
        nll: Negative log-likelihood, in nats.
        temperature: Temperature of all members.
        mutual_information: Disagreement of the members, in nats, mean over samples.
    """

    accuracy: float
    nll: float
    temperature: float
    mutual_information: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredHydra:
    """A measured hydra.

    Attributes:
        merge_trunk: Number of merged blocks: all different tensors before this block (from 0) are averaged.
        hydra: Quality of the hydra.
        loss: NLL of the hydra minus the NLL of the members' ensemble, in nats.
        agreement: Fraction of samples with the same prediction as the ensemble.
    """

    merge_trunk: int
    hydra: Quality
    loss: float
    agreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeMeasurement:
    """Effect of merging on labelled data.

    Attributes:
        data: Name of the data.
        samples: Number of samples.
        members: Quality of the ensemble of the original members.
        tried: Hydras in the order of evaluation. The last hydra is written.
    """

    data: str
    samples: int
    members: Quality
    tried: tuple[MeasuredHydra, ...]

    def results(self) -> dict[str, OptionValue]:
        """Return the values of the last hydra, and of the members (`members_...`), for the provenance."""
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


class MergeEvaluator:
    """Labelled data sets on which members and hydras are measured.

    Attributes:
        members: The members. Missing class names are replaced by the names of the first data set.
    """

    def __init__(
        self,
        members: Sequence[OpenModel],
        refs: Mapping[str, DataRef],
        execution: Execution,
    ) -> None:
        """Open the data.

        Args:
            members: At least one member, all with the same classes.
            refs: Data references by option.
            execution: Settings for running models.

        Raises:
            DataError: If a data set cannot be used, or its labels are missing or do not fit the members.
            UsageError: If a zero-shot model has no class names.
            CheckpointError: If a text model has no tokenizer.
        """
        first = members[0]
        check_readable_by(first.header.preprocess, model=first.reference)
        warn_of_model(first)
        if not first.header.num_classes:
            raise UsageError(
                f"{first.reference}: has no class names yet, so nothing can be measured",
                hint="give the class names of the data: `--classes cat,dog`",
            )
        self.members, self.team = members, execution.team
        self.device = answering_device(execution.device)
        self.preprocess = with_max_length(
            first.header.preprocess, execution.max_length, model=first.reference
        )
        self.inputs: dict[DataRef, PreparedData] = {}
        self.labels: dict[DataRef, Tensor] = {}
        for option, ref in refs.items():
            if ref in self.inputs:
                continue
            dataset = open_items(ref, self.preprocess, workers=execution.workers)
            self.labels[ref], _ = labels_of(first, dataset, None, option=option)
            self.inputs[ref] = PreparedData(
                dataset,
                batch_size=execution.batch_size,
                limit_bytes=CACHE_BYTES // len(refs),
                batch_share=execution.share,
            )
        dataset = next(iter(self.inputs.values())).dataset
        labels, names = first.header.labels, dataset.class_names
        if has_default_names(labels) and len(names) == first.header.num_classes and not dataset.numbered:
            with progress.reporting(progress.SILENT):  # `labels_of` warns
                places = match_classes(dataset, labels, num_classes=len(names))
            update = {"labels": filled_names((), names, places, len(names))}
            self.members = [replace(m, header=m.header.model_copy(update=update)) for m in members]

    def choose(
        self,
        fusion: Fusion,
        data: DataRef,
        temperature: Temperature | DataRef,
        *,
        max_nll_increase: float | None,
    ) -> tuple[Fusion, Temperature, MergeMeasurement]:
        """Choose the hydra with the most merged blocks among all hydras with an acceptable loss.

        The members are measured first, one by one. Then hydras are measured with fewer and fewer merged
        blocks. A hydra without averaged tensors equals its members and is not measured.

        Args:
            fusion: The fusion with the most merged blocks.
            data: Data to measure on.
            temperature: A temperature, or data to fit a temperature for each model.
            max_nll_increase: Largest acceptable loss, in nats. None accepts the first hydra.

        Returns:
            The fusion, its temperature, and the measurements.

        Raises:
            CheckFailed: If the loss of every hydra is larger than `max_nll_increase`. The hint names the smallest
                loss.
            InputError: If a model does not fit into the memory of the device, or a logit is not finite.
        """
        # loaded one by one, because only one member must fit into memory
        log_probs_by_member = [self._log_probs(partial(load_model, m), m.reference) for m in self.members]
        member_log_probs = {
            ref: torch.cat([by_set[ref] for by_set in log_probs_by_member]) for ref in self.inputs
        }
        of_members = self._scale(member_log_probs, ENSEMBLE, temperature)
        before, predicted = self._quality(data, member_log_probs, of_members)
        tried: list[MeasuredHydra] = []
        for merge_trunk in range(fusion.merge_trunk, -1, -1):
            candidate = fusion.merging(merge_trunk)
            quality, classes, scale = before, predicted, of_members
            if candidate.averages:
                name = HYDRA if max_nll_increase is None else f"{HYDRA} merged before block {merge_trunk}"
                log_probs = self._log_probs(partial(hydra_of, candidate, place=HYDRA), name)
                scale = self._scale(log_probs, name, temperature)
                quality, classes = self._quality(data, log_probs, scale)
            agreement = float((classes == predicted).double().mean())
            loss = quality.nll - before.nll
            tried.append(
                MeasuredHydra(merge_trunk=merge_trunk, hydra=quality, loss=loss, agreement=agreement)
            )
            progress.step(
                f"{counted(merge_trunk, 'block')} merged: NLL {quality.nll:.4f}, {loss:+.4f} against "
                f"{ENSEMBLE}; accuracy {quality.accuracy:.4f}, agreement {agreement:.4f}"
            )
            if max_nll_increase is None or loss <= max_nll_increase:
                if max_nll_increase is not None and fusion.merge_trunk and not merge_trunk:
                    progress.warn(
                        "merging any block costs more than allowed, so every member keeps its own blocks"
                    )
                dataset = self.inputs[data].dataset
                measured = MergeMeasurement(
                    data=dataset.name, samples=dataset.total, members=before, tried=tuple(tried)
                )
                return candidate, scale, measured
        least = min(tried, key=lambda trial: trial.loss)
        raise CheckFailed(
            f"every hydra loses more than {max_nll_increase:g} nats; the best one, with `--trunk "
            f"{least.merge_trunk}`, loses {least.loss:.4g}; nothing was written",
            hint=(
                f"add `--max-nll-increase {1.05 * least.loss:.2g}`, or leave out `--mlp merge` so that members keep their own MLPs"
            ),
        )

    def temperature_of(self, fusion: Fusion, data: DataRef) -> Temperature:
        """Fit the temperature of a hydra on data."""
        return self._scale(self._log_probs(partial(hydra_of, fusion, place=HYDRA), HYDRA), HYDRA, data)

    @property
    def sources(self) -> tuple[InputFile, ...]:
        """Provenance entries of the data sets."""
        return tuple(data_input(inputs.dataset, self.team) for inputs in self.inputs.values())

    def _log_probs(self, load: Callable[[], Towers], name: str) -> LogProbs:
        with memory_guard(name, self.device):
            model = load().to(self.device)
        predictor = Predictor(model=model, name=name, preprocess=self.preprocess)
        return {
            ref: predict(predictor, inputs, team=self.team).log_probs for ref, inputs in self.inputs.items()
        }

    def _scale(self, log_probs: LogProbs, name: str, temperature: Temperature | DataRef) -> Temperature:
        if isinstance(temperature, Temperature):
            return temperature
        responses, labels = Responses(log_probs[temperature]), self.labels[temperature]
        scaling = Scaling.fit(responses, labels, row=name, header=self.members[0].header)
        return scaling.on_top_of(()).rounded()

    def _quality(
        self, ref: DataRef, log_probs_by_set: LogProbs, temperature: Temperature
    ) -> tuple[Quality, Tensor]:
        """Return the quality of an ensemble on a data set, and its predicted classes (N,).

        Each label or word counts as a sample.
        """
        scaled = Responses(scale_log_probs(log_probs_by_set[ref], divisor(temperature)))
        member_log_probs, labels = scaled.flattened().log_probs.double(), self.labels[ref]
        log_probs = ensemble_log_probs(member_log_probs)
        per_sample = answers(log_probs.exp(), labels[labels >= 0], log_probs=log_probs)
        quality = Quality(
            accuracy=float(per_sample["hits"].double().mean()),
            nll=float(per_sample["nll"].mean()),
            temperature=temperature.common,
            mutual_information=mutual_information(member_log_probs.exp()),
        )
        return quality, log_probs.argmax(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DensityFitter:
    """Data for fitting the OOD score `energy+density` of a hydra.

    Attributes:
        on: Labelled training data, and held-out data of the same classes.
        source: Provenance entry of the training data.
        execution: Settings for running models.
    """

    on: FitOn
    source: SampledFile
    execution: Execution

    @classmethod
    def open(cls, model: OpenModel, fit: DataRef, val: DataRef, execution: Execution) -> Self:
        """Open the data with the preprocessing of a model.

        Raises:
            DataError: If a data set cannot be used, or the labels of the training data are missing or do not
                fit the model.
        """
        check_readable_by(model.header.preprocess, model=model.reference)
        team = execution.team
        preprocess = with_max_length(model.header.preprocess, execution.max_length, model=model.reference)
        datasets = [open_items(ref, preprocess, workers=execution.workers) for ref in (fit, val)]
        labels, _ = labels_of(model, datasets[0], None, option="--train")
        training, held_out = (
            PreparedData(
                dataset,
                batch_size=execution.batch_size,
                limit_bytes=0,
                name=name,
                batch_share=execution.share,
            )
            for name, dataset in zip((FIT, VAL), datasets, strict=True)
        )
        (fit_digest, fit_content), (_, val_content) = (
            identify(dataset, digests(dataset, team)) for dataset in datasets
        )
        if doubt := overlap_of_val(val_content, fit_content):
            progress.warn(doubt)
        return cls(
            on=FitOn(training, labels, held_out),
            source=SampledFile(name=datasets[0].name, sha256=fit_digest, samples=pack_digests(fit_content)),
            execution=execution,
        )

    def fit(self, fusion: Fusion, temperature: Temperature) -> tuple[Scores, FittedScores]:
        """Fit the score of a hydra at its temperature.

        Returns:
            Fitted tensors, and their entry in the header.

        Raises:
            DataError: If the score cannot be fitted on these data.
            InputError: If the hydra does not fit into the memory of the device.
        """
        progress.step(f"Fitting the OOD score {ENERGY_DENSITY}")
        device = answering_device(self.execution.device)
        preprocess = with_max_length(fusion.header.preprocess, self.execution.max_length, model=HYDRA)
        with memory_guard(HYDRA, device):
            hydra = hydra_of(fusion, place=HYDRA).to(device)
        hydra.set_temperature(temperature)
        predictor = Predictor(model=hydra, name=HYDRA, preprocess=preprocess)
        scores = fit_on(predictor, fusion.family, (ENERGY_DENSITY,), self.on, self.execution.team)
        source = self.source
        fitted = FittedScores(
            scores=(ENERGY_DENSITY,),
            data=Fingerprint(reference=source.name, sha256=source.sha256, count=len(self.on.inputs)),
            temperature=scores.temperature,
            version=VERSION,
        )
        return scores, fitted
