"""What a line says of each input: classes, an OOD score and a threshold."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydractl import progress
from hydractl.data.words import Span
from hydractl.errors import InputError, UsageError
from hydractl.families.load import OpenModel, digest_weights
from hydractl.manifest.guarantees import PredictionSets, Threshold
from hydractl.manifest.header import Header, Tokenization
from hydractl.manifest.report import Report
from hydractl.metrics.ood_scores import ENERGY_DENSITY, RELATIVE, is_fitted
from hydractl.metrics.per_sample import Responses
from hydractl.prediction.class_names import Classes, with_class_names
from hydractl.prediction.feature_ood import check_threshold, default_score
from hydractl.prediction.predictions import WordPredictions, predictions_of
from hydractl.prediction.sources import Source
from hydractl.prediction.writers import (
    ACCEPTED,
    DATA,
    ERROR,
    PATH,
    ROW,
    SET,
    Line,
    columns,
    lines_of,
    path_text,
)
from hydractl.stages.predict.config import NO_THRESHOLD, PredictConfig, check_bound
from hydractl.strict_json import read_text
from hydractl.tags import tag_scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormatter:
    """A run's classes, score and threshold.

    Attributes:
        config: Of the run.
        opened: The model.
        names: Of the classes.
        classes: What a zero-shot model is asked about.
        score: The OOD score that is told.
        below: The threshold on it, where there is one.
        sets: Which prediction sets lines have, where the model stores them.
        report: What the threshold is from, if it is a report's.
        reason: Why no input is accepted or refused; None where there is a threshold, or `--threshold none` wants none.
        decides: Whether lines say if inputs are accepted: null where a threshold was looked for, and none keeps its risk.
    """

    config: PredictConfig
    opened: OpenModel
    names: tuple[str, ...]
    classes: Classes | None
    score: str
    below: float | None
    decides: bool
    sets: PredictionSets | None = None
    report: Report | None = None
    reason: str | None = None

    @classmethod
    def of(cls, config: PredictConfig, opened: OpenModel) -> RowFormatter:
        """Look at what the model's header says.

        Raises:
            UsageError: If nothing names the classes of a zero-shot model, or classes are named that a model has itself; or
                a threshold is not for the OOD score that is asked for.
            InputError: If a report has no threshold, or one of another model.
        """
        header = opened.header
        classes = config.naming.classes(opened)
        names = classes.names if classes else header.class_names
        if not names:
            raise UsageError(
                f"{opened.reference}: has no class names yet", hint="give them: `--classes cat,dog`"
            )
        if header.architecture.task.by_word:
            progress.step(f"{opened.reference}: {tag_scheme(names)}")
        stored = header.prompting and classes and (header.labels, header.prompting.templates)
        others_asked = stored and stored != (classes and (classes.names, classes.templates))
        stored_fits = {
            "threshold is": header.threshold,
            "prediction sets are": header.prediction_sets,
            "feature-based OOD scores are": header.fitted if others_asked else None,
        }
        lapsed = next((subject for subject, fit in stored_fits.items() if fit is not None), None)
        if lapsed and (others_asked or config.max_length is not None):
            progress.warn(
                f"{opened.reference}: its {lapsed} valid only for the {'classes' if others_asked else 'length of texts'} "
                "that it stores, and not applied"
            )
            header = with_class_names(header, classes).model_copy(
                update=dict.fromkeys(("threshold", "prediction_sets"))
            )
        report = None
        if isinstance(config.threshold, Path):
            report = Report.from_json(read_text(config.threshold), where=str(config.threshold))
        threshold = header.threshold if report is None else _reported(report, str(config.threshold), opened)
        score, below = _bound(config, opened, header, threshold)
        _check_fitted(config, opened.reference, header, score)
        reason = None
        if below is None and not isinstance(config.threshold, float):
            reason = (
                f"{opened.reference}: `{ACCEPTED}` is null: {threshold.summary}"
                if threshold
                else f"{opened.reference}: stores no threshold, so predictions have no column `accepted`; `hydractl eval "
                f"{shlex.quote(opened.reference)} --data HELD_OUT --threshold-for 'risk<=0.05' --store PATH` stores one"
            )
            (progress.warn if threshold else progress.step)(reason)
        return cls(
            config=config,
            opened=opened,
            names=names,
            classes=classes,
            score=score,
            below=below,
            decides=below is not None or bool(threshold and reason),
            sets=header.prediction_sets,
            report=report,
            reason=reason,
        )

    def lines(
        self,
        source: Source,
        places: range,
        responses: Responses,
        bad: Mapping[int, str],
        words: list[tuple[str, list[Span]]] | None,
    ) -> list[Line]:
        """Return the lines of consecutive items of a source.

        Args:
            source: The source, which names the items.
            places: Numbers of the items.
            responses: Predictions on the items.
            bad: Reasons why items are unreadable, by number.
            words: The words of each text if words are answered.
        """
        bound = None if self.below is None else (self.score, self.below)
        header = self.opened.header
        predictions = (
            predictions_of(responses, self.names, bound, self.sets, label_thresholds=header.label_thresholds)
            if words is None
            else WordPredictions.of(
                responses,
                self.names,
                words,
                bound,
                entity_temperature=header.entity_temperature,
            )
        )
        lines = lines_of(
            predictions,
            self.names,
            header.architecture.task,
            top_k=self.config.top_k,
            score=self.score,
            decides=self.decides,
        )
        return [
            ({} if source.name is None else {DATA: path_text(source.name)})
            | ({PATH: path_text(key)} if isinstance(key := source.items.key(i), str) else {ROW: key})
            | (line if i not in bad else {ERROR: bad[i]})
            for i, line in zip(places, lines, strict=True)
        ]

    def columns(self, sources: Sequence[Source]) -> dict[str, type]:
        """Return the columns of a table of all lines."""
        texts = isinstance(self.opened.header.preprocess, Tokenization)
        kinds = {type(s.items.key(0)) for s in sources} or {int if texts else str}
        keys = {DATA: any(s.name is not None for s in sources), PATH: str in kinds, ROW: int in kinds}
        optional = {
            ACCEPTED: self.decides,
            SET: self.sets is not None,
            ERROR: self.config.skip_bad and not texts,
        }
        return columns(
            [key for key, is_used in keys.items() if is_used],
            top_k=min(self.config.top_k, len(self.names)),
            members=len(self.opened.header.masks),
            optional=[name for name, may_be in optional.items() if may_be],
            task=self.opened.header.architecture.task,
        )


def _check_fitted(config: PredictConfig, name: str, header: Header, score: str) -> None:
    """Refuse a score of features that was never fitted, or twice."""
    task = header.architecture.task
    if is_fitted(score) and not task.has_one_question:
        raise UsageError(
            f"`--ood-score {score}`: compares features of classes, but {name} answers {task.labels}",
            hint="use an OOD score of logits, such as `--ood-score energy`",
        )
    is_stored = score in (header.fitted.scores if header.fitted else ())
    if not is_fitted(score) and config.fit is not None:
        raise UsageError(
            f"`--fit` has no effect: the OOD score `{score}` is not feature-based",
            hint=f"leave it out, or add `--ood-score {RELATIVE}`",
        )
    if is_stored and config.fit is not None:
        raise UsageError(
            f"`--fit`: {name} already stores a fitted `{score}`",
            hint="leave it out; `hydractl eval ... --fit DATA --store PATH` stores a new one",
        )
    if is_fitted(score) and not is_stored and config.fit is None:
        raise UsageError(
            f"{name}: `{score}` is feature-based and was not fitted for this model",
            hint=f"store it: `hydractl eval {shlex.quote(name)} --data TEST --ood-score {score} --fit TRAIN"
            + (
                " --val VAL --store PATH`"
                if score == ENERGY_DENSITY
                else " --store PATH`; or add `--fit TRAIN`"
            ),
        )


def _bound(
    config: PredictConfig, opened: OpenModel, header: Header, threshold: Threshold | None
) -> tuple[str, float | None]:
    """Return the OOD score that is told, and the bound on it, by `threshold` if `--threshold` names none."""
    bound, default = config.threshold, default_score(header)
    if isinstance(bound, float):
        score = config.ood_score or (header.threshold.score if header.threshold else default)
        check_bound(score, bound)
        return score, None if bound == NO_THRESHOLD else bound
    if threshold is None:
        return config.ood_score or default, None
    if config.ood_score not in {None, threshold.score}:
        raise UsageError(
            f"`--ood-score {config.ood_score}`: the threshold is for `{threshold.score}`",
            hint="leave it out, or add `--threshold X` or `--threshold none`",
        )
    check_threshold(threshold, where=opened.reference if bound is None else str(bound))
    return threshold.score, threshold.below


def _reported(report: Report, path: str, opened: OpenModel) -> Threshold:
    """Return the threshold that a report has for a model."""
    digest = opened.checkpoint.digest
    row = report.row_of(digest, digest_weights(opened.checkpoint, opened.header))
    of_fit = row is not None and row.threshold is not None and is_fitted(row.threshold.score)
    if row is None or (of_fit and row.models[0].sha256 != digest):  # a copy may store a score of another fit
        raise InputError(
            f"{path}: is not a report of {opened.reference}, or the model has changed since",
            hint=f"`hydractl eval {shlex.quote(opened.reference)} --data HELD_OUT --threshold-for 'risk<=0.05' -o report.json` "
            "writes a report of it",
        )
    if row.threshold is None:
        raise InputError(
            f"{path}: has no threshold for `{row.name}`",
            hint="`hydractl eval ... --threshold-for 'risk<=0.01'`",
        )
    stored = opened.header.scale
    if not stored.is_close(row.scale):
        raise InputError(
            f"{path}: its threshold is for the temperature {row.scale}, but {opened.reference} stores {stored}",
            hint="store both together: `hydractl eval ... --store PATH`",
        )
    if row.label_thresholds and row.label_thresholds != opened.header.label_thresholds:
        raise InputError(
            f"{path}: its threshold is for label thresholds that {opened.reference} does not store",
            hint="store both together: `hydractl eval ... --store PATH`",
        )
    return row.threshold
