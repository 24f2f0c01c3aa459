"""Base of all JSON documents: strict and canonical. Errors name the JSON path. Also the digests of samples that documents record.

Unknown keys, missing keys, wrong types and duplicate keys are refused. A document is dumped with sorted keys, two spaces and a final newline,
so equal documents are equal bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from types import new_class
from typing import TYPE_CHECKING, Annotated, ClassVar, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from hydractl.errors import ManifestError
from hydractl.plugins import load, plugins
from hydractl.runtime import digest_text
from hydractl.strict_json import NotJSONError, canonical, parse, read_text
from hydractl.version import UPGRADE

if TYPE_CHECKING:
    import numpy as np


Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Key = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.:@=+-]{0,95}$")]
"""An identifier of a command, option, result or package. A card shows it unchanged."""
Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+!-]{0,63}$")]
OptionValue = str | int | float | bool | None | tuple[str, ...] | tuple[int, ...] | tuple[float, ...]


ConfigDigest = Annotated[
    Digest | None,
    Field(validation_alias=AliasChoices("config_digest", "asked"), exclude_if=lambda value: value is None),
]
"""Digest of all settings that determine an output. Files of earlier versions call it `asked`."""
Argv = Annotated[
    tuple[str, ...] | None,
    Field(validation_alias=AliasChoices("argv", "typed"), exclude_if=lambda value: value is None),
]
"""The command line without output names and folders. Files of earlier versions call it `typed`."""


class StrictModel(BaseModel):
    """A frozen, strict piece of a document."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


M = TypeVar("M", bound=StrictModel)


def with_plugin_fields(model: type[M]) -> type[M]:
    """Return a model with the fields that plugins add to it."""
    bases = [load(path) for plugin in plugins() if (path := plugin.fields.get(model.__name__))]
    added = {"__module__": model.__module__, "__qualname__": model.__qualname__, "__doc__": model.__doc__}
    return (
        new_class(model.__name__, (*bases, model), None, lambda body: body.update(added)) if bases else model
    )


class Document(StrictModel):
    """A whole JSON file of ours; `schema` says which."""

    kind_of_file: ClassVar[str]

    def to_json(self) -> str:
        """Return the canonical text: sorted keys, two spaces, final newline."""
        return canonical(self.model_dump(mode="json", by_alias=True))

    def digest(self) -> str:
        """Return `sha256:...` of the canonical text."""
        return digest_text(self.to_json())

    @classmethod
    def from_json(cls, text: str, *, where: str) -> Self:
        """Parse and validate a document.

        Args:
            text: JSON text.
            where: What to call the file in errors.

        Raises:
            ManifestError: With the JSON path of the first thing that is wrong.
        """
        try:
            raw = parse(text, keys_once=True)
        except NotJSONError as error:
            raise ManifestError(
                f"{where}: is not JSON: {error}", hint=f"expected a {cls.kind_of_file} file"
            ) from error
        if isinstance(raw, dict) and raw.get("schema") != (schema := cls.schema_name()):
            raise ManifestError(
                f"{where}: schema is {json.dumps(raw.get('schema'))}, expected `{schema}`",
                hint=f"this command reads a {cls.kind_of_file} file; see `hydractl schema {cls.kind_of_file}`; {UPGRADE}",
            )
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ManifestError(
                f"{where}: {first_problem(error)}",
                hint=f"see `hydractl schema {cls.kind_of_file}`; {UPGRADE}",
            ) from error

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a document from `path`; `-` is standard input.

        Raises:
            ManifestError: If the file cannot be read or is not a valid document.
        """
        return cls.from_json(read_text(path), where=str(path))

    @classmethod
    def schema_name(cls) -> str:
        """Return the `schema` value that marks this kind of document."""
        return str(cls.model_fields["schema_"].default)


class SealedDocument(Document):
    """A document with a digest of itself, which tells whether it is damaged.

    Attributes:
        own_digest: Digest of the document without this key.
    """

    own_digest: str = ""

    def sealed(self) -> Self:
        """Return the document with its digest."""
        return self.model_copy(update={"own_digest": self.model_copy(update={"own_digest": ""}).digest()})


class Value(StrictModel):
    """One measured number: its 95 % interval, and how many samples (of a time: how many runs) it rests on."""

    value: float
    low: float | None = None
    high: float | None = None
    count: int | None = Field(default=None, ge=0)


class Fingerprint(StrictModel):
    """A data set or model that was used: how it was named and what it held.

    Attributes:
        reference: Name of the data set or model.
        sha256: Digest of the data, or of the model's file.
        count: Number of samples.
        weights: Digest of a model's tensors and of the settings that determine its logits before a temperature. None for data and
            in files of earlier versions.
    """

    reference: str
    sha256: Digest
    count: int | None = Field(default=None, ge=0)
    weights: Digest | None = Field(default=None, exclude_if=lambda value: value is None)


def first_problem(error: ValidationError) -> str:
    """Return the first thing that is wrong with a document, with its JSON path, in one line."""
    problem = error.errors(include_url=False)[0]
    parts = [part for part in problem["loc"] if not str(part).startswith("function-")]  # no key, but a check
    where = (
        "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
        or "document"
    )
    words = {"missing": "is missing", "extra_forbidden": "is not a known key"}
    message = words.get(problem["type"], problem["msg"].removeprefix("Value error, "))
    return f"{where}{' ' if problem['type'] in words else ': '}{message}"


MOST_CHARACTERS = 64_000_000
"""Limit of the record in one header, about six million samples: safetensors reads headers of up to 100 MB."""


def pack(content: np.ndarray) -> str:
    """Return the distinct digests of samples, 8 bytes each and increasing, in base64."""
    import numpy as np  # noqa: PLC0415 - headers of most files have no digests

    return base64.b64encode(np.unique(content).astype("<u8").tobytes()).decode()


def unpack(text: str) -> np.ndarray:
    """Return the digests in a text of `pack`, (N,).

    Raises:
        ValueError: If the text is not base64, or has a part of a digest.
    """
    import numpy as np  # noqa: PLC0415 - as above

    return np.frombuffer(base64.b64decode(text, validate=True), "<u8")


def _check(text: str) -> str:
    unpack(text)
    return text


Samples: TypeAlias = dict[Digest, Annotated[str, AfterValidator(_check)]]
"""Digests of samples as `pack` writes them, by the fingerprint of their data set."""


def union(*records: Mapping[str, str]) -> dict[str, str]:
    """Return the samples of several records. The largest data sets are left out if the record exceeds `MOST_CHARACTERS`."""
    import numpy as np  # noqa: PLC0415 - as above

    merged: dict[str, str] = {}
    for digest, text in (pair for record in records for pair in record.items()):
        merged[digest] = pack(np.concatenate([unpack(text), unpack(merged.get(digest, ""))]))
    while sum(map(len, merged.values())) > MOST_CHARACTERS:
        del merged[max(merged, key=lambda digest: len(merged[digest]))]
    return merged
