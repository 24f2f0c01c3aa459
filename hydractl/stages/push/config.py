"""Configuration of `push`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hydractl.hub.names import check_branch, check_license, check_repository
from hydractl.provenance.command_config import CommandConfig
from hydractl.settings import Constraint, Setting, by_default, bytes_of, check, flag, required, setting
from hydractl.stages import options as shared

MAIN = "main"
CARD, REPOSITORY = "Card", "Repository"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfig(CommandConfig):
    """What to push, and to which repository."""

    model: str = required(shared.MODEL)
    """A base, a member or a hydra."""
    repository: str = required(
        Setting(
            "Hub repository; created if it does not exist.",
            positional=True,
            metavar="ORG/NAME",
            shows_default=False,
        )
    )
    report: Path | None = setting(None, "Report of `eval` to put on the card.", metavar="JSON", panel=CARD)
    base_model: str | None = setting(
        None, "Hub id of the model that this one was made from.", metavar="ORG/NAME", panel=CARD
    )
    license: str | None = setting(
        None,
        "Licence of the base by its Hub id, for example apache-2.0, mit or cc-by-4.0.",
        metavar="ID",
        panel=CARD,
    )
    private: bool = flag(Setting("Create a private repository; refuse a public one.", panel=REPOSITORY))
    revision: str = setting(MAIN, "Branch; created if it does not exist.", metavar="BRANCH", panel=REPOSITORY)
    create_pr: bool = flag(
        Setting("Open a pull request instead of committing to the branch.", panel=REPOSITORY)
    )
    commit_message: str | None = setting(
        None,
        "Commit message.",
        metavar="TEXT",
        panel=REPOSITORY,
        needs=Constraint(
            lambda config: config.commit_message != "",
            message="`--commit-message`: a commit needs a message",
            hint="give a text, or leave the option out",
        ),
    )
    max_shard_size: int = setting(
        5_000_000_000,
        "Largest size of a weights file; a larger model is sharded (default: 5GB).",
        parse=partial(bytes_of, "--max-shard-size"),
        metavar="SIZE",
        panel=REPOSITORY,
        shows_default=False,
    )
    dry_run: bool = flag(Setting("Print the files and the card without contacting the Hub."))
    arch: str | None = by_default(None, shared.ARCH)

    def __post_init__(self) -> None:
        check(self)
        check_repository(self.repository)
        if self.base_model is not None:
            check_repository(self.base_model, option="--base-model ")
        if self.license is not None:
            check_license(self.license)
        check_branch(self.revision)
