"""`hydractl doctor`: what is amiss is said, with what to type; the token never is."""

from __future__ import annotations

import json
import time
from importlib import metadata

import httpx2
import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

from hydractl.errors import CheckFailed
from hydractl.stages.doctor import libraries as examined
from hydractl.stages.doctor import machine as machines
from hydractl.stages.doctor.config import DoctorConfig
from hydractl.stages.doctor.finding import FindingState
from hydractl.stages.doctor.hub import hub
from hydractl.stages.doctor.libraries import LOADED, libraries
from hydractl.stages.doctor.machine import machine
from hydractl.stages.doctor.run import run_doctor

TOKEN = "hf_secret"  # noqa: S105 - nobody's


@pytest.fixture(autouse=True)
def asked(monkeypatch, tmp_path):
    """A Hub that nobody reaches but by `answer`, an empty cache, and no libraries to load; returns what was asked."""
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
    monkeypatch.setattr(examined, "LOADED", ())
    answer((401, {}))
    return answer


def found(findings, name):
    return next(one for one in findings if one.name == name)


@pytest.mark.parametrize(
    ("response", "token", "endpoint", "state"),
    [
        ((401, {}), None, FindingState.OK, FindingState.OK),
        ((401, {}), TOKEN, FindingState.OK, FindingState.FAILED),
        ((200, {"json": {"name": "me"}}), TOKEN, FindingState.OK, FindingState.OK),
        ((200, {"text": f"<html>log in {TOKEN}</html>"}), TOKEN, FindingState.FAILED, FindingState.SKIPPED),
        ((503, {}), TOKEN, FindingState.FAILED, None),
        (lambda: 1 / 0, None, FindingState.FAILED, FindingState.SKIPPED),
        (lambda: {}[TOKEN], TOKEN, FindingState.FAILED, FindingState.SKIPPED),
    ],
    ids=["no token", "refused", "known", "captive", "broken", "unreachable", "raises"],
)  # fmt: skip
def test_the_hub_and_the_token(asked, response, token, endpoint, state):
    calls = asked(response, token=token)
    findings = [*hub(5)]

    assert len(calls) == 1
    assert found(findings, "endpoint").state is endpoint
    assert (endpoint is FindingState.FAILED) == (found(findings, "endpoint").fix is not None)
    assert state is None or found(findings, "token").state is state
    assert TOKEN not in repr(findings)


def test_a_token_in_an_error_is_not_shown(asked):
    def illegal():
        raise httpx2.LocalProtocolError(f"Illegal header value b'Bearer {TOKEN}'")

    asked(illegal, token=TOKEN)

    assert "Bearer ***" in repr([*hub(5)])
    assert TOKEN not in repr([*hub(5)])


def test_a_hub_that_hangs_is_not_waited_for(asked):
    asked(lambda: time.sleep(3), token=TOKEN)
    begin = time.monotonic()
    findings = [*hub(0.1)]

    assert time.monotonic() - begin < 2
    assert "no response within 0.1 s" in found(findings, "endpoint").found
    assert found(findings, "endpoint").state is FindingState.FAILED


def test_offline_nothing_is_asked(asked):
    calls = asked((200, {}), token=TOKEN, offline=True)
    report = run_doctor(DoctorConfig())

    assert calls == []
    assert found(report.findings, "endpoint").state is FindingState.SKIPPED
    assert found(report.findings, "token").found == "found, not tested"
    report.require_checks()


def test_the_cache_is_measured_without_its_links(tmp_path, asked):
    folder = tmp_path / "cache" / "hub" / "blobs"
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(bytes(30_000_000))
    (folder / "b").symlink_to(folder / "a")

    assert f"{folder.parent}, 0.03 GB, " in found([*hub(5)], "cache").found


REQUIRES = {
    "hydractl": [
        "rich>=15",
        "kneed>=0.9",
        "transformers[torch]>=5.23,<6",
        "timm",
        "extra>=2; extra == 'more'",
    ],
    "transformers": ["torch>=9; extra == 'x'", "torchvision>=0.30; extra == 'torch'"],
    "timm": ["torch>=2; extra == 'x'", "torch==2.16"],
}


@pytest.fixture
def releases(monkeypatch):
    """The releases that are installed, by name."""
    known = {
        "rich": "15.1",
        "kneed": "0.9",
        "transformers": "5.30",
        "timm": "1.1",
        "torch": "2.16",
        "torchvision": "0.31",
    }

    def version(name):
        if known.get(name) is None:
            raise metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", REQUIRES.get)
    monkeypatch.setattr(
        metadata, "metadata", lambda _: type("", (), {"get_all": lambda *_: ["more", "dev"]})()
    )
    return known


def test_releases_that_fit(releases):
    findings = [*libraries()]

    assert {one.name: one.state for one in findings if one.state is not FindingState.OK} == {
        "extra (optional)": FindingState.SKIPPED
    }
    assert "`pip install 'hydractl[more]'`" in found(findings, "extra (optional)").found


@pytest.mark.parametrize(
    ("library", "release", "name", "text", "fix"),
    [
        ("kneed", None, "kneed", "not installed", "pip install 'kneed>=0.9'"),
        ("rich", "13.0", "rich", "13.0, not >=15", "pip install 'rich>=15'"),
        ("transformers", "6.0.1", "transformers", "6.0.1, not ", "pip install 'transformers<6,>=5.23'"),
        ("torch", "2.15", "timm with torch", "timm 1.1 needs torch==2.16, and 2.15 is installed",
         "pip install --upgrade timm 'torch==2.16'"),
        ("torchvision", "0.29", "transformers with torchvision",
         "transformers 5.30 needs torchvision>=0.30, and 0.29 is installed",
         "pip install --upgrade transformers 'torchvision>=0.30'"),
    ],
    ids=["missing", "old", "new", "apart", "of-an-extra"],
)  # fmt: skip
def test_releases_that_do_not_fit(releases, library, release, name, text, fix):
    releases[library] = release
    (bad,) = (one for one in libraries() if one.state is FindingState.FAILED)

    assert (bad.name, bad.fix) == (name, fix)
    assert text in bad.found


def test_builds_that_do_not_go_together(releases):
    releases |= {"torch": "2.16+cpu", "torchvision": "0.31+cu130"}
    (bad,) = (one for one in libraries() if one.state is FindingState.FAILED)

    assert bad.name == "torch with torchvision"
    assert bad.fix.endswith("--index-url https://download.pytorch.org/whl/cpu")


def test_a_library_that_cannot_be_loaded(releases, monkeypatch):
    monkeypatch.setattr(examined, "LOADED", ("json", "no_such_module"))
    (bad,) = (one for one in libraries() if one.state is FindingState.FAILED)

    assert bad.name == "import no_such_module"
    assert bad.found.startswith("ModuleNotFoundError: ")
    assert {"torch", "torchvision", "timm", "transformers"} <= {*LOADED}


def test_threads_beyond_the_cores_and_a_gpu_that_torch_does_not_see(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 4000)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(machines.shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    findings = [*machine()]

    assert found(findings, "threads").fix.startswith("export OMP_NUM_THREADS=")
    assert found(findings, "cuda").state is FindingState.WARNING
    assert "bf16 fp16 fp32" in found(findings, "cpu").found


def test_a_device_whose_numbers_are_wrong_fails(monkeypatch):
    """One that adds nothing up, one that has no product in a dtype, and one that computes."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    right = torch.ones

    def ones(*size, dtype, device):
        return right(*size, dtype=dtype, device=device) * (0.5 if dtype == torch.bfloat16 else 1)

    monkeypatch.setattr("torch.ones", ones)
    wrong = found(machine(), "cpu")
    assert wrong.state is FindingState.FAILED
    assert wrong.fix
    assert wrong.found.endswith("; fp16 fp32; wrong in bf16")

    monkeypatch.setattr("torch.ones", lambda *_, **__: right(8, 8) / 2)
    assert found(machine(), "cpu").found.endswith("; wrong in bf16, fp16, fp32")
    assert "; ;" not in found(machine(), "cpu").found

    def refuses(*size, dtype, device):
        if dtype == torch.float16:
            raise RuntimeError("not implemented")
        return right(*size, dtype=dtype, device=device)

    monkeypatch.setattr("torch.ones", refuses)
    lacking = found(machine(), "cpu")
    assert (lacking.state, lacking.fix) == (FindingState.OK, None)
    assert "; bf16 fp32; not fp16 (" in lacking.found


def test_the_command(call, asked, releases):
    seen = call("doctor", "--json")
    names = {one["name"] for one in json.loads(seen.out)["findings"]}

    assert (seen.code, seen.err) == (0, "")
    assert {"hydractl", "python", "rich", "timm", "threads", "cpu", "cache", "endpoint", "token"} <= names
    releases["kneed"] = None
    seen = call("doctor")
    assert seen.code == 5
    assert (seen.out + seen.err).count("pip install 'kneed>=0.9'") == 1
    assert "1 check failed: `kneed`\n\nhint: pip install 'kneed>=0.9'" in seen.err
    assert (call("doctor", "-q").code, call("doctor", "-q").out) == (5, "")


def test_the_first_thing_to_type_is_in_the_hint(releases):
    releases |= {"kneed": None, "rich": None}

    with pytest.raises(CheckFailed, match="2 checks failed: `rich`, `kneed`") as caught:
        run_doctor(DoctorConfig()).require_checks()
    assert caught.value.hint == "pip install 'rich>=15'; pip install 'kneed>=0.9'"
