"""Zero-shot models in every stage: both towers, classes named late, and no repeated forward passes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.data.batches import eval_batches
from hydractl.data.open_dataset import open_items
from hydractl.data.reference import DataRef
from hydractl.data.tokenize import encode_texts
from hydractl.errors import CheckpointError, DataError, UsageError
from hydractl.evaluation.options import NamedData, NamedModels
from hydractl.families.open_model import load_model, open_model
from hydractl.fusion.plan import zero_dropped
from hydractl.heads.budget import HeadBudget
from hydractl.manifest.head_mask import TowerKeep
from hydractl.manifest.header import Fate, Kind, Prompting
from hydractl.prediction.class_names import (
    DEFAULT_TEMPLATE,
    Classes,
    Naming,
    run_both_towers,
    set_classes,
    with_classes,
)
from hydractl.prediction.loaded_model import load
from hydractl.scoring.circuit import tower
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.prune.run import run_prune
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from hydractl.training.recipe import Recipe
from support.builders import base as classifier
from support.pairs import WORDS, pair, write_tokenizer
from support.predictions import SavedPredictions
from support.progress_log import ProgressLog

DATA, OTHERS = "digits::classes=0-4,limit=40", "digits::classes=9,limit=20"
NAMES = ("0", "1", "2", "3", "4")
RECIPE = Recipe(lr=(1e-3,), epochs=1)
TEMPLATES = ("a photo of a {label} .", "the big {label}", "drawing of the number {label}")
TOWER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SIGLIP_TEXT = TOWER | {"vocab_size": len(WORDS), "max_position_embeddings": 12, "projection_size": 32}
SIGLIP_VISION = TOWER | {"image_size": 8, "patch_size": 4}
PROCESSOR = {
    "image_processor_type": "SiglipImageProcessor", "do_resize": True, "size": {"height": 8, "width": 8},
    "do_rescale": True, "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3,
}  # fmt: skip
NAMED = Naming(names=NAMES, templates=TEMPLATES)
CLIP_AT_LEAST = pytest.mark.parametrize(
    "work", ["clip", pytest.param("siglip", marks=pytest.mark.more)], indirect=True, scope="module"
)
"""For tests in which the architecture does not matter: class names and refusals."""


@pytest.fixture(
    scope="module", params=["clip", pytest.param("siglip", marks=pytest.mark.more)]
)  # tests/contracts/test_forward.py compares both with transformers
def work(request, tmp_path_factory):
    """Folder with a base, scores, three members, and their hydras with stored classes and without."""
    folder = tmp_path_factory.mktemp(request.param)
    base = str(pair(request.param, folder).save(folder / "base.st"))
    score(base, folder / "scores.json", naming=NAMED)
    prune(base, folder / "scores.json", folder / "m{i}.st")
    fuse(folder, "named.st", naming=NAMED)
    fuse(folder, "bare.st")
    return folder


def score(base, out, **changes):
    given = {"data": DATA, "ood": OTHERS, "budget": HeadBudget(remove=6), "batch_size": 16} | changes
    return run_score(ScoreConfig(model=str(base), out=out, **given)).scores


def prune(base, scores, out, **changes):
    given = {"budget": HeadBudget(remove=4), "members": 3, "pool": 6, "seed": 1} | changes
    return run_prune(PruneConfig(model=str(base), scores=(scores,), out=out, **given))


def members(folder):
    return tuple(str(folder / f"m{i}.st") for i in range(3))


def fuse(folder, name, **changes):
    return run_fuse(FuseConfig(models=members(folder), out=folder / name, **changes))


def evaluate(model, folder, **changes):
    """Return a report, and the log-probabilities (M, N, C) of each row."""
    given = {"data": DataRef.parse(DATA), "latency": False, "bootstrap": 0, "batch_size": 16, "device": "cpu"}
    saved = folder / f"predictions-{len(list(folder.iterdir()))}.st"
    report = run_eval(EvalConfig(model=str(model), save_predictions=saved, **(given | changes)))
    found = SavedPredictions.load(saved).log_probs
    return report.document, found


def pixels(model_file, data=DATA):
    items = open_items(data, model_file.header.preprocess)
    return torch.cat(
        [batch.inputs for batch in eval_batches(items, model_file.header.preprocess, batch_size=16)]
    )


def reference_logits(path, naming=NAMED):
    """Return logits (B, C) and class embeddings (C, F) of a base or member, one forward pass per prompt."""
    model_file = open_model(str(path))
    model, preprocess = load_model(model_file), model_file.header.prompting.tokenization
    rows = []
    with torch.inference_mode():
        for name in naming.names:
            texts = [encode_texts([t.replace("{label}", name)], preprocess) for t in naming.templates]
            each = [model.run_tower("text", text)[0, 0] for text in texts]
            rows.append(F.normalize(torch.stack([F.normalize(x, dim=0) for x in each]).mean(0), dim=0))
        (images,) = model.run_tower("vision", pixels(model_file))
        classes = torch.stack(rows)
        logits = model.answer.logit_scale.exp() * images @ classes.T
        return logits if model.answer.logit_bias is None else logits + model.answer.logit_bias, classes


# --- classes and their embeddings ---------------------------------------------------------------------------------------


@pytest.mark.spread(cases=1)
@torch.inference_mode()
def test_a_class_is_the_mean_of_its_prompts_of_length_one(work):
    model_file = open_model(str(work / "base.st"))
    asked, settled = load_model(model_file), load_model(model_file)
    classes = NAMED.classes(model_file)
    run_both_towers(asked, model_file, classes)
    set_classes(settled, model_file, classes)
    logits, embeddings = reference_logits(work / "base.st")

    torch.testing.assert_close(settled.answer.class_embeddings, embeddings)
    torch.testing.assert_close(settled(pixels(model_file)), logits)
    torch.testing.assert_close(asked(pixels(model_file)), logits)


@pytest.mark.spread(cases=1)
@torch.inference_mode()
def test_a_hydra_stores_what_its_members_say_of_the_classes(work):
    model_file = open_model(str(work / "named.st"))
    hydra = load(work / "named.st")

    assert (model_file.header.labels, model_file.header.prompting.templates) == (NAMES, TEMPLATES)
    for answer, path in zip(hydra.answers, members(work), strict=True):
        _, embeddings = reference_logits(path)
        torch.testing.assert_close(answer.class_embeddings, embeddings)
    expected = torch.stack([reference_logits(path)[0] for path in members(work)])
    torch.testing.assert_close(hydra(pixels(model_file)).member_logits, expected)


@torch.inference_mode()
def test_images_and_texts_together_are_answered_as_the_library_does(work):
    model_file = open_model(str(work / "named.st"))
    texts = encode_texts(["a photo of a 3", "the"], model_file.header.prompting.tokenization)
    both = {"pixel_values": pixels(model_file), **texts}

    found = load(work / "named.st")(both).member_logits
    expected = torch.stack([load(path)(both) for path in members(work)])

    assert found.shape == (3, 40, 2)
    torch.testing.assert_close(found, expected)


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("kind", ["base", "member", "hydra"])
@torch.inference_mode()
def test_settled_models_run_no_text_tower(work, kind):
    path = {"base": work / "base.st", "member": members(work)[0], "hydra": work / "named.st"}[kind]
    model_file, model = open_model(str(path)), load(path)
    set_classes(model, model_file, NAMED.classes(model_file))
    model.tower("text").register_forward_hook(lambda *_: pytest.fail("the text tower ran"))

    model(pixels(model_file))


@torch.inference_mode()
def test_a_longer_prompt_beside_it_changes_no_class(work):
    """Prompts are padded to the longest; padding must not change embeddings."""
    model_file = open_model(str(work / "base.st"))
    alone = with_classes(model_file, Classes(names=("7", "8"), templates=("{label}",)))
    beside = with_classes(
        model_file, Classes(names=("7", "8", "a photo of the big number 9"), templates=("{label}",))
    )

    few, more = (m.checkpoint.tensors()["class_embeddings"] for m in (alone, beside))
    torch.testing.assert_close(more[:2], few)


@pytest.mark.more
@CLIP_AT_LEAST
def test_a_hydra_is_the_same_in_another_process(work, python):
    model_file = open_model(str(work / "named.st"))
    here = load(work / "named.st")(pixels(model_file)).logits
    save_file({"x": pixels(model_file)}, work / "pixels.safetensors")
    program = (
        "import sys, hydractl; from safetensors.torch import load_file, save_file\n"
        "hydra = hydractl.load(sys.argv[1]); x = load_file(sys.argv[2])['x']\n"
        "save_file({'logits': hydra(x).logits.detach()}, sys.argv[3])"
    )
    arguments = [work / "named.st", work / "pixels.safetensors", work / "logits.safetensors"]
    subprocess.run([python(), "-c", program, *map(str, arguments)], check=True, timeout=120)

    torch.testing.assert_close(load_file(work / "logits.safetensors")["logits"], here)


@pytest.mark.parametrize("told", [True, False])
@torch.inference_mode()
def test_a_siglip_sees_padding_unless_its_tokenizer_says_otherwise(tmp_path, told):
    """As in transformers, texts are padded to the maximum length, without a mask if the tokenizer makes none."""
    import transformers

    names = ["input_ids", *(["attention_mask"] if told else [])]
    library = transformers.SiglipModel(
        transformers.SiglipConfig(text_config=SIGLIP_TEXT, vision_config=SIGLIP_VISION)
    ).eval()
    special = {"pad_token": WORDS[0], "eos_token": WORDS[1]}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(write_tokenizer(tmp_path / "t.json")), model_input_names=names, **special
    )
    for part in (library, tokenizer):
        part.save_pretrained(tmp_path / "siglip")
    (tmp_path / "siglip" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    model_file = open_model(str(tmp_path / "siglip"))
    texts = ["a photo of a 3 .", "the"]

    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "siglip")(
        texts, padding="max_length", max_length=12, return_tensors="pt"
    )
    encoded_texts = encode_texts(texts, model_file.header.prompting.tokenization)
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    assert ("attention_mask" in encoded_texts) == ("attention_mask" in inputs) == told
    expected = library(pixel_values=images, **{n: inputs[n] for n in names}).logits_per_image
    torch.testing.assert_close(load_model(model_file)({"pixel_values": images, **encoded_texts}), expected)
    settled = load_model(model_file)
    set_classes(settled, model_file, Classes(names=tuple(texts), templates=("{label}",)))
    torch.testing.assert_close(settled(images), expected)


# --- score --------------------------------------------------------------------------------------------------------------


def masked_values(base, objective):
    """Return a function from masked heads (tower, layer, head) to the objective of the base."""
    model_file = open_model(str(base))
    labels = torch.tensor(open_items(DATA, model_file.header.preprocess).labels)
    inside, outside = (pixels(model_file, data) for data in (DATA, OTHERS))
    state, architecture = model_file.checkpoint.tensors(), model_file.header.architecture

    def value(gone):
        mask = {
            n: TowerKeep(
                num_heads=t.num_heads,
                keep=tuple(
                    tuple(h for h in range(t.num_heads) if (n, i, h) not in gone) for i in range(t.layers)
                ),
            )
            for n, t in architecture.towers.items()
        }
        masked = zero_dropped(model_file.family, architecture, mask, state)
        model = model_file.family.build(architecture, model_file.header.masks[0], masked)
        set_classes(model, model_file, NAMED.classes(model_file))
        with torch.inference_mode():
            ours, theirs = (model(x).double().softmax(-1) for x in (inside, outside))
        if objective == "nll":
            return ours.gather(1, labels[:, None]).log().mean().item()
        accuracy = (ours.argmax(-1) == labels).double().mean().item()
        ahead = ours.max(-1).values[:, None] - theirs.max(-1).values
        auroc = ((ahead > 0).double() + 0.5 * (ahead == 0)).mean().item()
        return accuracy if objective == "acc" else (accuracy + auroc) / 2

    return value


def naive(base, towers, budget, objective):
    """Run the greedy search with full passes of masked models; return removed heads and objectives."""
    value = masked_values(base, objective)
    heads = [(n, i, h) for n in ("text", "vision") if n in towers for i in range(2) for h in range(4)]
    gone, found = [], []
    for _ in range(budget):
        left = [head for head in heads if head not in gone]
        values = [value([*gone, head]) for head in left]
        found.append(max(values))
        gone.append(left[values.index(max(values))])
    return gone, found


CLIPS = ("acc", ()), ("avg", ("text",))
SIGLIPS = ("avg", ()), ("nll", ("vision",))
SEARCHES = {"clip": (*CLIPS, *SIGLIPS), "siglip": (*SIGLIPS, *CLIPS)}
"""Objectives and towers of circuits by architecture; default runs use the first two."""


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("number", [0, 1, *(pytest.param(i, marks=pytest.mark.more) for i in (2, 3))])
def test_circuits_are_those_of_whole_passes(work, tmp_path, number):
    objective, towers = SEARCHES[work.name.rstrip("0123456789")][number]
    ood = OTHERS if objective == "avg" else None
    found = score(work / "base.st", tmp_path / "s.json", given={"objective": objective}, ood=ood, towers=towers, naming=NAMED,
                  budget=HeadBudget(remove=2))  # fmt: skip
    gone, values = naive(work / "base.st", towers or ("text", "vision"), 2, objective)

    assert [(r.tower, r.layer, r.head) for r in found.removals] == gone
    assert [r.objective for r in found.removals] == pytest.approx(values, abs=1e-7)
    assert set(found.towers) == set(towers or ("text", "vision"))
    assert (found.options["classes"], found.options["templates"]) == (NAMES, TEMPLATES)


@CLIP_AT_LEAST
@pytest.mark.parametrize("method", ["taylor", "magnitude", "random"])
@pytest.mark.parametrize("towers", [(), ("vision",)])
def test_other_methods_score_the_same_towers(work, tmp_path, method, towers):
    found = score(work / "base.st", tmp_path / "s.json", method=method, ood=None, towers=towers,
                  budget=HeadBudget(keep_per_layer=2))  # fmt: skip

    assert set(found.towers) == set(towers or ("text", "vision"))
    assert all(len({*row}) > 1 for table in found.towers.values() for row in table.scores)


@CLIP_AT_LEAST
def test_classes_are_the_datas_where_nothing_else_names_them(work, tmp_path):
    found = score(work / "base.st", tmp_path / "s.json", budget=HeadBudget(remove=1))

    assert (found.options["classes"], found.options["templates"]) == (NAMES, (DEFAULT_TEMPLATE,))


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("max_memory", [None, 1 << 30])
def test_a_step_runs_the_vision_tower_once_a_batch_and_the_text_tower_once(
    work, tmp_path, monkeypatch, max_memory
):
    """With a memory limit, as on a GPU, the first batch of each data set also runs before the search."""
    seen, own = [], tower.iterate_layer_inputs

    def entering(tower, inputs, *known):
        seen.append(isinstance(inputs, dict))
        return own(tower, inputs, *known)

    monkeypatch.setattr(tower, "iterate_layer_inputs", entering)
    batches, tried = -(-40 // 16) + -(-20 // 16), 2 * (max_memory is not None)
    for towers in ((), ("vision",), ("text",)):
        seen.clear()
        score(
            work / "base.st",
            tmp_path / "s.json",
            budget=HeadBudget(remove=2),
            naming=NAMED,
            towers=towers,
            max_memory=max_memory,
            given={"search": "exact"},
            force=True,
        )

        # one pass of the whole model, and two passes if the search exchanges heads at the end
        passes = seen.count(False) // batches
        assert seen.count(False) == passes * batches + tried
        assert passes <= 3
        assert seen.count(True) in {2, passes + bool(tried)}


# --- prune --------------------------------------------------------------------------------------------------------------


@CLIP_AT_LEAST
def test_members_lose_heads_of_both_towers_as_sampled(work):
    masks = [open_model(path).header.masks[0] for path in members(work)]

    assert all(sum(8 - sum(map(len, keep.keep)) for keep in mask.values()) == 4 for mask in masks)
    assert len({json.dumps({n: k.keep for n, k in mask.items()}) for mask in masks}) == 3
    assert {name for mask in masks for name, keep in mask.items() if sum(map(len, keep.keep)) < 8} == {
        "text",
        "vision",
    }


@CLIP_AT_LEAST
def test_a_tower_that_scores_leave_out_keeps_its_heads(work, tmp_path):
    score(work / "base.st", tmp_path / "s.json", towers=("vision",), naming=NAMED)
    prune(work / "base.st", tmp_path / "s.json", tmp_path / "v{i}.st")

    for i in range(3):
        mask = open_model(str(tmp_path / f"v{i}.st")).header.masks[0]
        assert mask["text"].keep == ((0, 1, 2, 3),) * 2
        assert sum(map(len, mask["vision"].keep)) == 4


@pytest.mark.spread(cases=1)
def test_members_that_differ_in_images_only_share_their_classes(work, tmp_path):
    score(work / "base.st", tmp_path / "s.json", towers=("vision",), naming=NAMED)
    prune(work / "base.st", tmp_path / "s.json", tmp_path / "m{i}.st")
    fuse(tmp_path, "h.st", naming=NAMED)

    header = open_model(str(tmp_path / "h.st")).header
    assert header.plan.fates["class_embeddings"] == Fate.SHARED
    assert open_model(str(work / "named.st")).header.plan.fates["class_embeddings"] == Fate.GROUPED


# --- fuse and eval ------------------------------------------------------------------------------------------------------


@pytest.mark.spread(cases=1)
def test_a_hydra_is_its_members_together(work):
    _, one = evaluate(work / "named.st", work)
    _, apart = evaluate(
        members(work)[0], work, compare=(NamedModels(name="All", models=members(work)),), naming=NAMED
    )

    expected = apart["All"]["id"]
    torch.testing.assert_close(one["named"]["id"], expected)
    by_hands = torch.stack([reference_logits(path)[0] for path in members(work)]).log_softmax(-1)
    torch.testing.assert_close(expected.float(), by_hands)


@pytest.mark.more
@CLIP_AT_LEAST
def test_named_at_last_is_as_named_at_first(work):
    other = Naming(names=("4", "3", "2", "1", "0"), templates=("drawing of a {label}", "{label}"))
    fuse(work, "other.st", naming=other)

    _, refused = evaluate(work / "other.st", work)
    _, anew = evaluate(work / "named.st", work, naming=other)
    _, late = evaluate(work / "bare.st", work, naming=other)

    expected = refused["other"]["id"]
    torch.testing.assert_close(anew["named"]["id"], expected)
    torch.testing.assert_close(late["bare"]["id"], expected)


@CLIP_AT_LEAST
def test_templates_alone_keep_the_names(work):
    other = Naming(templates=("the {label}",))

    report, found = evaluate(work / "named.st", work, naming=other)
    _, expected = evaluate(work / "bare.st", work, naming=Naming(names=NAMES, templates=("the {label}",)))

    assert (report.options["classes"], report.options["templates"]) == (NAMES, ("the {label}",))
    torch.testing.assert_close(found["named"]["id"], expected["bare"]["id"])


@pytest.mark.more
@CLIP_AT_LEAST
def test_models_with_other_stored_classes_are_compared_once_classes_are_given(work):
    fuse(work, "far.st", naming=Naming(names=("7", "8"), templates=("{label}",)))
    rows = (NamedModels(name="Far", models=(str(work / "far.st"),)),)

    _, found = evaluate(work / "named.st", work, compare=rows, naming=NAMED)

    torch.testing.assert_close(found["Far"]["id"], found["named"]["id"])


@CLIP_AT_LEAST
def test_fusing_without_classes_warns_and_asks_later(work, tmp_path):
    progress_log = ProgressLog()
    run_fuse(FuseConfig(models=members(work), out=tmp_path / "bare.st"), progress_log)

    assert any(
        "the hydra has no class names yet: fuse with `--classes`, or give `--classes` to `eval" in warning
        for warning in progress_log.warnings
    )
    model_file = open_model(str(tmp_path / "bare.st"))
    assert (model_file.header.kind, model_file.header.labels, model_file.header.num_classes) == (
        Kind.HYDRA,
        (),
        0,
    )
    with pytest.raises(CheckpointError, match="no class names yet"):
        load(tmp_path / "bare.st")(pixels(model_file))


@CLIP_AT_LEAST
def test_a_classifier_may_stand_beside_a_zero_shot_model(work, tmp_path):
    classifier().save(tmp_path / "classifier.st")
    data = DataRef.parse("digits::classes=0-6,limit=40")
    bare = (NamedModels(name="Bare", models=(str(work / "bare.st"),)),)

    report, _ = evaluate(tmp_path / "classifier.st", work, data=data, compare=bare)

    assert [row.name for row in report.rows] == ["classifier", "Bare"]
    with pytest.raises(UsageError, match="has 7 classes, which are not the 5 given"):
        evaluate(tmp_path / "classifier.st", work, data=data, compare=bare, naming=NAMED)


@CLIP_AT_LEAST
def test_a_classifiers_own_names_go_before_the_datas(work, tmp_path):
    names = ("6", "5", "4", "3", "2", "1", "0")
    sample = classifier()
    replace(sample, header=sample.header.model_copy(update={"labels": names})).save(tmp_path / "c.st")
    rows = (NamedModels(name="Bare", models=(str(work / "bare.st"),)),)
    data = DataRef.parse("digits::classes=0-6,limit=40")

    report, _ = evaluate(tmp_path / "c.st", work, data=data, compare=rows)

    assert report.options["classes"] == names
    with pytest.raises(UsageError, match="which are not the 7 given"):
        evaluate(tmp_path / "c.st", work, data=data, compare=rows, naming=Naming(names=names[::-1]))


@CLIP_AT_LEAST
def test_ood_sets_and_conditions_work_as_for_any_model(work):
    report, _ = evaluate(work / "named.st", work, near=(NamedData.parse(f"nine={OTHERS}"),))

    assert 0 <= report.rows[0].ood["nine"]["auroc"].value <= 1
    assert report.rows[0].members == 3


# --- wrong inputs -------------------------------------------------------------------------------------------------------


@CLIP_AT_LEAST
def test_an_unknown_tower_is_refused(work, tmp_path):
    with pytest.raises(UsageError, match="no such tower") as error:
        score(work / "base.st", tmp_path / "s.json", towers=("speech",))
    assert "text, vision" in error.value.hint
    assert not [*tmp_path.iterdir()]


def test_classes_of_a_classifier_are_its_own(tmp_path):
    path = str(classifier().save(tmp_path / "c.st"))

    for run in (
        lambda: score(path, tmp_path / "s.json", naming=NAMED),
        lambda: run_fuse(FuseConfig(models=(path,), out=tmp_path / "h.st", naming=NAMED)),
        lambda: run_eval(
            EvalConfig(model=path, data=DataRef.parse(DATA), naming=Naming(templates=TEMPLATES))
        ),
    ):
        with pytest.raises(UsageError, match="already has classes"):
            run()
    assert [p.name for p in tmp_path.iterdir()] == ["c.st"]


@CLIP_AT_LEAST
def test_zero_shot_models_are_not_finetuned(work, tmp_path):
    data = DataRef.parse(DATA)
    with pytest.raises(UsageError, match="is a zero-shot model without classes to train on") as error:
        run_finetune(
            FinetuneConfig(
                model=str(work / "base.st"), train=data, val=data, out=tmp_path / "t.st", recipe=RECIPE
            )
        )
    assert "without training" in error.value.hint
    assert not [*tmp_path.iterdir()]


@CLIP_AT_LEAST
def test_names_that_are_not_the_datas_are_said(work, tmp_path):
    progress_log = ProgressLog()
    naming = Naming(names=("a", "an", "of", "big", "the"))
    config = ScoreConfig(model=str(work / "base.st"), out=tmp_path / "s.json", data=DATA, given={"objective": "acc"},
                         budget=HeadBudget(remove=1), naming=naming)  # fmt: skip
    run_score(config, progress_log)

    assert any("class" in warning for warning in progress_log.warnings)
    with pytest.raises(DataError, match="the data have `5`, `6`, `7`, `8`, `9`, the model has `a`, `an`"):
        run_score(replace(config, naming=Naming(names=("a", "an")), data="digits::classes=5-9", force=True))


@CLIP_AT_LEAST
def test_a_model_without_a_tokenizer_is_refused(tmp_path, work):
    sample = pair("clip", tmp_path)
    preprocess = sample.header.prompting.tokenization.model_copy(update={"tokenizer": None})
    bare = replace(
        sample, header=sample.header.model_copy(update={"prompting": Prompting(tokenization=preprocess)})
    )

    with pytest.raises(CheckpointError, match="without a tokenizer"):
        score(bare.save(tmp_path / "b.st"), tmp_path / "s.json")
    assert not (tmp_path / "s.json").exists()


@CLIP_AT_LEAST
def test_members_with_other_classes_are_not_fused(work, tmp_path):
    """Members never store classes, so only an edited file can differ."""
    model_file = with_classes(open_model(members(work)[0]), NAMED.classes(open_model(members(work)[0])))
    state, header = model_file.checkpoint.tensors(), model_file.header
    from support.builders import Sample

    named = Sample(header, state).save(tmp_path / "named.st")
    with pytest.raises(CheckpointError):
        run_fuse(FuseConfig(models=(str(named), members(work)[1]), out=tmp_path / "h.st"))
