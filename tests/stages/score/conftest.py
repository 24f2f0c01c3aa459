from __future__ import annotations

import pytest

from support.builders import base
from support.variants import variant


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A base shared by all tests of a session."""
    return str(base(variant("class-token")).save(tmp_path_factory.mktemp("model") / "base.st"))
