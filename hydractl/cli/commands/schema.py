"""`hydractl schema`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from hydractl.cli.output import Terminal


class DocumentKind(StrEnum):
    """The JSON files that have a schema; the same words as in `hydractl.manifest.report.DOCUMENTS`."""

    scores = "scores"
    head_mask = "head-mask"
    report = "report"


def schema(
    kind: Annotated[DocumentKind, typer.Argument(help="Kind of file.", show_default=False)],
    json: Annotated[
        bool, typer.Option("--json", help="Accepted for consistency; a schema is always JSON.")
    ] = False,
) -> None:
    """Print the JSON Schema of scores, head masks or reports.

    Examples:
      hydractl schema head-mask
      hydractl schema report > report.schema.json
    """
    terminal = Terminal(as_json=json)
    from hydractl.manifest.report import DOCUMENTS

    json_schema = DOCUMENTS[kind.value].model_json_schema(by_alias=True)
    # a document must say which one it is, although our own constructors fill that in
    json_schema["required"] = sorted({*json_schema.get("required", ()), "schema"})
    if terminal.speaks:
        terminal.document(json_schema)
