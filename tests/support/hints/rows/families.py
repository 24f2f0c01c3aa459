"""Hints of `hydractl/families/`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.hints.rows.stages_import import renamed
from support.hints.rows.stages_prune import edit
from support.hints.table import Row

if TYPE_CHECKING:
    import torch

PLAIN = "plain.safetensors"
TINY = "vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4"
PRUNE = "prune timm --strategy random --keep-heads 3 -o o.st"
VIT_FILE = "vit/preprocessor_config.json"
PREDICT_VIT, PREDICT_WORDS = "predict vit images", "predict bert texts.jsonl"
OPENCLIP_TEST = "tests/families/openclip/test_openclip.py"


def rewrite(path: str, change: Callable[[dict[str, torch.Tensor]], dict[str, Any]]) -> None:
    """Change the tensors of a safetensors file; its metadata are copied."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = change(load_file(path))
    Path(path).unlink()
    save_file(tensors, path, metadata)


def edit_header(path: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of a checkpoint in place; a copy of the file is saved beside it."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    header = json.loads(metadata["hydractl"])
    change(header)
    shutil.copy(path, f"{path}.saved")
    tensors = load_file(path)
    Path(path).unlink()
    save_file(tensors, path, metadata | {"hydractl": json.dumps(header)})


def restore(path: str) -> None:
    """Undo `edit_header`."""
    shutil.copy(f"{path}.saved", path)


def nested(path: str, key: str, **changes: object) -> None:
    """Change keys of an object within a JSON file; None deletes a key."""
    document = json.loads(Path(path).read_text())
    inner = document[key] | changes
    edit(path, **{key: {name: value for name, value in inner.items() if value is not ...}})


def _with_extra(state: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {f"student.{name}": tensor for name, tensor in state.items()} | {"loss.weight": torch.ones(1)}


def _in_layer(state: dict[str, Any]) -> dict[str, Any]:
    """Return a text classifier without prefix `bert.`, with an adapter in its first block."""
    import torch

    adapter = {"encoder.layer.0.attention.self.query.lora_A.weight": torch.ones(2, 32)}
    return renamed(state, "bert.", "") | adapter


def _without_layer(state: dict[str, Any]) -> dict[str, Any]:
    return {name: t for name, t in renamed(state, "bert.", "").items() if ".layer.0.output." not in name}


def _sentence_folder() -> None:
    edit("words/config.json", architectures=["BertModel"])
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": ""} for kind in ("Transformer", "Dense")
    ]
    Path("words/modules.json").write_text(json.dumps(modules))


def _flat() -> None:
    document = json.loads(Path("timm/config.json").read_text())
    write("timm/config.json", {"architecture": document["architecture"], "num_classes": 7, "colour": 1})


def write(path: str, document: object) -> None:
    """Replace a JSON file."""
    Path(path).unlink(missing_ok=True)
    Path(path).write_text(json.dumps(document))


def _mend_flat() -> None:
    document = {"architecture": "vit_tiny_patch16_224", "num_classes": 7, "model_args": {}}
    options = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 32, "depth": 3, "num_heads": 4}
    write(
        "timm/config.json",
        document | {"model_args": options, "pretrained_cfg": {"mean": [0.5], "std": [0.5]}},
    )


def _delete_tokenizer() -> None:
    for path in Path("bert").glob("*token*"):
        path.unlink()


ROWS = (
    Row(
        "if `{}` is its classifier: {}",
        PRUNE,
        "import timm/model.safetensors --arch timm --rename fc=head -o b.st",
        prepare=partial(rewrite, "timm/model.safetensors", lambda state: renamed(state, "head.", "fc.")),
    ),
    Row(
        "its tensors have a prefix, which `import` strips: {}",
        PRUNE,
        "import timm/model.safetensors --arch timm -o b.st",
        prepare=partial(rewrite, "timm/model.safetensors", _with_extra),
    ),
    Row(
        "`hydractl finetune {} --train TRAIN --val VAL -o base.st` gives it a classifier for your classes",
        "predict words texts.jsonl",
        "finetune words --train texts.jsonl --val texts.jsonl --steps 1 -o b.st",
        prepare=partial(edit, "words/config.json", architectures=["BertModel"]),
    ),
    Row(
        "add `--arch NAME`, for example `--arch vit_small_patch16_224::num_classes=7`",
        f"prune {PLAIN} --strategy random --keep-heads 3 -o o.st",
        f"prune {PLAIN} --strategy random --keep-heads 3 -o o.st --arch {TINY},num_classes=7",
    ),
    Row(
        "the file may have been edited or quantized; hydractl needs the original floating-point weights",
        f"prune {PLAIN} --strategy random --keep-heads 3 -o o.st --arch {TINY},num_classes=7",
        "prune base.st --strategy random --keep-heads 3 -o o.st",
        prepare=partial(rewrite, PLAIN, lambda state: state | {"cls_token": state["cls_token"].int()}),
    ),
    Row(
        "the weights may be of another architecture, or have another number of classes",
        f"prune {PLAIN} --strategy random --keep-heads 3 -o o.st --arch {TINY},num_classes=5",
        f"prune {PLAIN} --strategy random --keep-heads 3 -o o.st --arch {TINY},num_classes=7",
    ),
    Row(
        "store plain floating-point weights: in transformers `model.dequantize().save_pretrained(FOLDER)`; after PyTorch's pruning "
        "`torch.nn.utils.prune.remove`",
        PRUNE,
        PRUNE,
        prepare=partial(
            rewrite, "timm/model.safetensors", lambda state: state | {"head.bias": state["head.bias"].char()}
        ),
        mend=partial(
            rewrite, "timm/model.safetensors", lambda state: state | {"head.bias": state["head.bias"].float()}
        ),
    ),
    Row(
        "`pip install 'hydractl[openclip]'`",
        test=f"{OPENCLIP_TEST}::test_without_open_clip_the_extra_is_named",
    ),
    Row(
        "did you mean {}?",
        "python from hydractl.families.open_model import open_model; open_model('arch:openclip:ViT-B-33')",
        "python from hydractl.families.open_model import open_model; open_model('arch:openclip:ViT-B-32')",
    ),
    Row(
        "supported: open_clip's own VisionTransformer and TextTransformer, as in ViT-B-32 or ViT-L-14, and vision transformers of "
        "timm, as in ViT-B-16-SigLIP",
        "python from hydractl.families.open_model import open_model; open_model('arch:openclip:RN50')",
        "python from hydractl.families.open_model import open_model; open_model('arch:openclip:ViT-B-32')",
    ),
    Row(
        "supported: {}",
        test=f"{OPENCLIP_TEST}::test_a_malformed_configuration_is_refused",
    ),
    Row(
        "`hydractl import WEIGHTS --arch {} -o base.st` converts its weights to a base",
        "finetune arch:./timm --train texts.jsonl --val texts.jsonl -o o.st",
        "import timm/model.safetensors --arch ./timm -o b.st",
    ),
    Row(
        "a newer version may support it: `{} --upgrade`",
        "prune base.st --strategy random --keep-heads 3 -o o.st",
        "prune base.st --strategy random --keep-heads 3 -o o.st",
        prepare=partial(edit_header, "base.st", lambda h: h["architecture"].update(family="zzzzzz")),
        mend=partial(restore, "base.st"),
    ),
    Row(
        'add the `"model_type"` of the model in transformers, for example `"bert"`, or use the folder written by `save_pretrained`',
        PREDICT_WORDS,
        PREDICT_WORDS,
        prepare=partial(write, "bert/config.json", {"hidden_size": 32}),
        mend=lambda: shutil.copy("multi/config.json", "bert/config.json"),
    ),
    Row(
        "check {}",
        "finetune arch:vit_tiny_patch16_224::depth=x --train texts.jsonl --val texts.jsonl -o o.st",
        f"prune {PLAIN} --strategy random --keep-heads 3 -o o.st --arch {TINY},num_classes=7",
    ),
    Row("give its folder: `{}`", "predict arch:timm/config.json images", "predict timm images"),
    Row(
        "supported families: {}",
        "predict bert texts.jsonl",
        "predict multi texts.jsonl",
        prepare=partial(edit, "bert/config.json", model_type="zzzzzz"),
    ),
    Row(
        'add `"pretrained_cfg": {}` with the preprocessing of the model',
        PRUNE,
        PRUNE,
        prepare=_flat,
        mend=_mend_flat,
    ),
    Row(
        "correct `input_size`, or `img_size` in `model_args`",
        PRUNE,
        PRUNE,
        prepare=partial(
            nested, "timm/config.json", "pretrained_cfg", input_size=[1, 16, 16], fixed_input_size=False
        ),
        mend=partial(nested, "timm/config.json", "pretrained_cfg", input_size=[1, 8, 8]),
    ),
    Row(
        "leave it out for the architecture's default",
        PRUNE,
        PRUNE,
        prepare=partial(nested, "timm/config.json", "model_args", mlp_ratio=None),
        mend=partial(nested, "timm/config.json", "model_args", mlp_ratio=...),
    ),
    Row(
        'write `"model_args": {"global_pool": "{}", ...}` if the model was trained with it',
        PRUNE,
        PRUNE,
        prepare=partial(edit, "timm/config.json", global_pool="avg"),
        mend=partial(nested, "timm/config.json", "model_args", global_pool="avg", fc_norm=False),
    ),
    Row(
        "see `timm.list_models()`",
        "predict arch:zzzzzzzz images",
        "predict arch:vit_tiny_patch16_224 images",
    ),
    Row(
        "supported: timm's VisionTransformer, VisionTransformerDistilled, VisionTransformerRelPos, Beit and Eva",
        "predict arch:resnet18 images",
        "predict arch:vit_tiny_patch16_224 images",
    ),
    Row(
        "save only the encoder: `SentenceTransformer(FOLDER)[0].auto_model.save_pretrained(OTHER)`, and its tokenizer likewise",
        "finetune words --train texts.jsonl --val texts.jsonl --steps 1 -o b.st",
        "finetune words --train texts.jsonl --val texts.jsonl --steps 1 -o b.st",
        prepare=_sentence_folder,
        mend=lambda: Path("words/modules.json").unlink(),
    ),
    Row(
        'write it as `"id2label": {}`, with a name for every class',
        PREDICT_WORDS,
        PREDICT_WORDS,
        prepare=partial(edit, "bert/config.json", id2label=["a", "b"]),
        mend=partial(edit, "bert/config.json", id2label={"0": "a", "1": "b"}),
    ),
    Row(
        "config.json may belong to another model",
        PREDICT_WORDS,
        "predict multi texts.jsonl",
        prepare=partial(rewrite, "bert/model.safetensors", _without_layer),
    ),
    Row(
        "merge adapters into the weights first (`merge_and_unload()`), or check the architecture",
        PREDICT_WORDS,
        "predict multi texts.jsonl",
        prepare=partial(rewrite, "bert/model.safetensors", _in_layer),
    ),
    Row(
        "pip install --upgrade transformers",
        test="tests/families/transformers/test_hf_models.py::test_a_class_that_the_release_lacks_is_said",
    ),
    Row(
        "the width must be a multiple of the number of heads",
        "python from hydractl.families.open_model import open_model; open_model('arch:bert::hidden_size=30,num_attention_heads=4')",
        "python from hydractl.families.open_model import open_model; open_model('arch:bert::hidden_size=32,num_attention_heads=4')",
    ),
    Row(
        "there are {}",
        "python from hydractl.families.open_model import open_model; open_model('arch:bert::pooling=zzzz')",
        "python from hydractl.families.open_model import open_model; open_model('arch:bert::pooling=mean')",
    ),
    Row(
        "a text model needs `tokenizer.json` or its vocabulary in the folder of its weights: `tokenizer.save_pretrained(FOLDER)`",
        PREDICT_WORDS,
        PREDICT_WORDS,
        prepare=_delete_tokenizer,
        mend=lambda: [shutil.copy(path, "bert") for path in Path("multi").glob("*token*")],
    ),
    Row(
        "correct `size` or `crop_size` in preprocessor_config.json",
        PREDICT_VIT,
        PREDICT_VIT,
        prepare=partial(edit, VIT_FILE, size={"height": 16, "width": 16}),
        mend=partial(edit, VIT_FILE, size={"height": 8, "width": 8}),
    ),
    Row(
        "correct `{}`, or move it away to use the usual preprocessing of such models",
        PREDICT_VIT,
        PREDICT_VIT,
        prepare=partial(edit, VIT_FILE, image_processor_type="Zzzz"),
        mend=lambda: Path(VIT_FILE).unlink(),
    ),
    Row(
        "supported: a `height` and a `width`, or a `shortest_edge` and a square crop",
        PREDICT_VIT,
        PREDICT_VIT,
        prepare=partial(edit, VIT_FILE, size={"shortest_edge": 8}),
        mend=partial(
            edit,
            VIT_FILE,
            do_center_crop=True,
            crop_size={"height": 8, "width": 8},
            image_processor_type="CLIPImageProcessor",
        ),
    ),
    Row(
        "supported: {}",
        PREDICT_VIT,
        PREDICT_VIT,
        prepare=partial(edit, VIT_FILE, image_processor_type="DonutImageProcessor"),
        mend=partial(edit, VIT_FILE, image_processor_type="ViTImageProcessor"),
    ),
    Row(
        "the crop must keep the same fraction of both sides, and no more than all of it",
        PREDICT_VIT,
        PREDICT_VIT,
        prepare=partial(
            edit,
            VIT_FILE,
            image_processor_type="DeiTImageProcessor",
            size={"height": 16, "width": 9},
            do_center_crop=True,
            crop_size={"height": 8, "width": 8},
        ),
        mend=partial(edit, VIT_FILE, size={"height": 9, "width": 9}),
    ),
    Row(
        'give them: `--classes cat,dog`, or in Python `hydractl.load(..., classes=["cat", "dog"])`',
        "python from hydractl.families.open_model import load_model, open_model; import torch; load_model(open_model('clip'))(torch.ones(1, 3, 12, 12))",
        "python import hydractl, torch; hydractl.load('clip', classes=['a', 'b'])(torch.ones(1, 3, 12, 12))",
    ),
)
