"""Base classes of all JSON documents, and compact storage of sample digests.

Documents are strict: unknown keys, missing keys, wrong types and duplicate keys raise an error with the JSON
path. The canonical text has sorted keys, an indent of two spaces and a final newline, so equal documents have
equal bytes.
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
"""Identifier of a command, option, result or package. Model cards show keys unescaped, so the pattern
excludes spaces, brackets and quotes."""
Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+!-]{0,63}$")]
OptionValue = str | int | float | bool | None | tuple[str, ...] | tuple[int, ...] | tuple[float, ...]


def is_none(field: object) -> bool:
    """Return whether an optional field of a document is None. Such fields are left out of the file."""
    return field is None


ConfigDigest = Annotated[
    Digest | None,
    Field(validation_alias=AliasChoices("config_digest", "asked"), exclude_if=is_none),
]
"""Digest of all settings that determine an output. Files of earlier versions use the key `asked`."""
Argv = Annotated[
    tuple[str, ...] | None,
    Field(validation_alias=AliasChoices("argv", "typed"), exclude_if=is_none),
]
"""Command line without the names of outputs and folders. Files of earlier versions use the key `typed`."""


class StrictModel(BaseModel):
    """Immutable part of a document. Unknown keys, wrong types, NaN and infinity are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


M = TypeVar("M", bound=StrictModel)


def with_plugin_fields(model: type[M]) -> type[M]:
    """Return a model class with the fields that plugins add to the class of this name."""
    bases = [load(path) for plugin in plugins() if (path := plugin.fields.get(model.__name__))]
    added = {"__module__": model.__module__, "__qualname__": model.__qualname__, "__doc__": model.__doc__}
    return (
        new_class(model.__name__, (*bases, model), None, lambda body: body.update(added)) if bases else model
    )


class Document(StrictModel):
    """A complete JSON file of hydractl. Its `schema` key names the kind and version of the file."""

    kind_of_file: ClassVar[str]

    def to_json(self) -> str:
        """Return the canonical text: sorted keys, an indent of two spaces and a final newline."""
        return canonical(self.model_dump(mode="json", by_alias=True))

    def digest(self) -> str:
        """Return the digest of the canonical text, `sha256:...`."""
        return digest_text(self.to_json())

    @classmethod
    def from_json(cls, text: str, *, place: str) -> Self:
        """Parse and validate a document.

        Args:
            text: JSON text.
            place: File name for error messages.

        Raises:
            ManifestError: If the text is not a valid document. The message has the JSON path of the first
                problem.
        """
        try:
            raw = parse(text, keys_once=True)
        except NotJSONError as error:
            raise ManifestError(
                f"{place}: is not JSON: {error}", hint=f"expected a {cls.kind_of_file} file"
            ) from error
        if isinstance(raw, dict) and raw.get("schema") != (schema := cls.schema_name()):
            raise ManifestError(
                f"{place}: schema is {json.dumps(raw.get('schema'))}, expected `{schema}`",
                hint=f"this command reads a {cls.kind_of_file} file; see `hydractl schema {cls.kind_of_file}`; {UPGRADE}",
            )
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ManifestError(
                f"{place}: {first_error_text(error)}",
                hint=f"see `hydractl schema {cls.kind_of_file}`; {UPGRADE}",
            ) from error

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a document from `path`, or from standard input if `path` is `-`.

        Raises:
            ManifestError: If the file cannot be read or is not a valid document.
        """
        return cls.from_json(read_text(path), place=str(path))

    @classmethod
    def schema_name(cls) -> str:
        """Return the value of the `schema` key for this kind of document."""
        return str(cls.model_fields["schema_"].default)


class SealedDocument(Document):
    """A document that stores its own digest, for the detection of damage.

    Attributes:
        own_digest: Digest of the document with an empty `own_digest`.
    """

    own_digest: str = ""

    def sealed(self) -> Self:
        """Return a copy of the document with its digest filled in."""
        return self.model_copy(update={"own_digest": self.model_copy(update={"own_digest": ""}).digest()})


class Value(StrictModel):
    """A measured number.

    Attributes:
        low: Lower end of the 95 % interval. `None` without an interval.
        high: Upper end of the 95 % interval.
        count: Number of samples, or number of runs for a latency. `None` for sizes and means over data sets.
    """

    value: float
    low: float | None = None
    high: float | None = None
    count: int | None = Field(default=None, ge=0)


class Fingerprint(StrictModel):
    """Name and digest of a data set or model that was used.

    Attributes:
        reference: Name of the data set or model.
        sha256: Digest of the data, or of the model's file.
        count: Number of samples.
        weights: Digest of a model's tensors and of all settings that determine the logits before a
            temperature. `None` for data and in files of earlier versions.
    """

    reference: str
    sha256: Digest
    count: int | None = Field(default=None, ge=0)
    weights: Digest | None = Field(default=None, exclude_if=is_none)


def first_error_text(error: ValidationError) -> str:
    """Return the first problem of an invalid document in one line, after the JSON path of the problem.

    For example `rows[0].name is missing`.
    """
    problem = error.errors(include_url=False)[0]
    # pydantic inserts the names of validator functions into `loc`; only keys and indices belong to the JSON
    # path
    parts = [part for part in problem["loc"] if not str(part).startswith("function-")]
    place = (
        "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
        or "document"
    )
    words = {"missing": "is missing", "extra_forbidden": "is not a known key"}
    message = words.get(problem["type"], problem["msg"].removeprefix("Value error, "))
    return f"{place}{' ' if problem['type'] in words else ': '}{message}"


MOST_CHARACTERS = 64_000_000
"""Maximum size of the sample record of one header: about six million samples at 11 characters. The
safetensors library rejects headers above 100 MB, so twice the limit would make checkpoints unreadable."""


def pack_digests(content: np.ndarray) -> str:
    """Return the sorted, distinct digests of samples as base64 text, 8 bytes each, little-endian."""
    import numpy as np  # noqa: PLC0415 - headers of most files have no digests

    return base64.b64encode(np.unique(content).astype("<u8").tobytes()).decode()


def unpack_digests(text: str) -> np.ndarray:
    """Return the sample digests in a text written by `pack_digests`, shape (N,), uint64.

    Raises:
        ValueError: If the text is not base64, or its length is not a multiple of 8 bytes.
    """
    import numpy as np  # noqa: PLC0415 - as above

    return np.frombuffer(base64.b64decode(text, validate=True), "<u8")


def _check(text: str) -> str:
    unpack_digests(text)
    return text


Samples: TypeAlias = dict[Digest, Annotated[str, AfterValidator(_check)]]
"""Sample digests in the format of `pack_digests`, by the fingerprint of the data set."""


def merge_samples(*records: Mapping[str, str]) -> dict[str, str]:
    """Merge several sample records. Drops the largest data sets until the record fits in `MOST_CHARACTERS`."""
    import numpy as np  # noqa: PLC0415 - as above

    merged: dict[str, str] = {}
    for digest, text in (pair for record in records for pair in record.items()):
        merged[digest] = pack_digests(
            np.concatenate([unpack_digests(text), unpack_digests(merged.get(digest, ""))])
        )
    while sum(map(len, merged.values())) > MOST_CHARACTERS:
        del merged[max(merged, key=lambda digest: len(merged[digest]))]
    return merged
