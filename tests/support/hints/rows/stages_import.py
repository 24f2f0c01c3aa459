"""Hints of `hydractl/importing/` and `hydractl/stages/importing/`."""

from __future__ import annotations

import argparse
import io
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.hints.rows.stages_prune import edit
from support.hints.table import Row

if TYPE_CHECKING:
    import torch

SIZES = "img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=3,num_heads=4"
TINY = f"vit_tiny_patch16_224::{SIZES}"
IMPORT = "import w.pth --arch timm -o o.st"
SAVED = IMPORT.replace("w.pth", "x.pth")
LABELS = "--labels a,b,c,d,e,f,g"


def save(make: Callable[[dict[str, torch.Tensor]], object], path: str = "x.pth") -> None:
    """Save what a function makes of the weights in the folder `timm`."""
    import torch
    from safetensors.torch import load_file

    saved = make(load_file("timm/model.safetensors"))
    Path(path).unlink(missing_ok=True)
    torch.save(saved, path)


def renamed(state: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Return weights with another prefix."""
    return {
        new + name.removeprefix(old) if name.startswith(old) else name: tensor
        for name, tensor in state.items()
    }


def prefixed(state: dict[str, Any], *prefixes: str) -> dict[str, Any]:
    """Return weights under each of several prefixes."""
    return {f"{prefix}.{name}": tensor for prefix in prefixes for name, tensor in state.items()}


def _integers(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"head.weight": state["head.weight"].char()}


def _sparse(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"head.weight": state["head.weight"].to_sparse()}


def _headless(state: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in state.items() if not name.startswith("head.")}


def _module(_: object) -> object:
    import torch

    return torch.nn.Linear(2, 2)


def _script() -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer releases of torch deprecate scripts
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "x.pth")


def _compressed() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", bytes(200_000_000))
    Path("x.pth").write_bytes(content.getvalue())


def _script_options(state: dict[str, Any], **options: object) -> dict[str, Any]:
    """Return a checkpoint as timm's training script saves it."""
    model = {"model": "vit_tiny_patch16_224", "model_kwargs": {}, "num_classes": 7}
    numbers = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 32, "depth": 3, "num_heads": 4}
    model["model_kwargs"] = numbers
    return {"state_dict": state, "args": argparse.Namespace(**{**model, **options})}


mend_plain = partial(save, lambda state: state)
ROWS = (
    Row(
        "for example `--rename fc=head`",
        f"{SAVED} --rename fc",
        f"{SAVED} --rename fc=head",
        prepare=partial(save, lambda state: renamed(state, "head.", "fc.")),
    ),
    Row(
        "leave out `--tokenizer`",
        "import words/model.safetensors --arch words --tokenizer words -o o.st",
        "import words/model.safetensors --arch words -o o.st",
    ),
    Row(
        "put `{}` or `{}` into the name, before its suffix: `-o '{}.st'`, `-o 'base-{}.st'`",
        "import w.pth old.pth --arch timm -o o.st",
        "import w.pth old.pth --arch timm -o 'base-{i}.st'",
    ),
    Row(
        "`--weights-key {}` imports those",
        SAVED,
        f"{SAVED} --weights-key teacher",
        prepare=partial(save, lambda state: prefixed(state, "student", "teacher")),
    ),
    Row(
        "add `--num-classes {}`, or `num_classes={}` to the options of `--arch`",
        f"import w.pth --arch {TINY} -o o.st",
        f"import w.pth --arch {TINY},num_classes=7 -o o.st",
    ),
    Row(
        "check `--arch`: the weights may be of another architecture, or need other options (`--arch NAME::key=value`)",
        "import w.pth --arch vit_tiny_patch16_224 -o o.st",
        f"import w.pth --arch {TINY},num_classes=7 -o o.st",
    ),
    Row(
        "if it has no classifier, `--num-classes N` adds a random one, which `finetune` must train",
        f"import x.pth --arch {TINY} -o o.st",
        f"import x.pth --arch {TINY} --num-classes 3 -o o.st",
        prepare=partial(save, _headless),
    ),
    Row(
        "quantized weights cannot be pruned; import the weights from before quantization",
        SAVED,
        IMPORT,
        prepare=partial(save, _integers),
    ),
    Row(
        "the model may have been trained on another image size: `--arch NAME::img_size=N`",
        f"import w.pth --arch {TINY.replace('img_size=8', 'img_size=16')} --num-classes 7 -o o.st",
        f"import w.pth --arch {TINY} --num-classes 7 -o o.st",
    ),
    Row(
        "{}`--head-seed 0` ignores it and makes a random classifier",
        SAVED,
        f"{SAVED} --rename fc=head",
        prepare=partial(save, lambda state: renamed(state, "head.", "fc.")),
    ),
    Row(
        "`import` reads what `torch.save(model.state_dict(), path)` writes",
        SAVED,
        SAVED,
        prepare=partial(save, lambda state: [*state.values()]),
        mend=mend_plain,
    ),
    Row("check the path", "import zzzzzzzz.pth --arch timm -o o.st", IMPORT),
    Row(
        "copy or download it again",
        SAVED,
        SAVED,
        files={"x.pth": ""},
        mend=mend_plain,
    ),
    Row(
        "copy or download it again; `import` reads what `torch.save` writes, and safetensors",
        SAVED,
        SAVED,
        prepare=lambda: Path("x.pth").write_bytes(Path("old.pth").read_bytes()[:-100]),
        mend=mend_plain,
    ),
    Row(
        "copy or download it again",
        SAVED,
        SAVED,
        prepare=lambda: Path("x.pth").write_bytes(Path("w.pth").read_bytes()[:-100]),
        mend=mend_plain,
    ),
    Row(
        "expected a state dict, at the top level or under one of {}",
        SAVED,
        SAVED,
        prepare=partial(save, lambda _: {"epoch": 3}),
        mend=partial(save, lambda state: {"epoch": 3, "state_dict": state}),
    ),
    Row(
        "give a file in it, for example `hydractl import {}`",
        "import timm --arch timm -o o.st",
        "import timm/model.safetensors --arch timm -o o.st",
    ),
    Row(
        "if you trust the file, save its tensors again: `torch.save(model.state_dict(), 'weights.pth')`",
        SAVED,
        SAVED,
        prepare=partial(save, _module),
        mend=mend_plain,
    ),
    Row(
        "if you trust the file: `torch.save(torch.jit.load(path).state_dict(), 'weights.pth')`",
        SAVED,
        SAVED,
        prepare=_script,
        mend=mend_plain,
    ),
    Row(
        "it has an exponential moving average: add `--ema` to import it",
        SAVED,
        f"{SAVED} --ema",
        prepare=partial(save, lambda state: {"state_dict_ema": state}),
    ),
    Row("leave out `--ema`", f"{IMPORT} --ema", IMPORT),
    Row(
        "quantized, sparse and empty weights cannot be pruned; import dense floating-point weights",
        SAVED,
        SAVED,
        prepare=partial(save, _sparse),
        mend=mend_plain,
    ),
    Row(
        "save it again without compression",
        SAVED,
        SAVED,
        prepare=_compressed,
        mend=mend_plain,
    ),
    Row(
        "there are tensors under {}: add `--weights-key {}` to import those",
        SAVED,
        f"{SAVED} --weights-key student",
        prepare=partial(save, lambda state: {"student": state}),
    ),
    Row(
        "use it directly with the other commands",
        "import base.st -o o.st",
        "inspect base.st",
    ),
    Row("write it to a file first", "import - --arch timm -o o.st", IMPORT),
    Row(
        "add `--arch NAME`, for example `--arch vit_small_patch16_224::num_classes=7`",
        "import w.pth -o o.st",
        f"import w.pth --arch {TINY},num_classes=7 -o o.st",
    ),
    Row(
        "add `--num-classes N` or `--labels a,b,c` for a random classifier",
        "import words/model.safetensors --arch words -o o.st",
        "import words/model.safetensors --arch words --labels a,b,c -o o.st",
        prepare=partial(edit, "words/config.json", architectures=["BertModel"]),
    ),
    Row(
        "give {}, one per class",
        f"{IMPORT} --num-classes 7 --labels a,b",
        f"{IMPORT} --num-classes 7 {LABELS}",
    ),
    Row(
        "its folder does: add `--arch {}`",
        "import timm/model.safetensors -o o.st",
        "import timm/model.safetensors --arch timm -o o.st",
    ),
    Row("leave it out", f"{IMPORT} --pooling mean", IMPORT),
    Row(
        "leave out `--num-classes` and `--labels`",
        "import clip/model.safetensors --arch siglip --num-classes 3 -o o.st",
        "import clip/model.safetensors --arch clip -o o.st",
    ),
    Row(
        "leave the option out to use the saved value; if that is wrong, save only the state dict",
        "import x.pth --arch vit_small_patch16_224 -o o.st",
        "import x.pth -o o.st",
        prepare=partial(save, _script_options),
    ),
    Row(
        "save only its weights, and give the rest as options: `torch.save(checkpoint['state_dict'], 'weights.pth')`",
        "import x.pth -o o.st",
        f"import x.pth --arch {TINY},num_classes=7 -o o.st",
        prepare=partial(save, lambda state: _script_options(state, crop_pct=9.0)),
        mend=mend_plain,
    ),
    Row(
        "add `--num-classes {}`, correct config.json in {}, or add `--head-seed 0` for a new classifier",
        f"{IMPORT} --num-classes 5",
        f"{IMPORT} --num-classes 7",
    ),
    Row(
        "give {}: `--labels` needs one name per class",
        f"import w.pth --arch {TINY} --labels a,b -o o.st",
        f"import w.pth --arch {TINY} {LABELS} -o o.st",
    ),
    Row("its tensors begin with {}", f"{IMPORT} --rename fc=head", f"{IMPORT} --rename head=head"),
    Row(
        "leave it out",
        "import clip/model.safetensors --arch clip --head-seed 0 -o o.st",
        "import clip/model.safetensors --arch clip -o o.st",
    ),
    Row(
        "{}, or `--head-seed 0` for a new classifier",
        f"import w.pth --arch {TINY} -o o.st",
        f"import w.pth --arch {TINY} --head-seed 0 -o o.st",
    ),
)
