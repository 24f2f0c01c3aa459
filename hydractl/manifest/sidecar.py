"""The file beside another one that has no place for its lineage."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from hydractl.manifest.document import Digest, Document
from hydractl.manifest.header import Step

ENDING = ".lineage.json"


class Sidecar(Document):
    """What a file beside another one says of it, `hydractl.record/1`, where that has no place to say so itself.

    Attributes:
        sha256: Of the other file, as it was written.
        made_by: The step that wrote it.
    """

    kind_of_file: ClassVar[str] = "record"

    schema_: Literal["hydractl.record/1"] = Field(default="hydractl.record/1", alias="schema")
    sha256: Digest
    made_by: Step

    @staticmethod
    def path_of(path: Path) -> Path:
        """Return where the sidecar of a file stands."""
        return path.with_name(f"{path.name}{ENDING}")
