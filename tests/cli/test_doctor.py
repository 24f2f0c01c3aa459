"""`hydractl doctor`: problems are printed with advice, the token never."""

from __future__ import annotations

import json
import sys
from importlib import metadata

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import constants

from hydractl.stages.doctor import DoctorConfig, _hub, run_doctor

TOKEN = "hf_secret"  # noqa: S105 - nobody's


@pytest.fixture(autouse=True)
def asked(monkeypatch, tmp_path):
    """Replace the Hub by given responses, with an empty cache. Return the requests."""
    calls = []

    def answer(*responses, token=None, offline=False):
        def get(url, **options):
            calls.append((url, options))
            response = responses[0]
            if callable(response):
                return response()
            return httpx2.Response(response[0], **response[1])

        monkeypatch.setattr(httpx2, "get", get)
        monkeypatch.setattr(huggingface_hub, "get_token", lambda: token)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        return calls

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    answer((401, {}))
    return answer


def found(findings, name):
    return next(one for one in findings if one.name == name)


@pytest.mark.parametrize(
    ("response", "token", "endpoint", "state"),
    [
        ((401, {}), None, "ok", "ok"),
        ((401, {}), TOKEN, "ok", "failed"),
        ((200, {"json": {"name": "me"}}), TOKEN, "ok", "ok"),
        ((200, {"text": f"<html>log in {TOKEN}</html>"}), TOKEN, "failed", None),
        ((503, {}), TOKEN, "failed", None),
        (lambda: 1 / 0, None, "failed", None),
        (lambda: {}[TOKEN], TOKEN, "failed", None),
    ],
    ids=["no token", "refused", "known", "captive", "broken", "unreachable", "raises"],
)  # fmt: skip
def test_the_hub_and_the_token(asked, response, token, endpoint, state):
    calls = asked(response, token=token)
    findings = [*_hub(5)]

    assert len(calls) == 1
    assert found(findings, "endpoint").state == endpoint
    assert (endpoint == "failed") == (found(findings, "endpoint").fix is not None)
    assert state is None or found(findings, "token").state == state
    assert TOKEN not in repr(findings)


def test_a_token_in_an_error_is_not_shown(asked):
    def illegal():
        raise httpx2.LocalProtocolError(f"Illegal header value b'Bearer {TOKEN}'")

    asked(illegal, token=TOKEN)

    assert "Bearer ***" in repr([*_hub(5)])
    assert TOKEN not in repr([*_hub(5)])


def test_offline_nothing_is_asked(asked):
    calls = asked((200, {}), token=TOKEN, offline=True)
    report = run_doctor(DoctorConfig())

    assert calls == []
    assert found(report.findings, "endpoint").state == "skipped"
    assert found(report.findings, "token").found == "found, not tested"
    report.require_checks()


def test_the_cache_must_be_writable(monkeypatch):
    assert found(_hub(5), "cache").state == "ok"
    monkeypatch.setattr("os.access", lambda *_: False)

    cache = found(_hub(5), "cache")

    assert (cache.state, cache.fix) == ("failed", "export HF_HOME=FOLDER")


def test_the_command(call):
    seen = call("doctor", "--json")
    names = {one["name"] for one in json.loads(seen.out)["findings"]}

    assert (seen.code, seen.err) == (0, "")
    assert {"hydractl", "python", "timm", "torch", "cpu", "cache", "endpoint", "token"} <= names


def test_a_missing_library_fails(call, monkeypatch):
    version = metadata.version

    def without_timm(name):
        if name == "timm":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_timm)

    seen = call("doctor")

    assert seen.code == 5
    assert "1 check failed: `timm`\n\nhint: pip install timm" in seen.err
    assert (call("doctor", "-q").code, call("doctor", "-q").out) == (5, "")


def test_a_broken_torch_fails(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)

    *_, broken = (one for one in run_doctor(DoctorConfig()).findings if one.name == "torch")

    assert broken.state == "failed"
