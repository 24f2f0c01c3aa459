"""`eval --keep-examples`: choice of samples, their form in the report, and privacy of paths."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from hydractl.cli.app import main
from hydractl.data.open_dataset import open_data
from hydractl.manifest.report import Report
from support.builders import base
from support.predictions import SavedPredictions
from support.text_folders import save_text_model
from support.variants import variant

DATA = "digits::split=test,classes=0-6,limit=60"
QUICK = ("--no-latency", "--device", "cpu", "--bootstrap", "0", "-q")


@pytest.fixture(scope="module")
def report_folder(tmp_path_factory):
    """Folder with reports of single models and of a pair, with examples and without, and saved predictions."""
    folder = tmp_path_factory.mktemp("examples")
    for seed in (0, 1):
        base().pruned((0, 1), (2,), (0, 3)).tuned(seed).save(folder / f"m{seed}.st")
    rows = ("--name", "one", "--compare", f"pair={folder}/m0.st,{folder}/m1.st")
    plain = ("eval", f"{folder}/m0.st", "--data", DATA, *rows, *QUICK)
    assert main([*plain, "-o", f"{folder}/plain.json", "--save-predictions", f"{folder}/p.st"]) == 0
    assert main([*plain, "-o", f"{folder}/one.json", "--keep-examples", "5"]) == 0
    assert main(["fuse", f"{folder}/m0.st", f"{folder}/m1.st", "-q", "-o", f"{folder}/pair.st"]) == 0
    assert (
        main(["eval", f"{folder}/pair.st", "--data", DATA, *QUICK, "-o", f"{folder}/pair.json", "--keep-examples", "5",
              "--save-predictions", f"{folder}/pair.p.st"])
        == 0
    )  # fmt: skip
    return folder


def test_they_are_the_most_disagreed_on_and_the_surest_mistakes(report_folder):
    found = Report.read(report_folder / "pair.json").examples
    saved = SavedPredictions.load(report_folder / "pair.p.st")
    log_probs, labels = saved.log_probs["pair"]["id"].double().numpy(), saved.labels["id"].numpy()
    members = np.exp(log_probs)
    mean = members.mean(0)
    disagreement = -(mean * np.log(mean)).sum(1) + (members * log_probs).sum(2).mean(0)
    wrong = np.flatnonzero(mean.argmax(1) != labels)

    digits = open_data(DATA)
    most = np.argsort(-disagreement, kind="stable")[:5]
    surest = wrong[np.argsort(-mean.max(1)[wrong], kind="stable")][:5]
    for kept, places in ((found.disagreements, most), (found.mistakes, surest)):
        assert [example.name for example in kept] == [f"row {digits.key(int(i))}" for i in places]
        assert [example.label for example in kept] == [str(labels[i]) for i in places]
        assert [example.answer for example in kept] == [str(mean[i].argmax()) for i in places]
        assert [example.votes for example in kept] == [
            tuple(map(str, log_probs[:, i].argmax(1))) for i in places
        ]
        assert [example.confidence for example in kept] == pytest.approx(
            [mean[i].max() for i in places], abs=1e-6
        )
        assert [example.disagreement for example in kept] == pytest.approx(
            [disagreement[i] for i in places], abs=1e-6
        )
        for example, i in zip(kept, places, strict=True):
            shown = Image.open(io.BytesIO(base64.b64decode(example.picture)))
            held = digits.image(int(i)).convert("RGB")
            assert (shown.format, shown.size, example.text) == ("JPEG", held.size, None)
            assert np.abs(np.asarray(shown, int) - np.asarray(held, int)).mean() < 8


def test_of_one_model_there_are_mistakes_alone_and_no_number_changes(report_folder):
    plain, kept = (Report.read(report_folder / f"{name}.json") for name in ("plain", "one"))

    assert plain.examples is None
    assert (len(kept.examples.disagreements), len(kept.examples.mistakes)) == (0, 5)
    assert all((e.disagreement, len(e.votes)) == (None, 1) for e in kept.examples.mistakes)
    assert kept.rows == plain.rows
    assert "examples" not in (report_folder / "plain.json").read_text()


def test_answers_are_spread_over_the_data_and_show_a_wrong_one_that_is_held_back(report_folder):
    """Decisions equal the rule of the threshold, recomputed from saved predictions."""
    out, saved_path = report_folder / "decided.json", report_folder / "decided.p.st"
    options = ("--threshold-for", "risk<=0.5", "--guarantee", "accepted-and-wrong", "--keep-examples", "1")
    model = ("eval", f"{report_folder}/pair.st", "--data", DATA, "--name", "pair", *QUICK)
    assert main([*model, *options, "--save-predictions", str(saved_path), "-o", str(out)]) == 0

    report, saved = Report.read(out), SavedPredictions.load(saved_path)
    rule, labels = report.rows[0].threshold, saved.labels["id"].numpy()
    mean = saved.log_probs["pair"]["id"].double().exp().mean(0).numpy()
    accepted, wrong = -mean.max(1) < rule.below, mean.argmax(1) != labels
    held_back = np.flatnonzero(wrong & ~accepted)
    assert 0 < accepted.sum() < len(labels)
    assert len(held_back) > 0
    evenly, first = [0, 14, 29, 44, 59], int(held_back[0])
    places = evenly if first in evenly else [*evenly[:-1], first]
    digits = open_data(DATA)
    assert [e.name for e in report.examples.answers] == [
        f"row {digits.key(i)}" for i in dict.fromkeys(places)
    ]
    assert [e.accepted for e in report.examples.answers] == [bool(accepted[i]) for i in dict.fromkeys(places)]
    assert all(e.accepted is None for e in Report.read(report_folder / "pair.json").examples.answers)
    assert len(Report.read(report_folder / "pair.json").examples.answers) == 5


def test_accuracy_by_class_is_of_the_same_classes_in_every_row(report_folder):
    saved, report = SavedPredictions.load(report_folder / "p.st"), Report.read(report_folder / "plain.json")
    labels = saved.labels["id"]

    shown = [[c.index for c in row.by_class.classes] for row in report.rows]
    assert shown[0] == shown[1]
    assert sorted(shown[0]) == labels.unique().tolist()
    for row in report.rows:
        predicted = saved.log_probs[row.name]["id"].double().exp().mean(0).argmax(1)
        for c in row.by_class.classes:
            of = labels == c.index
            assert (c.name, c.count, c.hits) == (
                str(c.index),
                int(of.sum()),
                int((predicted[of] == c.index).sum()),
            )
        wrong = int((predicted != labels).sum())
        assert sum(c.count - c.hits for c in row.by_class.classes) == wrong
        assert sum(c.count for c in row.by_class.confusions) <= wrong


def test_images_in_memory_stay_as_they_are(tmp_path):
    """Thumbnails are resized copies."""
    rgb = base(variant("class-token"))
    rgb.save(tmp_path / "m.st")
    folder = tmp_path / "d" / "0"
    folder.mkdir(parents=True)
    drawn = np.random.default_rng(0).integers(0, 256, (3, 300, 200, 3), dtype=np.uint8)
    for i, pixels in enumerate(drawn):
        Image.fromarray(pixels).save(folder / f"{i}.png")
    out = tmp_path / "r.json"
    assert (
        main(
            [
                "eval",
                str(tmp_path / "m.st"),
                "--data",
                f"{tmp_path}/d::classes-by=position",
                *QUICK,
                "-o",
                str(out),
                "--keep-examples",
                "9",
            ]
        )
        == 0
    )

    report = Report.read(out)
    for example in report.examples.mistakes:
        assert example.name in {f"0/{i}.png" for i in range(3)}
        assert Image.open(io.BytesIO(base64.b64decode(example.picture))).size == (64, 96)
    assert str(tmp_path) not in out.read_text()


def test_of_texts_the_texts_are_kept(tmp_path):
    save_text_model(variant("transformers-bert-plain"), tmp_path / "bert")
    long = " ".join(["the cat sat on a mat"] * 60)
    texts = ["the cat sat", long, "a mat"]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": t, "label": 0}) + "\n" for t in texts))
    out = tmp_path / "r.json"
    assert (
        main(
            [
                "eval",
                str(tmp_path / "bert"),
                "--data",
                f"{tmp_path}/t.jsonl",
                *QUICK,
                "-o",
                str(out),
                "--keep-examples",
                "9",
            ]
        )
        == 0
    )

    mistakes = Report.read(out).examples.mistakes
    right = sum(c.hits for c in Report.read(out).rows[0].by_class.classes)
    assert len(mistakes) == 3 - right
    for example in mistakes:
        text = texts[int(example.name.removeprefix("row "))]
        assert example.picture is None
        assert example.text == text or (len(example.text) == 400 and example.text.endswith(text[-200:]))


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        (["3"], "`--keep-examples`: no report keeps them", "add `-o report.json`, or `--json`"),
        (
            ["101", "-o", "r.json"],
            "`--keep-examples`: input should be less than or equal to 100",
            "see `hydractl eval --help`",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(report_folder, capsys, options, said, hint):
    assert main(["eval", str(report_folder / "m0.st"), "--data", DATA, "--keep-examples", *options]) == 2

    err = capsys.readouterr().err
    assert said in err
    assert hint in err
