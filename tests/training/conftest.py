from __future__ import annotations

import pytest

from support.heard import Heard


@pytest.fixture
def heard():
    return Heard()
