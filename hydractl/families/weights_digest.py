"""Digest of a model's weights, by which reports recognize copies of the model with another header."""

from __future__ import annotations

import hashlib

from hydractl.checkpoint import Checkpoint
from hydractl.families.load import OpenModel
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.header import Header
from hydractl.strict_json import compact


def digest_weights(checkpoint: Checkpoint, header: Header) -> str:
    """Return `sha256:...` of a model's tensors and of the settings that determine its logits before a temperature.

    A copy of the model has the same digest if only its temperature, threshold, prediction sets, OOD scores, class names or lineage
    differ, or if its file is sharded. The class names of a zero-shot model count, because they determine its logits.
    """
    settings = {"architecture", "masks", "plan", "preprocess", "prompting"} | (
        {"labels"} if header.prompting else set()
    )
    text = compact(header.model_dump(mode="json", include=settings, exclude_defaults=True), sort_keys=True)
    sha, source = hashlib.sha256(text.encode()), checkpoint.original
    for name, spec in sorted(source.specs.items()):
        sha.update(compact([name, spec.dtype, spec.shape]).encode())
        for piece in source.spans[name].pieces():
            sha.update(piece)
    return f"sha256:{sha.hexdigest()}"


def fingerprint_of(opened: OpenModel) -> Fingerprint:
    """Return a model's entry in a report."""
    return Fingerprint(
        reference=opened.as_input().name,
        sha256=opened.checkpoint.digest,
        weights=digest_weights(opened.checkpoint, opened.header),
    )
