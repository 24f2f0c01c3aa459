"""What is told of each input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hydractl.errors import UsageError
from hydractl.families.opening import OpenModel
from hydractl.fusion.predictions import Predictions
from hydractl.manifest.header import Tokenization
from hydractl.metrics.scores import MSP
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.lines import DATA, ERROR, PATH, ROW, Line, columns, lines_of
from hydractl.stages.predict.sources import Source
from hydractl.stages.predict.stream import Answered
from hydractl.stages.shared.classes import Classes


@dataclass(frozen=True, slots=True, kw_only=True)
class Teller:
    """A run's classes, score and threshold.

    Attributes:
        config: Of the run.
        opened: The model.
        names: Of the classes.
        classes: What a zero-shot model is asked about.
        score: The OOD score that is told.
    """

    config: PredictConfig
    opened: OpenModel
    names: tuple[str, ...]
    classes: Classes | None
    score: str

    @classmethod
    def of(cls, config: PredictConfig, opened: OpenModel) -> Teller:
        """Look at what the model's header says.

        Raises:
            UsageError: If nothing names the classes of a zero-shot model, or classes are named that a model has itself.
        """
        header = opened.header
        classes = config.naming.classes(opened)
        names = classes.names if classes else header.labels or tuple(map(str, range(header.num_classes)))
        if not names:
            raise UsageError(
                f"{opened.reference}: tells no classes apart yet", hint="name them: `--classes cat,dog`"
            )
        return cls(
            config=config,
            opened=opened,
            names=names,
            classes=classes,
            score=config.ood_score or MSP,
        )

    def lines(self, source: Source, answered: Answered) -> list[Line]:
        """Return the lines of consecutive items of a source."""
        found = Predictions.of(answered.said, self.names)
        told = lines_of(found, self.names, top_k=self.config.top_k, score=self.score, accepted=None)
        called = [self._called(source, i) for i in answered.places]
        return [
            key | (line if i not in answered.bad else {ERROR: answered.bad[i]})
            for i, key, line in zip(answered.places, called, told, strict=True)
        ]

    def _called(self, source: Source, index: int) -> Line:
        key = source.items.key(index)
        name = {} if source.name is None else {DATA: source.name}
        return name | {PATH if isinstance(key, str) else ROW: key}

    def columns(self, sources: Sequence[Source]) -> dict[str, type]:
        """Return the columns of a table of all lines."""
        texts = isinstance(self.opened.header.preprocess, Tokenization)
        kinds = {type(s.items.key(0)) for s in sources} or {int if texts else str}
        there = {DATA: any(s.name is not None for s in sources), PATH: str in kinds, ROW: int in kinds}
        return columns(
            [key for key, is_there in there.items() if is_there],
            top_k=min(self.config.top_k, len(self.names)),
            members=len(self.opened.header.masks),
            accepts=False,
            skips=self.config.skip_bad,
        )

    def options(self) -> dict[str, object]:
        """Return everything that shapes a line but its input."""
        config = self.config
        return {
            "model": self.opened.checkpoint.digest,
            "classes": self.names,
            "templates": self.classes and self.classes.templates,
            "score": self.score,
            **{
                name: getattr(config, name)
                for name in ("top_k", "skip_bad", "max_length", "batch_size", "dtype")
            },
        }
