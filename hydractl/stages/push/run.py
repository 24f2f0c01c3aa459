"""push: one commit with a model's files and its card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hydractl.checkpoint import ScratchFolder
from hydractl.errors import InputError, UsageError
from hydractl.families.opening import OpenModel, check_tensors, open_model
from hydractl.fusion.hydra import stored_specs
from hydractl.hub.card import PICTURE, REPORT, Facts, card_of
from hydractl.hub.layout import files_of
from hydractl.hub.repository import Pushed, Target, push, require_token
from hydractl.hub.weights import weights_of
from hydractl.manifest.header import Header, Kind
from hydractl.manifest.report import Report, Row
from hydractl.parallel import require_one_process
from hydractl.progress import SILENT, Progress
from hydractl.publish import is_stream
from hydractl.reporting.heads_figure import MOST_PANELS, Panel, draw_heads
from hydractl.stages.push.config import PushConfig

CARD = "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedFile:
    """A file of the repository.

    Attributes:
        name: What it is called there.
        size_bytes: How long it is.
        written: Whether this push added or changed it; None where the Hub was not asked.
    """

    name: str
    size_bytes: int
    written: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """What `push` did, or would do.

    Attributes:
        repository: Where the model is.
        revision: The branch.
        files: What belongs to the model.
        deleted: Files of a former model that went.
        card: The text of the card.
        commit: The commit that holds the files; None in a dry run.
        url: Where it can be seen.
        pull_request: Where the pull request can be seen, if one was opened.
        unchanged: Whether all was there already, and no commit was made.
    """

    repository: str
    revision: str
    files: tuple[PushedFile, ...]
    deleted: tuple[str, ...]
    card: str
    commit: str | None
    url: str | None
    pull_request: str | None
    unchanged: bool

    @property
    def paths(self) -> tuple[str, ...]:
        """What was made: the pull request, or the commit."""
        made = self.pull_request or self.url
        return () if made is None or self.unchanged else (made,)


def run_push(config: PushConfig, progress: Progress = SILENT) -> PushReport:
    """Push a model to the Hub, in one commit or none.

    Raises:
        InputError: If the model or the report cannot be used; the Hub has not been asked then.
        HubError: If it does not take the files; the branch is as it was.
    """
    require_one_process("push")
    opened = open_model(config.model, arch=config.arch)
    if opened.is_random:
        raise UsageError(
            f"`{config.model}`: has random weights, which are of no use to others",
            hint="push what `finetune` makes of it",
        )
    check_tensors(config.model, opened.checkpoint.specs, stored_specs(opened))
    if not config.dry_run:
        require_token()
    if config.license is None:
        progress.warn("the card names no licence: `--license` says that of the base")
    scratch = ScratchFolder()
    files = _files(config, opened, scratch)
    card = files[CARD]
    pushed = None
    if not config.dry_run:
        target = Target(
            name=config.repository,
            revision=config.revision,
            private=config.private,
            create_pr=config.create_pr,
            message=config.commit_message or f"{opened.header.kind.value.capitalize()} made by hydractl",
        )
        pushed = push(files, target, progress=progress)
    return _report(config, files, card.decode() if isinstance(card, bytes) else "", pushed)


def _files(config: PushConfig, opened: OpenModel, scratch: ScratchFolder) -> dict[str, Path | bytes]:
    header = opened.header
    report, row = _measured(config, opened)
    files: dict[str, Path | bytes] = {
        **files_of(header),
        **weights_of(opened.checkpoint, header, limit=config.max_shard_size, scratch=scratch),
    }
    if report is not None:
        files[REPORT] = report.to_json().encode()
    if (picture := _picture(header)) is not None:
        files[PICTURE] = picture
    facts = Facts(
        name=config.repository,
        revision=config.revision,
        header=header,
        specs=opened.checkpoint.specs,
        report=report,
        row=row,
        base_model=config.base_model,
        license=config.license,
        pictured=picture is not None,
    )
    files[CARD] = card_of(facts).encode()
    return dict(sorted(files.items()))


def _measured(config: PushConfig, opened: OpenModel) -> tuple[Report | None, Row | None]:
    """Return a report, and its row that is of the model.

    Raises:
        InputError: If there is none.
    """
    if config.report is None:
        return None, None
    report = Report.read(config.report)
    digest = opened.checkpoint.digest
    for row in report.rows:
        if [model.sha256 for model in row.models] == [digest]:
            return report, row
    name = "standard input" if is_stream(config.report) else config.report
    raise InputError(
        f"{name}: measures {', '.join(row.name for row in report.rows)}, none of which is {config.model} as it is now",
        hint=f"`hydractl eval {config.model} --data DATA -o report.json` measures it",
    )


def _picture(header: Header) -> bytes | None:
    """Return a picture of the heads that members keep; None of a base, and of more than fit on one."""
    if header.kind == Kind.BASE or len(header.masks) > MOST_PANELS:
        return None
    names = [f"member {i}" for i in range(len(header.masks))] if header.kind == Kind.HYDRA else ["heads kept"]
    panels = [Panel(name=name, mask=mask) for name, mask in zip(names, header.masks, strict=True)]
    return draw_heads(panels, suffix=".png")


def _report(
    config: PushConfig, files: Mapping[str, Path | bytes], card: str, pushed: Pushed | None
) -> PushReport:
    return PushReport(
        repository=config.repository,
        revision=config.revision,
        files=tuple(
            PushedFile(
                name=name,
                size_bytes=len(content) if isinstance(content, bytes) else content.stat().st_size,
                written=None if pushed is None else name in pushed.written,
            )
            for name, content in files.items()
        ),
        deleted=() if pushed is None else pushed.deleted,
        card=card,
        commit=None if pushed is None else pushed.commit,
        url=None if pushed is None else pushed.url,
        pull_request=None if pushed is None else pushed.pull_request,
        unchanged=pushed is not None and pushed.unchanged,
    )
