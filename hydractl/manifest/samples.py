"""Digests of the samples that a model was trained, selected or calibrated on."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import AfterValidator

from hydractl.manifest.document import Digest

if TYPE_CHECKING:
    import numpy as np

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
