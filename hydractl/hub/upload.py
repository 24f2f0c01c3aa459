"""Files of a push: weights, configuration files, report, picture and card."""

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
"""Default size limit of a weight file: that of `huggingface_hub`. Twice the limit halves the number of
files."""
MOST_PICTURED = 40
"""Maximum number of members in the picture of a card. Chosen by hand; twice the limit allows a picture twice
as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A model to be published, with the options of the push.

    Attributes:
        name: `org/name`.
        revision: Branch.
        report: Path of a report of `eval` with a row of the model.
        base_model: Hub id of the base model.
        license: License identifier of the Hub.
        max_shard_size: Maximum size of the tensors in a weight file, in bytes.
    """

    name: str
    revision: str = MAIN
    report: Path | None = None
    base_model: str | None = None
    license: str | None = None
    max_shard_size: int = SHARD_BYTES

    def files(
        self, checkpoint: Checkpoint, header: Header, *, scratch: ScratchFolder, place: str
    ) -> dict[str, Content]:
        """Return the files by name in the repository. The card is a function of the README in the repository.

        Args:
            checkpoint: Tensors of the model.
            header: Header of the model.
            scratch: Temporary folder for rewritten weights. The folder must exist until the push has ended.
            place: Model reference for messages.

        Raises:
            InputError: If the report has no row of the model.
        """
        report, row = self._measured(checkpoint, header, place)
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
            has_picture=picture is not None,
        )
        files[CARD] = partial(card_of, facts)
        return dict(sorted(files.items()))

    def _measured(
        self, checkpoint: Checkpoint, header: Header, place: str
    ) -> tuple[Report | None, Row | None]:
        """Return the report and the model's row, or (None, None) without a report."""
        if self.report is None:
            return None, None
        report = Report.read(self.report)
        check_known(str(self.report), report)
        if (row := report.row_of(checkpoint.digest, digest_weights(checkpoint, header))) is not None:
            return report, row
        names = ", ".join(row.name for row in report.rows)
        raise InputError(
            f"{self.report}: is a report of {names}, none of which is the present {place}",
            hint=f"`hydractl eval {shlex.quote(place)} --data DATA -o report.json` writes a report of it",
        )


def usual_message(header: Header) -> str:
    """Return the default commit message, for example `Hydra made by hydractl`."""
    return f"{header.kind.value.capitalize()} made by hydractl"


def _picture(header: Header) -> bytes | None:
    """Return a PNG of the members' kept heads, or None for a base or more than `MOST_PICTURED` members."""
    if header.kind == Kind.BASE or len(header.masks) > MOST_PICTURED:
        return None
    maps = [
        head_map(
            f"member {i}" if header.kind == Kind.HYDRA else "heads kept",
            mask,
            place=tower if len(masks) > 1 else "",
        )
        for i, masks in enumerate(header.masks)
        for tower, mask in masks.items()
    ]
    figure = heads_figure(maps)
    return None if figure is None else png(figure.sheet())


def weights_of(
    checkpoint: Checkpoint, header: Header, *, limit: int, scratch: ScratchFolder
) -> dict[str, Path | bytes]:
    """Return the weight files by name, with an index if there are several.

    A single checkpoint file of hydractl is uploaded unchanged. Other weights are written to `scratch`, with
    the header in each shard.

    Args:
        checkpoint: Tensors of the model.
        header: Header to write.
        limit: Maximum size of the tensors in a file, in bytes. A larger single tensor has its own file.
        scratch: Temporary folder for rewritten files.
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
    """Yield the tensor names of each shard. Shards are filled in the order of names."""
    part: list[str] = []
    remaining_bytes = limit
    for name, spec in sorted(specs.items()):
        if part and spec.size_bytes > remaining_bytes:
            yield part
            part, remaining_bytes = [], limit
        part.append(name)
        remaining_bytes -= spec.size_bytes
    if part:
        yield part
