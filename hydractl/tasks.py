"""Classification tasks, a row per task. Importing this module does not load torch.

A model answers a categorical question per input (single label), per label (several labels) or per word
(tokens).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_LIKELIEST = (("label", str), ("probability", float))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A classification task. A path is `module:name`; the module is imported on first use.

    Attributes:
        problem_type: Name in headers and configurations.
        labels: Description of an input's labels in messages.
        hint: Advice for data with other labels. `{name}` is replaced by the data set.
        by_label: Whether each label is a question of two classes, answered by the sigmoid of its logit.
        by_word: Whether each word of a text is a question, answered by its first token.
        library: Suffix of class names of text models in transformers.
        pipeline: Pipeline tag of the Hub for text models.
        answer: Description of a prediction, after the names of the classes.
        cell: Path of a function from a table cell to a label or list of labels, or to None for cells of
            another form. By default, cells are names or class numbers.
        metrics: Path of the metrics of this task only.
        temperature: Path of the function to fit temperatures of this task only, like
            `metrics.compute.label_scale`.
        measure: Path of the function for `metrics` on labelled data, like `metrics.compute.measure_labels`.
        scores: Path of the function for OOD scores of this task, like `metrics.compute.span_scores`.
        lines: Path of the function for lines of `predict`, like `prediction.writers.class_lines`.
        columns: First columns of a prediction table, with types.
        likeliest: Columns per most probable class, with types. If empty, the table has no columns of classes
            and votes.
    """

    problem_type: str
    labels: str
    hint: str
    by_label: bool = False
    by_word: bool = False
    library: str = "ForSequenceClassification"
    pipeline: str = "text-classification"
    answer: str = "one of them for every input"
    cell: str | None = None
    metrics: str | None = None
    temperature: str | None = None
    measure: str | None = None
    scores: str | None = None
    lines: str = "hydractl.prediction.writers:class_lines"
    columns: tuple[tuple[str, type], ...] = ()
    likeliest: tuple[tuple[str, type], ...] = _LIKELIEST

    @property
    def has_one_question(self) -> bool:
        """Whether each input has a single question."""
        return not (self.by_label or self.by_word)


SINGLE_LABEL = Task(
    problem_type="single_label_classification",
    labels="one label for each item",
    hint="a model for such labels: `hydractl finetune MODEL --train {name}`",
)
MULTI_LABEL = Task(
    problem_type="multi_label_classification",
    labels="a list of labels for each item",
    hint='write lists, `["delay"]` for a single label and `[]` for none; for cells such as `late|broken` add `::label-separator=|` in quotes',
    by_label=True,
    cell="hydractl.data.sources.tables:list_in",
    answer="any number of them for every input",
    metrics="hydractl.metrics.classification:MULTI_LABEL",
    temperature="hydractl.metrics.compute:label_scale",
    measure="hydractl.metrics.compute:measure_labels",
    lines="hydractl.prediction.writers:label_lines",
    columns=(("labels", str),),
    likeliest=(*_LIKELIEST, ("label_information", float)),
)
TOKENS = Task(
    problem_type="token_classification",
    labels="a label for each word",
    hint='write words and their labels: `{{"tokens": ["in", "Rome"], "tags": ["O", "B-place"]}}`; for strings add `::text=COLUMN,label=COLUMN,label-separator=space`',
    by_word=True,
    library="ForTokenClassification",
    pipeline="token-classification",
    answer="one of them for every word",
    metrics="hydractl.metrics.spans:SPANS",
    temperature="hydractl.metrics.compute:entity_scale",
    measure="hydractl.metrics.compute:measure_spans",
    scores="hydractl.metrics.compute:span_scores",
    lines="hydractl.prediction.writers:entity_lines",
    columns=(("entities", str),),
    likeliest=(),
)
TASKS: Mapping[str, Task] = {task.problem_type: task for task in (SINGLE_LABEL, MULTI_LABEL, TOKENS)}
