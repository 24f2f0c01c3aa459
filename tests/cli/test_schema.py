from __future__ import annotations

import json
from typing import get_args

import pytest

from hydractl.cli.commands.look import DocumentKind
from hydractl.manifest.report import DOCUMENTS


def test_the_words_are_those_of_the_documents():
    assert {*get_args(DocumentKind)} == set(DOCUMENTS)


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_schema_is_canonical_json_that_names_its_document(call, kind, flags):
    seen = call("schema", kind, *flags)

    found = json.loads(seen.out)
    assert (seen.code, seen.err) == (0, "")
    assert seen.out == json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert found["properties"]["schema"]["const"] == DOCUMENTS[kind].schema_name()
    assert "schema" in found["required"]
    assert found["additionalProperties"] is False


def test_other_ranks_are_silent(call, monkeypatch):
    monkeypatch.setenv("RANK", "1")

    assert call("schema", "report").out == ""
