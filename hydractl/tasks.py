"""The questions that a model answers about an input, one row a task. Importing this module does not load torch.

An input asks categorical questions: one about all of it, or one for each label, or one for each word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_LIKELIEST = (("label", str), ("probability", float))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """What a model answers. A path is `module:name`; it is imported when it is needed.

    Attributes:
        problem_type: Its name in headers and configurations.
        labels: What the labels of an input are; messages call them so.
        hint: What to do about data with other labels; `{name}` stands for the data.
        by_label: Whether each label is a question of two classes, answered by the sigmoid of its logit.
        by_word: Whether each word of a text is a question, answered by the token that begins it.
        library: What the names of transformers' models of texts end with.
        pipeline: What the Hub calls models of texts.
        answer: What a model predicts, where its classes were named.
        cell: Path of a function that maps a cell of a table to its label or list of labels, and a cell of another form to None;
            None where cells are names or class numbers.
        metrics: Path of the metrics that only this task has.
        temperature: Path of what fits temperatures that only this task has, like `metrics.compute.label_scale`.
        measure: Path of what computes those of labelled data, like `metrics.compute.measure_labels`.
        scores: Path of what gives the OOD scores that those of OOD data rank, like `span_scores` there.
        lines: Path of what tells the lines of `predict`, like `prediction.writers.class_lines`.
        columns: What of that comes first in a table, with types.
        likeliest: What a table has of each of the most probable classes, with types; where it is empty, there are no columns of
            classes and votes.
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
        """Whether an input asks one question."""
        return not (self.by_label or self.by_word)


SINGLE_LABEL = Task(
    problem_type="single_label_classification",
    labels="one label for each item",
    hint="a model for such labels: `hydractl finetune MODEL --data {name}`",
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
