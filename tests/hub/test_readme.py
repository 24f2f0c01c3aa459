"""Pushes to a repository with an edited README: replaced and kept parts."""

from __future__ import annotations

import pytest
import yaml

import hydractl
from hydractl.errors import HubError
from hydractl.hub.card import BEGIN, END, Readme
from hydractl.hub.repository import Target, push
from hydractl.manifest.report import Report
from hydractl.runtime import digest_file
from support.builders import base
from support.pushes import Repository
from support.reports import write_report

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content", "ignore:the card names no licence")
OURS = {"library_name": "hydractl", "tags": ["hydractl", "hydra"], "license": "mit"}
NAME = "org/readme"


def metadata(card):
    return yaml.safe_load(card.split("---\n")[1])


def test_what_stands_outside_of_our_part_stays_to_the_letter():
    first = Readme.read(None).with_part(NAME, OURS, "# One")
    mine = first.replace(BEGIN, f"My *words*\r\n\r\nabove\n\n{BEGIN}").replace(END, f"{END}\n\nbelow")
    mine = mine.replace("license: mit", "license: mit # as asked\nlanguage: [en, de]")

    second = Readme.read(mine.encode()).with_part(NAME, OURS, "# Two")

    assert second == mine.replace("# One", "# Two")
    assert Readme.read(second.encode()).with_part(NAME, OURS, "# Two") == second


def test_a_readme_without_our_part_stays_above_it():
    made = Readme.read(b"---\nlicense: apache-2.0\nwidget: []\n---\n# By hand\n").with_part(
        NAME, OURS, "# Ours"
    )

    assert metadata(made) == {"widget": [], **OURS}
    assert made.endswith(f"---\n\n# By hand\n\n{BEGIN}\n\n# Ours\n\n{END}\n")
    assert Readme.read(b"# No metadata").with_part(NAME, OURS, "# Ours").count("# No metadata") == 1


def test_of_what_was_measured_nothing_of_a_former_model_stays():
    """Tags and results added by other people are kept."""
    old = {"name": NAME, "results": [1]}
    other = {"name": "theirs", "results": [2]}
    there = {
        "metrics": ["ece"],
        "pipeline_tag": "old",
        "model-index": [old, other],
        "tags": ["member", "mine"],
    }
    readme = Readme.read(f"---\n{yaml.safe_dump(there)}---\n".encode())

    assert metadata(readme.with_part(NAME, OURS, "")) == {
        **OURS,
        "model-index": [other],
        "tags": ["hydractl", "hydra", "mine"],
    }
    again = metadata(readme.with_part(NAME, {**OURS, "model-index": [{"name": NAME, "results": [3]}]}, ""))
    assert again["model-index"] == [{"name": NAME, "results": [3]}, other]


BROKEN = {
    "no text": (b"\xff\xfe", "is not UTF-8 text"),
    "no YAML": (b"---\na: [\n---\n", "has metadata that are not valid YAML"),
    "no table": (b"---\n- a\n---\n", "has metadata that are not a mapping"),
    "aliases": (
        b"---\na: &a [x]\nb: [*a, *a]\n---\n",
        ("has metadata with YAML aliases"),
    ),
    "one comment": (
        f"{BEGIN}\nours\n".encode(),
        ("does not have each of the comments `hydractl:begin` and `hydractl:end` once and in this order"),
    ),
    "comments turned round": (
        f"{END}\nours\n{BEGIN}\n".encode(),
        ("does not have each of the comments `hydractl:begin` and `hydractl:end` once and in this order"),
    ),
}


@pytest.mark.parametrize(("content", "text"), BROKEN.values(), ids=BROKEN)
def test_one_that_cannot_be_read_stops_the_push(hub, content, text):
    with hub() as served:
        served.repositories[NAME] = Repository(
            commits={"a" * 40: {"README.md": content}}, branches={"main": "a" * 40}
        )
        with pytest.raises(HubError, match=text) as caught:
            push(
                {"README.md": lambda there: Readme.read(there).with_part(NAME, OURS, "").encode()},
                Target(name=NAME, message="x"),
            )
        assert served.repositories[NAME].made == 0
    assert (
        "nothing was pushed; correct the file on the Hub and push again, or push to another repository"
        in caught.value.hint
    )


def pushed(model, **settings):
    return hydractl.push(hydractl.PushConfig(model=model, repository=NAME, **settings))


def test_a_card_that_was_edited_on_the_hub_keeps_the_edits(hub, tmp_path):
    """The repository's license and base model are kept if a push names none, also after network faults."""
    base().pruned((0, 1), (2,), (0,)).tuned(0).save(tmp_path / "m.st")
    report = write_report(tmp_path / "report.json", digest_file(tmp_path / "m.st"))
    said = {"license": "apache-2.0", "base_model": "timm/vit"}
    with hub(faults=0.2, seed=3) as served:
        pushed(tmp_path / "m.st", report=report, **said)
        repository = served.repositories[NAME]
        head = repository.branches["main"]
        card = repository.commits[head]["README.md"].decode()
        edited = card.replace("license: apache-2.0", "license: cc0-1.0\nlanguage: de").replace(
            END, f"{END}\n\nMine."
        )
        repository.commits[head]["README.md"] = edited.encode()

        told = [pushed(tmp_path / "m.st", report=report).unchanged for _ in range(2)]
        again = pushed(tmp_path / "m.st")

    found = metadata(again.card)
    assert told == [False, True]  # hydractl's statement about the license is replaced once.
    assert repository.files()["README.md"].decode() == again.card
    assert again.card.endswith(f"{END}\n\nMine.\n")
    assert (found["license"], found["language"], found["base_model"]) == ("cc0-1.0", "de", "timm/vit")
    assert "`cc0-1.0`, the licence of the base model." in again.card
    assert "[timm/vit](https://huggingface.co/timm/vit)" in again.card
    assert "model-index" in metadata(edited)
    assert "model-index" not in found
    assert Report.read(report).rows[1].name not in again.card
