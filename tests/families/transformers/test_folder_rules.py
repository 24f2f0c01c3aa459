"""Fields and files of transformers' folders that change outputs are honoured like in the library, or refused.

Each rule is tested with a folder that sets only this field.
"""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from hydractl.data.tokenize import encode_texts
from hydractl.errors import HydraError
from hydractl.families.open_model import load_model, open_model
from hydractl.families.tower import largest_difference
from hydractl.families.transformers.models import RULES
from hydractl.stages.inspect.config import InspectConfig
from hydractl.stages.inspect.run import run_inspect
from support.builders import over_classes
from support.text_folders import edit_config, save_text_model, save_tokenizer
from support.variants import VARIANTS

TEXTS = ("the cat sat", "a mat", "on on on the the the mat sat a cat")
BERT = next(v for v in VARIANTS if v.family == "transformers-bert")
BLOCK = "bert.encoder.layer.0.attention.self.query"
SENTENCE = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])]  # fmt: skip


def change_weights(change):
    def apply(folder):
        path = folder / "model.safetensors"
        tensors = load_file(path)
        tensors.update(change(tensors))
        save_file(tensors, path, metadata={"format": "pt"})

    return apply


def write(name, value):
    def apply(folder):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))

    return apply


def configure(**changes):
    return lambda folder: edit_config(folder, **changes)


def names(*labels):
    return {"id2label": {str(i): label for i, label in enumerate(labels)}, "label2id": None}


def one_logit(name):
    def apply(folder):
        configure(**names(name))(folder)
        change_weights(lambda tensors: {k: tensors[k][:1] for k in tensors if k.startswith("classifier.")})(
            folder
        )

    return apply


def shard(folder):
    """Add an index with a shard in which the classifier differs."""
    tensors = load_file(folder / "model.safetensors")
    other = {k: v + k.startswith("classifier") for k, v in tensors.items()}
    save_file(other, folder / "model-00001-of-00001.safetensors", metadata={"format": "pt"})
    table = dict.fromkeys(other, "model-00001-of-00001.safetensors")
    write("model.safetensors.index.json", {"metadata": {}, "weight_map": table})(folder)


def only_index(metadata):
    def apply(folder):
        shard(folder)
        (folder / "model.safetensors").unlink()
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps(json.loads(index.read_text()) | {"metadata": metadata}))

    return apply


def tokenizer(**changes):
    def apply(folder):
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return apply


LIBRARY = None
"""Expected result: the library's logits."""
BACKBONE = "backbone: "
"""Prefix of reasons for folders that only `finetune` accepts."""
CLASSIFIERS = {
    "quantized weights: 8-bit tensors, integers, scales": [
        (change_weights(lambda t: {f"{BLOCK}.weight": t[f"{BLOCK}.weight"].to(torch.int8)}), "has dtype I8"),
        (change_weights(lambda t: {f"{BLOCK}.weight": t[f"{BLOCK}.weight"].to(torch.float8_e4m3fn)}), "F8_E4M3"),
        (change_weights(lambda _: {f"{BLOCK}.SCB": torch.ones(32)}), "is a scale or packed weights"),
        (change_weights(lambda _: {f"{BLOCK}.weight_scale": torch.ones(1)}), "is a scale or packed weights"),
        (change_weights(lambda _: {f"{BLOCK}.weight.absmax": torch.ones(1)}), "is a scale or packed weights"),
        (change_weights(lambda _: {f"{BLOCK}.weight.quant_state.bitsandbytes__nf4": torch.ones(1)}), "is a scale"),
        (change_weights(lambda _: {f"{BLOCK}.qweight": torch.ones(1, dtype=torch.int32)}), "is a scale or packed weights"),
        (change_weights(lambda t: {f"{BLOCK}.weight_mask": torch.ones_like(t[f"{BLOCK}.weight"])}), "one of several"),
        (change_weights(lambda t: {"classifier.weight": t["classifier.weight"].to(torch.int32)}), "has dtype I32"),
    ],
    "tensors in a block that the class does not have": [
        (change_weights(lambda _: {f"{BLOCK}.lora_A.weight": torch.ones(2, 2)}), "has 1 tensor in its blocks"),
        (change_weights(lambda _: {f"{BLOCK}.unheard_of": torch.ones(2)}), "has 1 tensor in its blocks"),
    ],
    "`adapter_config.json` of peft": [(write("adapter_config.json", {"peft_type": "LORA"}), "contains an adapter")],
    "`model.safetensors` beside `model.safetensors.index.json`": [(shard, LIBRARY)],
    "`metadata` of `model.safetensors.index.json`": [
        (only_index({"total_size": "unknown", "dtype": "float16"}), LIBRARY),
        (only_index([1]), "metadata is not an object"),
        (only_index(None), "metadata is not an object"),
    ],
    "options of the type's configuration": [
        (configure(hidden_act="relu"), LIBRARY),
        (configure(layer_norm_eps=0.5), LIBRARY),
        (configure(unheard_of=3, output_attentions=True), LIBRARY),
    ],
    "`dtype`": [(configure(dtype="float32"), LIBRARY)],
    "`architectures` of a class without a classifier, weights with one": [
        (configure(architectures=["BertForMaskedLM"]), LIBRARY),
        (configure(architectures=["BertModel"]), LIBRARY),
        (configure(architectures=["BertForMultipleChoice"]), f"{BACKBONE}which is not a classifier"),
    ],
    "`tokenizer.json`, `tokenizer_config.json`, vocabularies": [
        (tokenizer(model_max_length=4), LIBRARY),
        (tokenizer(truncation_side="left", model_max_length=4), LIBRARY),
    ],
    "`quantization_config`, `compression_config`": [
        (configure(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}), "`bitsandbytes`"),
        (configure(compression_config={"format": "dense"}), "quantized"),
        (configure(quantization_config=None), LIBRARY),
    ],
    "`pruned_heads`": [(configure(pruned_heads={"0": [1]}), "an older transformers has removed heads"), (configure(pruned_heads={}), LIBRARY)],
    "`problem_type`": [
        (configure(problem_type="multi_label_classification"), LIBRARY),
        (configure(problem_type="regression"), f"{BACKBONE}`regression`"),
        (configure(problem_type="single_label_classification"), LIBRARY),
        (configure(problem_type="multi_label_classification", architectures=["BertModel"]), LIBRARY),
    ],
    "`num_labels`, number of `id2label`": [
        (one_logit("score"), LIBRARY),
        (one_logit("1"), LIBRARY),
        (one_logit("LABEL_0"), LIBRARY),
        (configure(num_labels=3), f"{BACKBONE}`num_labels` is 3, but `id2label` has 7"),
    ],
    "`id2label`": [
        (configure(**names(*"gfedcba")), LIBRARY),
        (configure(id2label=[*"abcdefg"]), "is not an object"),
        (configure(id2label={str(i + i // 3): str(i) for i in range(7)}), "none with the number 3"),
    ],
    "two classes of one name in `id2label`": [(configure(**names(*"abcdefa")), LIBRARY)],
    "`architectures`, `auto_map`: a class that transformers does not have": [
        (configure(architectures=["MyBert"], auto_map={"AutoModel": "my.MyBert"}), f"{BACKBONE}classifier would be lost"),
    ],
    "`modules.json` of sentence-transformers": [(write("modules.json", SENTENCE), LIBRARY)],
    "`1_Pooling/config.json`": [(write("1_Pooling/config.json", {"pooling_mode": "max"}), LIBRARY)],
    "`default_prompt_name` of `config_sentence_transformers.json`": [
        (write("config_sentence_transformers.json", {"default_prompt_name": "query"}), LIBRARY)
    ],
    "`sentence_bert_config.json`": [(write("sentence_bert_config.json", {"max_seq_length": 3}), LIBRARY)],
    "`model_head.pkl` of SetFit": [(write("model_head.pkl", "cos"), f"{BACKBONE}a pickle")],
}  # fmt: skip
CASES = [
    pytest.param(change, answer, id=f"{name}-{i}")
    for name, cases in CLASSIFIERS.items()
    for i, (change, answer) in enumerate(cases)
]


def test_every_rule_has_a_folder():
    elsewhere = {"`preprocessor_config.json`"}  # `test_vision.py` tests the fields of this file
    assert {rule.name for rule in RULES} == CLASSIFIERS.keys() | elsewhere


@pytest.mark.parametrize(("change", "answer"), CASES)
def test_a_field_alone_is_honoured_as_the_library_does_or_refused(tmp_path, change, answer):
    save_text_model(BERT, tmp_path)
    change(tmp_path)
    if answer is LIBRARY:
        check_answers(tmp_path)
        return
    reason = answer.removeprefix(BACKBONE)
    with pytest.raises(HydraError, match=reason) as caught:
        open_model(str(tmp_path))
    assert caught.value.exit_code == 3
    if answer == reason:
        with pytest.raises(HydraError, match=reason):
            open_model(str(tmp_path), backbone=True)
    else:
        backbone = open_model(str(tmp_path), backbone=True)
        assert reason in backbone.lacks
        assert not [name for name in backbone.checkpoint.specs if name.startswith("classifier.")]


def check_answers(folder):
    """Compare class names and logits with the library's, computed for single texts."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        rows = [model(**tokens(text, return_tensors="pt", truncation=True)).logits for text in TEXTS]
        model_file = open_model(str(folder))
        found = load_model(model_file)(encode_texts(TEXTS, model_file.header.preprocess))
    assert (
        largest_difference(
            found, over_classes(torch.cat(rows), multi_label=model_file.header.architecture.task.by_label)
        )
        <= 1e-5
    )
    labels = tuple(model.config.id2label[i] for i in range(model.config.num_labels))
    of_one_logit = {("score",): ("not score", "score"), ("1",): ("0", "1")}
    assert model_file.header.labels == (() if labels[0] == "LABEL_0" else of_one_logit.get(labels, labels))


POOLING = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
ENCODERS = [
    ([], {}, "by a pooling that no file names", ""),
    ([], {"pooling_mode_mean_tokens": True}, None, "mean"),
    ([], {"pooling_mode": "mean"}, None, "mean"),
    ([], {"pooling_mode_cls_token": True}, None, "own"),
    ([], {"pooling_mode_max_tokens": True}, "pools its tokens by `max`", ""),
    ([], {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "`mean`, `cls`", ""),
    (["Normalize"], {"pooling_mode_mean_tokens": True}, None, "mean"),
    (["Dense"], {"pooling_mode_mean_tokens": True}, "module `Dense`, which would be lost", ""),
    (["Pooling"], {"pooling_mode_mean_tokens": True}, "has 2 poolings", ""),
]


@pytest.mark.parametrize(("modules", "pooling", "reason", "pools"), ENCODERS)
def test_a_folder_of_sentence_transformers(tmp_path, modules, pooling, reason, pools):
    encoder(tmp_path, [*SENTENCE, *({"path": name, "type": f"s.{name}"} for name in modules)], pooling)
    if reason is not None:
        with pytest.raises(HydraError, match=reason):
            open_model(str(tmp_path), backbone=True)
        return
    model_file = open_model(str(tmp_path), backbone=True)
    assert (model_file.pools or "own") == pools
    assert bool(model_file.notes) == ("Normalize" in modules)


def encoder(folder, modules, pooling):
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37, vocab_size=61
    )
    transformers.BertModel(config).save_pretrained(folder)
    save_tokenizer(folder)
    write("modules.json", modules)(folder)
    write("1_Pooling/config.json", pooling)(folder)


def test_texts_are_cut_and_lowercased_as_sentence_transformers_does(tmp_path):
    encoder(tmp_path, SENTENCE, {"pooling_mode": "mean"})
    write("sentence_bert_config.json", {"max_seq_length": 4, "do_lower_case": True})(tmp_path)
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path)
    preprocess = open_model(str(tmp_path), backbone=True).header.preprocess
    text = "The CAT sat on a mat"
    expected = tokens(text.lower(), truncation=True, max_length=4)["input_ids"]
    assert encode_texts([text], preprocess)["input_ids"].tolist() == [expected]
    write("config_sentence_transformers.json", {"default_prompt_name": "query"})(tmp_path)
    assert "`query`" in open_model(str(tmp_path), backbone=True).notes[0]
    write("sentence_bert_config.json", {"max_seq_length": "long"})(tmp_path)
    with pytest.raises(HydraError, match="max_seq_length"):
        open_model(str(tmp_path), backbone=True)


@pytest.mark.parametrize("inner", ["0_Transformer", "checkpoint-500"])
def test_a_folder_around_a_model_names_it(tmp_path, inner):
    for name in {inner, "checkpoint-90"} if inner.startswith("check") else {inner}:
        save_text_model(BERT, tmp_path / name)
    with pytest.raises(HydraError, match="has no model, but its sub-folder") as caught:
        open_model(str(tmp_path))
    assert str(tmp_path / inner) in caught.value.hint
    write("1_Pooling/config.json", {"pooling_mode_mean_tokens": True})(tmp_path)
    with pytest.raises(HydraError, match="has no model, but its sub-folder") as caught:
        open_model(str(tmp_path))
    assert "`--pooling mean`" in caught.value.hint


def test_a_classifier_of_another_name_says_how_to_read_it(tmp_path):
    save_text_model(BERT, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name.replace("classifier.", "fc."): tensor for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(HydraError, match="lacks 2 tensors of its classifier") as caught:
        open_model(str(tmp_path))
    assert (
        f"`hydractl import {path} --arch {tmp_path} --rename fc=classifier -o base.st`" in caught.value.hint
    )


def test_an_adapter_alone_says_what_to_do(tmp_path):
    write("adapter_config.json", {"peft_type": "LORA"})(tmp_path)
    save_file({"base_model.model.x.lora_A.weight": torch.ones(2, 2)}, tmp_path / "adapter_model.safetensors")
    for reference in (tmp_path, tmp_path / "adapter_model.safetensors"):
        with pytest.raises(HydraError, match="contains an adapter") as caught:
            open_model(str(reference))
        assert "merge_and_unload" in caught.value.hint


def test_inspect_says_the_same(tmp_path):
    save_text_model(BERT, tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": "gptq"})
    assert "quantized" in run_inspect(InspectConfig(files=(str(tmp_path),))).hint
