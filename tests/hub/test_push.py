"""`hydractl push`: printed results, and loading of pushed models by the libraries."""

from __future__ import annotations

import json

import pytest
import torch
import yaml
from PIL import Image

import hydractl
from hydractl.checkpoint import Checkpoint, write_tensors
from hydractl.cli.app import main
from hydractl.families.open_model import fingerprint_of, open_model
from hydractl.manifest.report import Report
from hydractl.runtime import digest_file
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import Sample, base
from support.reports import THRESHOLD, examples, write_report
from support.text_folders import save_text_model
from support.variants import variant

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content")
NAME = "org/model"
BASE = base(variant("class-token"))
INPUTS = BASE.inputs(batch=3)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A base with class names, two members, their hydra, and a report on the hydra."""
    folder = tmp_path_factory.mktemp("models")
    named = Sample(BASE.header.model_copy(update={"labels": tuple("abcde|g")}), BASE.state)
    named.save(folder / "base.st")
    for i, keep in enumerate((((0, 1), (2,), (0, 3)), ((0, 1), (1, 2), ()))):
        named.pruned(*keep).tuned(i).save(folder / f"m-{i}.st")
    run_fuse(FuseConfig(models=tuple(str(folder / f"m-{i}.st") for i in range(2)), out=folder / "hydra.st"))
    write_report(folder / "report.json", digest_file(folder / "hydra.st"))
    return folder


@pytest.fixture
def call(capsys):
    def run(*argv):
        capsys.readouterr()
        code = main(["push", *map(str, argv)])
        seen = capsys.readouterr()
        return code, seen.out, seen.err

    return run


def metadata(card):
    return yaml.safe_load(card.split("---\n")[1])


def test_a_dry_run_shows_all_and_asks_nobody(models, call, hub, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with hub() as served:
        code, out, _ = call(models / "hydra.st", NAME, "--report", models / "report.json", "--dry-run")
        assert (code, served.asked) == (0, [])
    for shown in (
        "model.safetensors",
        "head-mask-1.json",
        "heads.png",
        "## How it was made",
        "hydractl.load",
    ):
        assert shown in out
    assert call(models / "hydra.st", NAME, "--dry-run", "-q")[:2] == (0, "")


def test_a_hydra_is_pushed_once_and_read_back(models, call, hub, tmp_path):
    argv = (
        models / "hydra.st",
        NAME,
        "--report",
        models / "report.json",
        "--license",
        "mit",
        "--base-model",
        "timm/vit",
    )
    with hub(faults=0.3, seed=5) as served:
        code, out, err = call(*argv, "-q")
        assert code == 0, err
        assert out == f"{served.endpoint}/{NAME}/commit/{served.repositories[NAME].branches['main']}\n"
        code, out, err = call(*argv)
        assert (code, "Nothing has changed since" in out, served.repositories[NAME].made) == (0, True, 1), err
        assert served.failed
        served.faults = 0.0
        files = served.repositories[NAME].files()
        assert files["model.safetensors"] == (models / "hydra.st").read_bytes()
        assert Report.from_json(files["report.json"].decode(), place="report").rows[1].name == "Hydra"

        back = hydractl.load(NAME)
        sha = served.repositories[NAME].branches["main"]
        pinned = hydractl.load(f"{NAME}@{sha}")

    local = hydractl.load(models / "hydra.st")
    with torch.inference_mode():
        for found in (back, pinned):
            assert torch.equal(found(INPUTS).logits, local(INPUTS).logits)
    assert b"hf_secret" not in b"".join(files.values())
    assert f"{tmp_path}".encode() not in b"".join(files.values())


def test_a_report_of_the_same_weights_is_accepted(models, tmp_path, call):
    """A copy with a threshold and a temperature, as after `make` and `eval --save-model`.

    The card has both temperatures.
    """
    path, model_file = tmp_path / "model.st", open_model(str(models / "hydra.st"))
    header = model_file.header.model_copy(update={"threshold": THRESHOLD, "temperature": 2.0})
    with path.open("wb") as file:
        write_tensors(file, model_file.checkpoint.tensors(), header=header)
    report = Report.read(models / "report.json")
    own = report.rows[1].model_copy(update={"models": (fingerprint_of(model_file),)})
    (tmp_path / "report.json").write_text(report.model_copy(update={"rows": (report.rows[0], own)}).to_json())
    argv = (NAME, "--report", tmp_path / "report.json", "--dry-run")

    code, out, _ = call(path, *argv)
    assert (code, "for the temperature 1; the model stores 2." in out) == (0, True)
    code, out, _ = call(models / "hydra.st", *argv)
    assert (code, "for the temperature" in out) == (0, False)
    code, _, err = call(models / "m-0.st", *argv)
    assert (code, "none of which is" in err) == (3, True)


def test_examples_of_a_report_are_never_pushed(models, tmp_path, call, hub):
    """Examples are the user's data. The rest of the report is pushed."""
    report = Report.read(models / "report.json")
    private = report.model_copy(update={"examples": examples()})
    (tmp_path / "private.json").write_text(private.to_json())

    with hub() as served:
        code, out, err = call(
            models / "hydra.st", NAME, "--report", tmp_path / "private.json", "--license", "mit"
        )
        assert code == 0, err
        files = served.repositories[NAME].files()
    assert Report.from_json(files["report.json"].decode(), place="report") == report
    for shown in (out.encode(), *files.values()):
        assert not [secret for secret in (b"secret", b"/9j/AAAA", b"cat/1.png") if secret in shown]


def test_the_card_says_what_it_is_and_what_was_measured(models, call):
    code, out, _ = call(
        models / "hydra.st", NAME, "--report", models / "report.json", "--license", "mit", "--base-model", "timm/vit",
        "--dry-run", "--json",
    )  # fmt: skip
    card = json.loads(out)["card"]
    said = metadata(card)

    assert code == 0
    assert (said["license"], said["base_model"], said["base_model_relation"]) == ("mit", "timm/vit", "merge")
    assert (said["pipeline_tag"], said["library_name"]) == ("image-classification", "hydractl")
    (index,) = said["model-index"]
    accuracy, auroc = (result["metrics"][0] for result in index["results"])
    assert accuracy["value"] == 0.95
    assert accuracy["args"] == {"low": 0.9, "high": 0.97, "level": 0.95, "count": 257}
    assert (auroc["type"], auroc["value"]) == ("auroc", 0.75)
    assert index["results"][0]["dataset"] == {"name": "digits::split=test", "type": "digits", "split": "test"}
    assert "| accuracy | 0.95 [0.9, 0.97] | 0.5 [0.9, 0.97] |" in card
    assert "`hydractl fuse` of `m-0.st`, `m-1.st`: mlp `merge`" in card
    assert "member 0 keeps 5 of 12; member 1 keeps 4 of 12" in card
    assert "`a|`" not in card


@pytest.mark.newer
def test_a_base_is_read_by_its_library(models, call, hub):
    """In one file and in shards."""
    import timm
    from transformers import AutoModelForImageClassification

    with hub() as served:
        assert call(models / "base.st", NAME)[0] == 0
        with torch.inference_mode():
            expected = BASE.model()(INPUTS)
            own = timm.create_model(f"hf-hub:{NAME}", pretrained=True).eval()(INPUTS)
            wrapped = AutoModelForImageClassification.from_pretrained(NAME).eval()(INPUTS).logits
            assert torch.allclose(own, expected, atol=1e-5)
            assert torch.allclose(wrapped, expected, atol=1e-5)

            assert call(models / "base.st", NAME, "--max-shard-size", "30KB", "--revision", "shards")[0] == 0
            names = served.repositories[NAME].files("shards")
            assert "model.safetensors" not in names
            assert sum(name.endswith(".safetensors") for name in names) > 2
            cut = hydractl.load(f"{NAME}@shards")
            assert torch.equal(cut(INPUTS), expected)
        assert cut.header == Checkpoint.open(models / "base.st").header
        assert max(len(c) for n, c in names.items() if n.endswith(".safetensors")) < 60_000


def test_a_hydra_is_read_by_the_libraries(models, call, hub, monkeypatch, tmp_path):
    """From the Hub, even if a local folder has the same name; in one file, in shards, and as a folder."""
    import timm
    from huggingface_hub import snapshot_download
    from transformers import AutoModelForImageClassification, pipeline

    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    name, hydra = "org/hydra", models / "hydra.st"
    expected = hydractl.load(hydra).predict(INPUTS).probabilities.log()
    with hub():
        assert call(hydra, name)[0] == 0
        assert call(hydra, name, "--max-shard-size", "30KB", "--revision", "shards")[0] == 0
        wrapped = AutoModelForImageClassification.from_pretrained(name, revision="shards")
        picture = Image.effect_noise((31, 20), 80)
        answers = pipeline("image-classification", model=name, top_k=7)(picture)
        hydractl.load(models / "m-0.st").save_pretrained(tmp_path / name)
        found = [timm.create_model(f"hf-hub:{name}{at}", pretrained=True) for at in ("", "@shards")]
        folder = f"local-dir:{snapshot_download(name, revision='shards')}"
        found.append(timm.create_model(folder, pretrained=True, num_classes=7, in_chans=1, cache_dir="none"))
        for told in ({"num_classes": 3}, {"pretrained_cfg_overlay": {"mean": (0,)}}, {"drop_rate": 0.1}):
            with pytest.raises(TypeError, match=f"does not support `{next(iter(told))}="):
                timm.create_model(folder, pretrained=True, **told)
        found.append(timm.create_model(f"hf-hub:{name}", pretrained=True, cache_dir=tmp_path / "other"))
        assert list((tmp_path / "other").rglob("model.safetensors"))

    with torch.inference_mode():
        for logits in (*(model(INPUTS) for model in found), wrapped(INPUTS).logits):
            torch.testing.assert_close(logits, expected, atol=1e-6, rtol=0)
    said = hydractl.load(hydra).predict([picture]).probabilities[0].tolist()
    assert {a["label"]: a["score"] for a in answers} == pytest.approx(dict(zip("abcde|g", said, strict=True)))


def test_a_hydra_and_a_base_of_texts_are_read_by_the_library(call, hub, monkeypatch, tmp_path):
    """With the tokenizer. Without a terminal, no progress bars appear."""
    from transformers import pipeline

    # transformers caches a client for the Hub of an earlier test.
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)
    bert = save_text_model(variant("transformers-bert-plain"), tmp_path / "bert")
    whole = Sample(open_model(str(tmp_path / "bert")).header, bert.state)
    members = tuple(tmp_path / f"m-{i}.st" for i in range(2))
    for i, path in enumerate(members):
        whole.pruned((0, 1), (2,), (0, i + 1)).tuned(i).save(path)
    run_fuse(FuseConfig(models=tuple(map(str, members)), out=tmp_path / "hydra.st", verify=False))
    texts = ["the cat sat", "a mat on the cat on a mat"]
    with hub():
        for model, name in (("bert", "org/bert-of-texts"), ("hydra.st", "org/hydra-of-texts")):
            code, _, err = call(tmp_path / model, name)
            assert (code, "%|" in err) == (0, False), err
            answers = pipeline("text-classification", model=name, top_k=7)(texts, batch_size=2)
            expected = hydractl.load(tmp_path / model).predict(texts).probabilities.tolist()
            for answer, row in zip(answers, expected, strict=True):
                said = {int(one["label"].removeprefix("LABEL_")): one["score"] for one in answer}
                assert said == pytest.approx(dict(enumerate(row)), abs=1e-5)


REFUSED = {
    "a report of another model": (("m-0.st", NAME, "--report", "report.json"), 3, "none of which is"),
    "no owner": (("hydra.st", "model"), 2, "is not a Hub repository"),
    "a revision in the name": (("hydra.st", f"{NAME}@v1"), 2, "`--revision BRANCH`"),
    "a licence in words": (("hydra.st", NAME, "--license", "do what you want"), 2, "is not a licence identifier of the Hub"),
    "a licence that is not the Hub's": (("hydra.st", NAME, "--license", "apache2.0"), 2, "`apache-2.0`"),
    "a name with two hyphens": (("hydra.st", "org/a--b"), 2, "is not a Hub repository"),
    "a name that ends in git": (("hydra.st", "org/a.git"), 2, "is not a Hub repository"),
    "a name that is too long": (("hydra.st", f"org/{'a' * 97}"), 2, "is not a Hub repository"),
    "a base that is none": (("hydra.st", NAME, "--base-model", "org/a..b"), 2, "`--base-model org/a..b`"),
    "a branch with blanks": (("hydra.st", NAME, "--revision", "my branch"), 2, "is not a valid name of a branch"),
    "a branch without a name": (("hydra.st", NAME, "--revision", ""), 2, "is not a valid name of a branch"),
    "random weights": (("arch:vit_tiny_patch16_224", NAME), 2, "random weights"),
    "no such file": (("none.st", NAME), 3, "no such file"),
    "no size": (("hydra.st", NAME, "--max-shard-size", "many"), 2, "is not a memory size"),
}  # fmt: skip


@pytest.mark.parametrize(("argv", "code", "text"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_pushed_is_said_before_the_hub_is_asked(
    models, call, hub, monkeypatch, argv, code, text
):
    monkeypatch.chdir(models)
    with hub() as served:
        for dry_run in ((), ("--dry-run",)):
            found, out, err = call(*argv, *dry_run)
            assert (found, out, served.asked) == (code, "", [])
            assert text in err


def test_without_a_token_it_is_said_what_to_do(models, call, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    code, _, err = call(models / "hydra.st", NAME)
    assert (code, "there is no Hub token" in err, "hf auth login" in err) == (4, True, True)


def test_names_out_of_files_are_no_markup(models, tmp_path, call):
    header = Checkpoint.open(models / "m-0.st").header
    evil = ("</code>", "a`b", "x|y", "two\nlines", "<script>", "[l](http://x)", "f\x1b[31m")
    odd = Sample(header.model_copy(update={"labels": evil}), Checkpoint.open(models / "m-0.st").tensors())
    odd.save(tmp_path / "odd.st")

    _, out, _ = call(tmp_path / "odd.st", NAME, "--dry-run", "--json")

    card = json.loads(out)["card"]
    assert metadata(card)["tags"] == ["hydractl", "member"]
    assert "`</code>`, `a'b`, `x¦y`, `two lines`, `<script>`, `[l](http://x)`" in card
    assert "\x1b" not in card


def test_a_report_of_unknown_metrics_is_no_card(models, tmp_path, call):
    report = json.loads((models / "report.json").read_text())
    report["definitions"]["<x>"] = "what"
    (tmp_path / "odd.json").write_text(json.dumps(report))

    code, _, err = call(models / "hydra.st", NAME, "--report", tmp_path / "odd.json", "--dry-run")

    assert (code, "measures `<x>`, which this release of hydractl does not know" in err) == (3, True)


def test_the_object_pushes_what_the_command_does(models, call, hub):
    with hub() as served:
        done = hydractl.load(models / "hydra.st").push_to_hub("org/object", message="As it is")
        assert call(models / "hydra.st", NAME)[0] == 0
        own, other = (served.repositories[name] for name in ("org/object", NAME))
        assert (own.messages, done.commit) == (["As it is"], own.branches["main"])
        for name in own.files().keys() - {"README.md"}:
            assert own.files()[name] == other.files()[name]
        assert own.files().keys() == other.files().keys()
