"""push: upload a model's files and its card in a single commit."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl import progress
from hydractl.checkpoint import ScratchFolder
from hydractl.errors import UsageError
from hydractl.families.open_model import check_tensors, open_model
from hydractl.fusion.build import stored_specs
from hydractl.hub.repository import Target, push, require_token, resolve_contents
from hydractl.hub.upload import CARD, Publication, usual_message
from hydractl.processes.distributed import require_one_process
from hydractl.progress import stage
from hydractl.stages.push.config import PushConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedFile:
    """A file of the repository.

    Attributes:
        name: Name in the repository.
        size_bytes: Size in bytes.
        written: Whether this push added or changed the file; None if the Hub was not contacted.
    """

    name: str
    size_bytes: int
    written: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """Result of `push`, or of a dry run.

    Attributes:
        repository: Repository of the model.
        revision: The branch.
        files: Files of the model.
        deleted: Deleted files of a previous model.
        card: Text of the card. Edits on the Hub are included, except in a dry run.
        commit: Commit with the files, or the latest commit if nothing changed; None in a dry run.
        url: URL of the commit; None in a dry run.
        pull_request: URL of the pull request; None if there is no pull request.
        unchanged: Whether the repository was already up to date. Then there is no new commit.
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
        """URL of the pull request, else of the commit; empty in a dry run or if nothing changed."""
        address = self.pull_request or self.url
        return () if address is None or self.unchanged else (address,)


@stage
def run_push(config: PushConfig) -> PushReport:
    """Push a model to the Hub in a single commit.

    Raises:
        InputError: If the model or the report cannot be used. The Hub is not contacted.
        UsageError: If the model has random weights.
        HubError: If the push fails. The branch is unchanged.
    """
    require_one_process("push")
    model_file = open_model(config.model, arch=config.arch)
    if model_file.is_random:
        raise UsageError(
            f"`{config.model}`: has random weights",
            hint="train it with `finetune` first",
        )
    check_tensors(config.model, model_file.checkpoint.specs, stored_specs(model_file))
    if not config.dry_run:
        require_token()
    if config.license is None:
        progress.warn("the card names no licence; give that of the base with `--license`")
    publication = Publication(
        name=config.repository,
        revision=config.revision,
        report=config.report,
        base_model=config.base_model,
        license=config.license,
        max_shard_size=config.max_shard_size,
    )
    scratch = ScratchFolder()
    files = publication.files(model_file.checkpoint, model_file.header, scratch=scratch, place=config.model)
    target = Target(
        name=config.repository,
        revision=config.revision,
        private=config.private,
        create_pr=config.create_pr,
        message=config.commit_message or usual_message(model_file.header),
    )
    pushed = None if config.dry_run else push(files, target)
    written = resolve_contents(files, lambda _: None) if pushed is None else pushed.files
    card = written[CARD]
    return PushReport(
        repository=config.repository,
        revision=config.revision,
        files=tuple(
            PushedFile(
                name=name,
                size_bytes=len(content) if isinstance(content, bytes) else content.stat().st_size,
                written=None if pushed is None else name in pushed.written,
            )
            for name, content in written.items()
        ),
        deleted=() if pushed is None else pushed.deleted,
        card=card.decode() if isinstance(card, bytes) else "",
        commit=None if pushed is None else pushed.commit,
        url=None if pushed is None else pushed.url,
        pull_request=None if pushed is None else pushed.pull_request,
        unchanged=pushed is not None and pushed.unchanged,
    )
