"""Configuration of `push`. Importing this module does not load torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hydractl.errors import UsageError, reason_of
from hydractl.messages import did_you_mean
from hydractl.provenance.command_config import CommandConfig
from hydractl.settings import Constraint, Setting, by_default, bytes_of, check, flag, required, setting
from hydractl.stages import options as shared

_IDENTIFIERS = (
    "afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0 "
    "bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 "
    "cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 "
    "cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0 "
    "creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 "
    "fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 grok2-community h-research intel-research isc lgpl "
    "lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by "
    "ofl-1.1 openmdw-1.0 openrail openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib"
)
LICENSES = frozenset(_IDENTIFIERS.split())
"""Licence identifiers of the Hub (https://huggingface.co/docs/hub/repositories-licenses). The Hub's client
has no list of them."""
_BRANCH = re.compile(
    r"(?!-|/|.*(?:\.\.|//|/\.|@\{|\.lock(?:/|$)))(?!\.)[^\x00-\x20\x7f~^:?*\[\\]+(?<![./])", re.DOTALL
)
"""Valid branch names, like `git check-ref-format`. The first character must not be `-`, because the name
would look like an option."""


def check_repository(name: str, *, option: str = "") -> None:
    """Check that a name is a valid `org/name` of the Hub.

    Args:
        name: The name.
        option: Text before the name in messages, for example `--base-model `.

    Raises:
        UsageError: If it is not valid, with the reason from the Hub's client.
    """
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415 - the Hub's client is slow to load
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # noqa: PLC0415 - documented, not listed

    reason = "" if "/" in name else ": it has no owner"
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        reason = f": {reason_of(error)}"
    if reason:
        raise UsageError(
            f"`{option}{name}`: is not a Hub repository{reason}",
            hint="give owner and name, for example `my-team/my-hydra`; give a branch with `--revision BRANCH`",
        )


def check_license(identifier: str) -> None:
    """Check that a licence identifier exists on the Hub.

    Raises:
        UsageError: If it does not exist.
    """
    if identifier not in LICENSES:
        near = did_you_mean(identifier, LICENSES)
        raise UsageError(
            f"`--license {identifier}`: is not a licence identifier of the Hub",
            hint=(
                f"{f'{near} ' if near else ''}For example `apache-2.0`, `mit`, `cc-by-4.0`; use "
                "`other` for a licence without an identifier"
            ),
        )


def check_branch(name: str) -> None:
    """Check that a name is a valid git branch.

    Raises:
        UsageError: If it is not valid.
    """
    if not _BRANCH.fullmatch(name):
        raise UsageError(
            f"`--revision {name}`: is not a valid name of a branch", hint="for example `v1` or `tuned/2`"
        )


MAIN = "main"
CARD, REPOSITORY = "Card", "Repository"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfig(CommandConfig):
    """Options of `push`."""

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
