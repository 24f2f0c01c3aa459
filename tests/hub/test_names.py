from __future__ import annotations

import subprocess

import pytest

from hydractl.errors import UsageError
from hydractl.stages.push.config import check_branch, check_license, check_repository

BRANCHES = (
    "main", "v1.0", "tuned/2", "refs/pr/3", "a@b", "\u00fc", "a-", "x.lockx", "a{b", "HEAD2", "",
    "-a", "/a", "a/", "a//b", "a..b", "a.", ".a", "a/.b", "a.lock", "a.lock/b", "a b", "a\tb", "a~1", "a^", "a:b", "a?", "a*", "a[b",
    "a\\b", "@", "@{1}", "a@{b", "a\x7fb", "a\n",
)  # fmt: skip


@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_is_what_git_takes_for_one(name):
    git = subprocess.run(["git", "check-ref-format", f"refs/heads/{name}"], check=False)
    if git.returncode == 0 and not name.startswith("-"):
        check_branch(name)
        return
    with pytest.raises(UsageError, match="is not a valid name of a branch"):
        check_branch(name)


@pytest.mark.parametrize("name", ["org/name", "Org-1/na_me.v2"])
def test_names_of_repositories(name):
    check_repository(name)


@pytest.mark.parametrize("name", ["name", "a/b/c", "org/-a", "org/a.", "org/\u00e9", "", "/a"])
def test_what_the_hub_takes_for_no_repository(name):
    with pytest.raises(UsageError, match="is not a Hub repository"):
        check_repository(name)


def test_licences():
    for identifier in ("apache-2.0", "openrail++", "other"):
        check_license(identifier)
    with pytest.raises(UsageError) as caught:
        check_license("apache-2")
    assert "did you mean `apache-2.0`?" in caught.value.hint
