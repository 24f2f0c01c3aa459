"""Everything of a model that goes into a repository: weights, what libraries read, its report, its picture, its card."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hydractl.checkpoint import Checkpoint, ScratchFolder, TensorSpec, write_checkpoint
from hydractl.errors import InputError
from hydractl.families.open_model import digest_weights
from hydractl.hub.card import PICTURE, REPORT, Facts, card_of
from hydractl.hub.layout import SHARD, files_of
from hydractl.hub.repository import MAIN, Content
from hydractl.manifest.header import Header, Kind
from hydractl.manifest.report import Report, Row
from hydractl.model_source import INDEX, WEIGHTS
from hydractl.reporting.comparison import check_known
from hydractl.reporting.head_maps import head_map, heads_figure
from hydractl.reporting.matplotlib_figure import png
from hydractl.strict_json import canonical

CARD = "README.md"
SHARD_BYTES = 5_000_000_000
MOST_PICTURED = 40
"""Limit of members in the picture of a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Where a model goes, and what is told of it there.

    Attributes:
        name: `org/name`.
        revision: The branch.
        report: What `eval` measured of it.
        base_model: Hub id of what it was made from.
        license: Of the base, as the Hub calls it.
        max_shard_size: The most bytes of a file of weights.
    """

    name: str
    revision: str = MAIN
    report: Path | None = None
    base_model: str | None = None
    license: str | None = None
    max_shard_size: int = SHARD_BYTES

    def files(
        self, checkpoint: Checkpoint, header: Header, *, scratch: ScratchFolder, where: str
    ) -> dict[str, Content]:
        """Return the files by their names there; what becomes of the card hangs on what people have written into it.

        Args:
            checkpoint: The model's tensors.
            header: What it is.
            scratch: For weights that are written anew; goes when they have been pushed.
            where: What to call the model in messages.

        Raises:
            InputError: If the report is of other models.
        """
        report, row = self._measured(checkpoint, header, where)
        files: dict[str, Content] = {
            **files_of(header),
            **weights_of(checkpoint, header, limit=self.max_shard_size, scratch=scratch),
        }
        if report is not None:
            files[REPORT] = report.without_examples().to_json().encode()
        if (picture := _picture(header)) is not None:
            files[PICTURE] = picture
        facts = Facts(
            name=self.name,
            revision=self.revision,
            header=header,
            specs=checkpoint.specs,
            report=report,
            row=row,
            base_model=self.base_model,
            license=self.license,
            pictured=picture is not None,
        )
        files[CARD] = partial(card_of, facts)
        return dict(sorted(files.items()))

    def _measured(
        self, checkpoint: Checkpoint, header: Header, where: str
    ) -> tuple[Report | None, Row | None]:
        """Return the report, and its row that is of the model."""
        if self.report is None:
            return None, None
        report = Report.read(self.report)
        check_known(str(self.report), report)
        if (row := report.row_of(checkpoint.digest, digest_weights(checkpoint, header))) is not None:
            return report, row
        names = ", ".join(row.name for row in report.rows)
        raise InputError(
            f"{self.report}: is a report of {names}, none of which is the present {where}",
            hint=f"`hydractl eval {shlex.quote(where)} --data DATA -o report.json` writes a report of it",
        )


def usual_message(header: Header) -> str:
    """Return what a commit says where nobody says otherwise."""
    return f"{header.kind.value.capitalize()} made by hydractl"


def _picture(header: Header) -> bytes | None:
    """Return a picture of the heads that members keep; None for a base and for many members."""
    if header.kind == Kind.BASE or len(header.masks) > MOST_PICTURED:
        return None
    maps = [
        head_map(
            f"member {i}" if header.kind == Kind.HYDRA else "heads kept",
            mask,
            where=tower if len(masks) > 1 else "",
        )
        for i, masks in enumerate(header.masks)
        for tower, mask in masks.items()
    ]
    figure = heads_figure(maps)
    return None if figure is None else png(figure.sheet())


def weights_of(
    checkpoint: Checkpoint, header: Header, *, limit: int, scratch: ScratchFolder
) -> dict[str, Path | bytes]:
    """Return the files that hold a model's weights, by the name that they go by.

    A checkpoint of ours is taken as it lies; anything else is written anew, with its header, in each shard.

    Args:
        checkpoint: Its tensors.
        header: What the files say of themselves.
        limit: The most bytes of a file's tensors; a tensor is never cut.
        scratch: Where files are written that are not there yet.
    """
    specs = checkpoint.specs | checkpoint.beside
    total = sum(spec.size_bytes for spec in specs.values())
    fits_one_file = total <= limit
    if fits_one_file and checkpoint.header is not None and len(checkpoint.paths) == 1:
        return {WEIGHTS: checkpoint.paths[0]}
    parts = list(_parts(specs, limit))
    names = [WEIGHTS] if fits_one_file else [SHARD.format(i=i + 1, n=len(parts)) for i in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        with scratch.file(name) as file:
            write_checkpoint(
                file,
                {tensor: specs[tensor] for tensor in part},
                lambda tensor: [checkpoint.spans[tensor]],
                header=header,
            )
    files: dict[str, Path | bytes] = {name: scratch.path / name for name in names}
    if not fits_one_file:
        table = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
        files[INDEX] = canonical({"metadata": {"total_size": total}, "weight_map": table}).encode()
    return files


def _parts(specs: Mapping[str, TensorSpec], limit: int) -> Iterator[list[str]]:
    """Yield the names of a shard's tensors, as many in turn as fit."""
    part: list[str] = []
    room = limit
    for name, spec in sorted(specs.items()):
        if part and spec.size_bytes > room:
            yield part
            part, room = [], limit
        part.append(name)
        room -= spec.size_bytes
    if part:
        yield part
