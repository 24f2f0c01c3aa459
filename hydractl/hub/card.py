"""The model card: the README of a repository, from the header, a report and the user's own text.

hydractl writes the text between two comments and the metadata keys about measurements. Text outside the
comments and other metadata keys are kept. License and base model are kept unless the push names new ones.
Text from files is shown in code spans, where Markdown has no effect.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.checkpoint import TensorSpec
from hydractl.errors import HubError, escape_line, escape_unsafe, shortened
from hydractl.hub.layout import is_stock, labels_of
from hydractl.hub.repository import MAIN
from hydractl.manifest.document import OptionValue, Value
from hydractl.manifest.header import Header, Kind, Preprocess, Step, lineage_to
from hydractl.manifest.report import Report, Row, column_heads, store_temperature_alike
from hydractl.manifest.terms import ID_NAME, Temperature
from hydractl.messages import abridged, counted
from hydractl.metrics.metric_spec import MetricNeeds, Unit
from hydractl.metrics.registry import METRICS, TEMPERATURE, needing
from hydractl.model_source import HUB_ID
from hydractl.version import INSTALL

if TYPE_CHECKING:
    from huggingface_hub import EvalResult


BEGIN = (
    "<!-- hydractl:begin: every push replaces the text from here to hydractl:end and keeps all other text -->"
)
END = "<!-- hydractl:end -->"
TAGS = ("hydractl", "base", "member", "hydra", "ensemble", "uncertainty")
"""Tags that hydractl may add to the metadata."""
OURS = ("library_name", "metrics", "model-index", "model_name", "pipeline_tag")
"""Metadata keys that describe this model. Their values of an earlier push are dropped."""
_LONGEST = 300
"""Maximum number of characters of text from files, per table cell or code span. Chosen by hand; twice the
value allows twice as wide cells."""
_FRONT = re.compile(r"\A\s*---[ \t]*\r?\n(?:(.*?)\r?\n)??---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_MARK = re.compile(r"^<!-- hydractl:(begin|end)\b[^\n]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readme:
    """A README, split into metadata, hydractl's part and the user's text.

    Attributes:
        front: YAML of the metadata.
        metadata: Parsed metadata.
        before: Text before hydractl's part.
        after: Text after hydractl's part.
    """

    front: str = ""
    metadata: Mapping[str, Any]
    before: str = ""
    after: str = ""

    @classmethod
    def read(cls, content: bytes | None) -> Readme:
        """Parse a README; None is an empty README.

        Raises:
            HubError: If the content is not UTF-8, the metadata are not valid YAML, or the comments around
                hydractl's part are incomplete.
        """
        try:
            text = (content or b"").decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise _unreadable(f"is not UTF-8 text: {error.reason} at byte {error.start}") from error
        front_matter = _FRONT.match(text)
        front = (front_matter[1] or "") if front_matter else ""
        body = text[front_matter.end() :] if front_matter else text
        marks = list(_MARK.finditer(body))
        if not marks:
            return cls(front=front, metadata=_parsed(front), before=body)
        if [mark[1] for mark in marks] != ["begin", "end"]:
            raise _unreadable(
                "does not have each of the comments `hydractl:begin` and `hydractl:end` once and in this order"
            )
        begin, end = marks
        return cls(
            front=front, metadata=_parsed(front), before=body[: begin.start()], after=body[end.end() :]
        )

    def text_field(self, key: str) -> str | None:
        """Return the text of a metadata key. None for a missing or empty value and other types."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) and value else None

    def with_part(self, name: str, metadata: Mapping[str, Any], text: str) -> str:
        """Return the text of the README with a new part and new metadata.

        Args:
            name: Name of the model in `model-index`. Results of other models are kept.
            metadata: hydractl's metadata. Keys in `OURS` replace old keys; other keys of the README are kept.
            text: Markdown of hydractl's part.
        """
        front, before = self._front(name, metadata), self.before.strip("\r\n")
        after = self.after.strip("\r\n")
        parts = (f"---\n{front}\n---", before, f"{BEGIN}\n\n{text}\n\n{END}", after)
        return "\n\n".join(filter(None, parts)) + "\n"

    def _front(self, name: str, ours: Mapping[str, Any]) -> str:
        """Return the merged metadata as YAML. If nothing changed, the old text is returned byte for byte."""
        import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - needed for cards only

        merged = {key: value for key, value in self.metadata.items() if key not in OURS or key in ours}
        merged |= {**ours, "tags": _tags(ours["tags"], self.metadata.get("tags"))}
        if index := [
            *ours.get("model-index", []),
            *_results_of_others(name, self.metadata.get("model-index")),
        ]:
            merged["model-index"] = index
        text = str(yaml.safe_dump(merged, sort_keys=False, allow_unicode=True)).strip()
        return self.front if yaml.safe_load(text) == self.metadata else text


def _tags(ours: list[str], theirs: object) -> list[str]:
    others = [tag for tag in theirs if tag not in TAGS] if isinstance(theirs, list) else []
    return [*ours, *(tag for tag in others if tag not in ours)]


def _results_of_others(name: str, theirs: object) -> list[Any]:
    listed = theirs if isinstance(theirs, list) else []
    return [
        model_result
        for model_result in listed
        if isinstance(model_result, dict) and model_result.get("name") != name
    ]


def _parsed(front: str) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - as above

    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(front)):
            raise _unreadable("has metadata with YAML aliases (`*name`), which are not supported")
        metadata = yaml.safe_load(front)
    except (yaml.YAMLError, ValueError) as error:
        raise _unreadable(f"has metadata that are not valid YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(metadata, dict | None):
        raise _unreadable("has metadata that are not a mapping")
    return metadata or {}


def _unreadable(why: str) -> HubError:
    return HubError(
        f"the README.md of the repository {why}",
        hint="nothing was pushed; correct the file on the Hub and push again, or push to another repository",
    )


def code(text: str) -> str:
    """Return text from a file as a Markdown code span of at most `_LONGEST` characters.

    The result is safe in a table cell: `|` is replaced.
    """
    return f"`{plain(shortened(text, _LONGEST)).replace('|', '¦')}`"


def plain(text: str) -> str:
    """Return text from a file on a single line and without backticks, which would end a code span."""
    return re.sub(r"\s+", " ", escape_unsafe(text)).replace("`", "'")


NUMBERED = ("finetune", "prune")
"""Commands that replace `{i}` in output names by a number."""


def history_section(header: Header, reference: str) -> str:
    """Return the section "How it was made": the commands, and inputs and settings of each step.

    Args:
        header: Header of the model.
        reference: Model reference for `hydractl inspect`.

    Returns:
        Markdown, or an empty string if the header has no provenance.
    """
    steps = lineage_to(header.made_by)
    if not steps:
        return ""
    lines = ["## How it was made", "", *_commands(header, steps)]
    for number, step in enumerate(steps, start=1):
        inputs = ", ".join(code(source.name) for source in step.inputs)
        settings = dict(step.options) | ({} if step.seed is None else {"seed": step.seed})
        settings_text = "; ".join(f"{name} {code(_option_text(value))}" for name, value in settings.items())
        lines.append(
            f"{number}. {code(f'hydractl {step.command}')} of {inputs or 'nothing'}"
            + (f": {settings_text}" if settings_text else "")
        )
    versions = ", ".join(f"{name} {version}" for name, version in steps[-1].versions.items())
    lines += ["", f"Versions: {versions}. `hydractl inspect {reference}` shows the digests of all inputs."]
    return "\n".join(lines)


def _commands(header: Header, steps: Sequence[Step]) -> Iterator[str]:
    """Yield Markdown lines: a shell block with the commands that made a model, and notes on file names.

    Yields nothing if a step has no stored command line, or no `-o` value with `{i}` matches the files of a
    command. Steps with equal arguments and equal input digests are a single command with several output
    files.
    """
    groups: dict[tuple[object, ...], list[Step]] = {}
    for step in steps:
        groups.setdefault((step.argv, *(source.sha256 for source in step.inputs), step.command), []).append(
            step
        )
    outputs = [_output(header, group, steps) for group in groups.values()]
    if any(step.argv is None for step in steps) or None in outputs:
        return
    yield "```sh"
    for group, out in zip(groups.values(), outputs, strict=True):
        yield shlex.join(("hydractl", group[0].command, *map(plain, group[0].argv or ()), "-o", out or ""))
    yield from ("```", "")
    digests: dict[str, set[str]] = {}
    for source in (source for step in steps for source in step.inputs):
        digests.setdefault(source.name, set()).add(source.sha256)
    if ambiguous := [code(name) for name, sources_of_name in digests.items() if len(sources_of_name) > 1]:
        yield (
            f"Several files have the name {', '.join(ambiguous)}: give each a different name first, in "
            "the order of the steps below."
        )
    yield from ("File names without their folders. All settings, including defaults:", "")


def _output(header: Header, group: Sequence[Step], steps: Sequence[Step]) -> str | None:
    """Return the value of `-o` for a command that wrote the files of `group`.

    The file names are taken from the inputs of later steps. None if no pattern with `{i}` matches all names.
    """
    numbers: dict[str, int] = {}
    for step in group:
        read = (source.name for reader in steps for source in reader.inputs if source.made_by == step)
        for name in dict.fromkeys(map(plain, read)):
            member = step.options.get("member", len(numbers))
            numbers.setdefault(name, member if isinstance(member, int) else 0)
    if not numbers:
        return f"{header.kind.value}.st"
    several = len(numbers) > 1 or any(numbers.values()) or "--members" in (group[0].argv or ())
    first = next(iter(numbers))
    if not several:
        return first
    runs = re.finditer(r"\d+", first) if group[0].command in NUMBERED else ()
    forms = [f"{first[: run.start()]}{{i}}{first[run.end() :]}" for run in runs]
    fitting = (
        form
        for form in reversed(forms)
        if all(form.replace("{i}", str(number)) == name for name, number in numbers.items())
    )
    return next(fitting, None if len(numbers) > 1 else first)


def _option_text(value: OptionValue) -> str:
    return (",".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)


PICTURE, REPORT = "heads.png", "report.json"
"""File names in the repository."""
TEMPLATE = Path(__file__).with_name("card.md.jinja")
_LIBRARIES = {"timm": "timm", "transformers": "transformers", "openclip": "open_clip"}
_IMAGES, _ZERO_SHOT = "image-classification", "zero-shot-image-classification"
_RANKING = "text-ranking"
"""Pipeline tag for models with ranking metrics. transformers has no pipeline for it."""
_KIND_DESCRIPTIONS = {
    Kind.BASE: "A classifier that `hydractl` has prepared for pruning of attention heads.",
    Kind.MEMBER: "A classifier with some attention heads removed.",
    Kind.HYDRA: (
        "An ensemble in one model: its members run in a single forward pass. It predicts the mean of "
        "their softmax probabilities, and their disagreement measures its uncertainty."
    ),
}


_UNFAIR = "Some of these models store a temperature and others do not, so their NLL, Brier score and ECE are not comparable."


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Content of a card.

    Attributes:
        name: `org/name`.
        revision: Branch of the repository.
        header: Header of the model.
        specs: Shape and dtype of each tensor.
        report: Report with a row of the model, possibly with rows of other models.
        row: The model's row in the report.
        base_model: Hub id of the base model.
        license: License identifier of the Hub; None to keep the license of the existing README.
        has_picture: Whether the repository has `heads.png`.
    """

    name: str
    revision: str
    header: Header
    specs: Mapping[str, TensorSpec]
    report: Report | None = None
    row: Row | None = None
    base_model: str | None = None
    license: str | None = None
    has_picture: bool = False

    @property
    def reference(self) -> str:
        """Model reference: `org/name`, with `@revision` for other branches than main."""
        return self.name if self.revision == MAIN else f"{self.name}@{self.revision}"

    @property
    def task(self) -> str:
        """Pipeline tag of the Hub."""
        if not isinstance(self.header.preprocess, Preprocess):
            return self.header.architecture.task.pipeline
        return _IMAGES if self.header.num_classes else _ZERO_SHOT


def card_of(facts: Facts, existing: bytes | None = None) -> bytes:
    """Return the card as UTF-8 bytes.

    Args:
        facts: Content of the card. A missing license or base model is taken from the existing README.
        existing: README in the repository, or None. Text of the user is kept.

    Raises:
        HubError: If the existing README cannot be parsed.
    """
    readme = Readme.read(existing)
    base = readme.text_field("base_model")
    facts = replace(
        facts,
        license=facts.license or readme.text_field("license"),
        base_model=facts.base_model or (base if base and HUB_ID.fullmatch(base) else None),
    )
    return readme.with_part(facts.name, _metadata(facts), _text(facts)).encode()


def _text(facts: Facts) -> str:
    """Return hydractl's part of the card, rendered from the template."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - needed for cards only

    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)  # noqa: S701 - Markdown
    environment.filters |= {"code": code, "counted": counted}
    header, architecture = facts.header, facts.header.architecture
    towers = architecture.towers.values()
    fates = Counter(header.plan.fates.values()) if header.plan else {}
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        facts=facts,
        header=header,
        architecture=architecture,
        task=architecture.task,
        about=_KIND_DESCRIPTIONS[header.kind],
        kept_heads=[sum(tower.num_kept for tower in mask.values()) for mask in header.masks],
        total_heads=sum(tower.layers * tower.num_heads for tower in towers),
        layers=sum(tower.layers for tower in towers),
        parameters=sum(prod(spec.shape) for spec in facts.specs.values()),
        fates=[(fate.value, fates[fate]) for fate in sorted(fates)],
        scaled=header.scale != Temperature(),
        picture=PICTURE,
        results=_results(facts),
        install=INSTALL,
        images=isinstance(header.preprocess, Preprocess),
        zero_shot=facts.task == _ZERO_SHOT,
        stock=is_stock(header),
        main=MAIN,
        made=history_section(header, facts.reference),
        labels=labels_of(header),
    )
    return text.rstrip("\n")


def _metadata(facts: Facts) -> dict[str, Any]:
    from huggingface_hub import ModelCardData  # noqa: PLC0415 - the Hub's client is slow to load

    header = facts.header
    trained = any(step.command == "finetune" for step in lineage_to(header.made_by))
    relation = "merge" if header.kind == Kind.HYDRA else "finetune" if trained else None
    relation_field: dict[str, Any] = (
        {"base_model_relation": relation} if facts.base_model and relation else {}
    )
    results = list(_eval_results(facts))
    has_order = facts.row and needing(METRICS.keys() & facts.row.values.keys(), MetricNeeds.QUERIES)
    data = ModelCardData(
        base_model=facts.base_model,
        eval_results=results or None,
        library_name=_LIBRARIES[header.architecture.library] if is_stock(header) else "hydractl",
        license=facts.license,
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=facts.name,
        pipeline_tag=_RANKING if has_order else facts.task,
        tags=[
            "hydractl",
            header.kind.value,
            *(["ensemble", "uncertainty"] if header.kind == Kind.HYDRA else []),
        ],
        **relation_field,
    )
    return dict(data.to_dict())  # type: ignore[no-untyped-call]  # the library leaves it untyped


def _eval_results(facts: Facts) -> Iterator[EvalResult]:
    """Yield the model's metrics in the format of `model-index`, with confidence intervals in `args`.

    Costs are left out.
    """
    from huggingface_hub import EvalResult  # noqa: PLC0415 - as above

    if facts.report is None or facts.row is None:
        return
    for name, values in {ID_NAME: facts.row.values, **facts.row.ood}.items():
        data = facts.report.data.get(name)
        if data is None:
            continue
        reference = escape_line(data.reference)
        source, _, options = reference.removeprefix("hf:").partition("::")
        split = dict(pair.partition("=")[::2] for pair in options.split(",")).get("split")
        for metric, value in values.items():
            if METRICS[metric.partition("@")[0]].needs in {MetricNeeds.WEIGHTS, MetricNeeds.TIME}:
                continue
            interval = {
                "low": value.low,
                "high": value.high,
                "level": 0.95 if value.low is not None else None,
                "count": value.count,
            }
            yield EvalResult(
                task_type=facts.task,
                dataset_type=source,
                dataset_name=reference
                if name == ID_NAME
                else f"{escape_line(name)} as out-of-distribution data",
                dataset_split=split,
                metric_type=metric,
                metric_value=value.value,
                metric_name=_metric_title(metric),
                metric_args={k: v for k, v in interval.items() if v is not None} or None,
            )


def _results(facts: Facts) -> str:
    """Return the Markdown table of all metrics, or an empty string without a report.

    The table has one column per row of the report, this model first.
    """
    report, model_row = facts.report, facts.row
    if report is None or model_row is None:
        return ""
    rows = [model_row, *(row for row in report.rows if row != model_row)]
    lines = [
        "## Results",
        "",
        f"| | {' | '.join(code(row.name) for row in rows)} |",
        f"|---|{'---:|' * len(rows)}",
    ]
    for name, values in _metric_rows(report, rows):
        if any(values):
            lines.append(f"| {name} | {' | '.join(map(_formatted, values))} |")
    for head in column_heads(rows):
        texts = (abridged(row.columns[head]) if head in row.columns else "" for row in rows)
        lines.append(f"| {head} | {' | '.join(text and code(text) for text in texts)} |")
    data = report.data.get(ID_NAME)
    on = (
        ""
        if data is None
        else f" on {code(data.reference)}" + (f" ({data.count} samples)" if data.count else "")
    )
    fair = TEMPERATURE in report.data or store_temperature_alike(*(row.stored_temperatures for row in rows))
    lines += [
        "",
        *(
            ()
            if facts.header.scale.is_close(model_row.scale)
            else (
                f"The figures are for the temperature {model_row.scale}; the model stores {facts.header.scale}.\n",
            )
        ),
        *(() if fair else (f"{_UNFAIR}\n",)),
        (
            f"The first column is this model{on}. Brackets contain 95 % intervals. "
            f"[`{REPORT}`]({REPORT}) defines all metrics."
        ),
    ]
    return "\n".join(lines)


def _metric_rows(report: Report, rows: Sequence[Row]) -> Iterator[tuple[str, list[Value | None]]]:
    """Yield the name of each line of the table, with a value per row of the report (None if not measured)."""
    order = list(METRICS)

    def sorted_names(tables: Iterable[Iterable[str]]) -> list[str]:
        names = {name for table in tables for name in table}
        return sorted(names, key=lambda name: (order.index(name.partition("@")[0]), name))

    for metric in sorted_names(row.values for row in rows):
        yield _metric_title(metric), [row.values.get(metric) for row in rows]
    for data in (*report.near, *report.far):
        values_of_rows = [row.ood.get(data, {}) for row in rows]
        for metric in sorted_names(values_of_rows):
            yield f"{_metric_title(metric)}, {code(data)}", [values.get(metric) for values in values_of_rows]


def _metric_title(metric: str) -> str:
    """Return the metric's name for a table, with unit and OOD score if present."""
    name, _, score = metric.partition("@")
    units = {Unit.NATS: " (nats)", Unit.MS: ""}
    return f"{name}{units.get(METRICS[name].unit, '')}" + (f" by {score}" if score else "")


def _formatted(value: Value | None) -> str:
    if value is None:
        return ""
    text = f"{value.value:,.0f}" if abs(value.value) >= 1000 else f"{value.value:.4g}"
    return text if value.low is None or value.high is None else f"{text} [{value.low:.4g}, {value.high:.4g}]"
