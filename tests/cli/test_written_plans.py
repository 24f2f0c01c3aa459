"""Pipeline files of `make`: paths are read back unchanged, and paths that TOML cannot represent are rejected."""

from __future__ import annotations

import tomllib

import pytest

from hydractl.cli.commands.run import written
from hydractl.errors import UsageError


@pytest.mark.parametrize(
    "path", ["del\x7f.st", "\x01\t\n.st", 'quote".st', "back\\slash.st", "\u202e\U0001f600.st"]
)
def test_paths_are_read_back(path):
    text = written([{"name": "fuse", "command": "fuse", "models": [path, "b.st"]}], command="make")
    assert tomllib.loads(text)["stage"][0]["models"] == [path, "b.st"]


def test_a_path_that_is_not_utf8_is_refused():
    with pytest.raises(UsageError, match="is not UTF-8 text") as refused:
        written([{"name": "fuse", "command": "fuse", "models": ["a\udcff.st"]}], command="make")
    assert "rename" in refused.value.hint
