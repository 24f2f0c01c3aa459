"""Program for a process with `fake_cuda`: print the device requests of steady forward passes, as JSON.

python -m support.launches FOLDER
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import torch

from hydractl.model_inputs import map_inputs
from hydractl.prediction.loaded_model import load
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.training.dropout import StepNoise
from support.builders import base
from support.fake_cuda import ALLOCATIONS, COPIES, LAUNCHES, WAITS, capture, steady
from support.variants import VARIANTS, Variant

if TYPE_CHECKING:
    from collections.abc import Callable

    from hydractl.model_inputs import Inputs
    from support.fake_cuda import Requests

LAYERS = 12
DEEP = {
    "vit": ("timm-vit", "class-token", {"depth": LAYERS}),
    "bert": ("transformers-bert", "plain", {"num_hidden_layers": LAYERS}),
    "decoder": ("transformers-decoder", "qwen3", {"num_hidden_layers": LAYERS}),
    "clip": (
        "transformers-clip",
        "plain",
        {"text.num_hidden_layers": LAYERS, "vision.num_hidden_layers": LAYERS},
    ),
}
KINDS = {"waits": WAITS, "copies": COPIES, "allocations": ALLOCATIONS}


def main() -> None:
    folder = Path(sys.argv[1])
    torch.backends.cudnn.enabled = False  # cuDNN is a separate library and missing in `fake_cuda`.
    # transformers reads the padding mask to skip masks without padding, but kernels here write no values.
    # While tracing, transformers assumes padding and reads nothing.
    with torch.inference_mode(), mock.patch("transformers.masking_utils.is_tracing", return_value=True):
        found = {name: of_family(name, folder) for name in DEEP}
        found["planted"] = known_requests(folder)
        found["generator"] = generator_is_left()
    print(json.dumps(found))


def of_family(name: str, folder: Path) -> dict[str, dict[str, object]]:
    """Return the requests of a library's model and of hydras, by model and batch size."""
    family, variant, options = DEEP[name]
    known = next(v for v in VARIANTS if (v.family, v.name) == (family, variant))
    single = base(Variant(family, f"{known.name}-deep", known.arch, known.options | options))
    found: dict[str, dict[str, object]] = {}
    layers = max(tower.layers for tower in single.header.architecture.towers.values())
    kept = [([(m,), (m, 3)] * layers)[:layers] for m in range(3)]
    samples = {
        "pruned": [single.pruned(*keep) for keep in kept],
        "tuned": [single.pruned(*keep).tuned(m, only=is_outside_embedding) for m, keep in enumerate(kept)],
    }
    models = {"single": single.library().to("cuda", torch.bfloat16)}
    for kind, members in samples.items():
        paths = tuple(str(s.save(folder / f"{name}-{kind}-{i}.st")) for i, s in enumerate(members))
        out = folder / f"{name}-{kind}.st"
        run_fuse(FuseConfig(models=paths, out=out, verify=False, force=True))
        models[kind] = load(out, device="cuda", dtype="bf16")
    for kind, model in models.items():
        for batch in (1, 4):
            run = partial(model, to_device(single.inputs(batch=batch), "cuda:0"))
            asked = steady(run, folder)
            found[f"{kind}, {batch}"] = {
                "launches": asked.of(LAUNCHES),
                **waits_of(asked),
                "captured": capture_error(run),
            }
    run = partial(models["tuned"].to("cuda:1"), to_device(single.inputs(), "cuda:1"))
    asked = steady(run, folder)
    found["second"] = {"devices": sorted(asked.devices(LAUNCHES)), **waits_of(asked)}
    return found


def to_device(inputs: Inputs, device: str) -> Inputs:
    """Return inputs on a device, with floating-point tensors in bfloat16."""
    return map_inputs(lambda x: x.to(device, torch.bfloat16 if x.is_floating_point() else x.dtype), inputs)


def waits_of(asked: Requests) -> dict[str, int]:
    """Return the number of waits, copies and allocations."""
    return {name: asked.of(kind) for name, kind in KINDS.items()}


def capture_error(run: Callable[[], object]) -> str:
    """Return the error message of a graph capture, or an empty string."""
    try:
        capture(run)
    except RuntimeError as error:
        return str(error)
    return ""


def is_outside_embedding(name: str) -> bool:
    """Return whether a tensor is outside of the embedding, which members then share."""
    return not any(part in name for part in ("embed", "cls_token"))


def generator_is_left() -> bool:
    """Return whether a training step on the current second device restores the state of its generator."""
    with torch.cuda.device(1):
        before = torch.cuda.get_rng_state(1)
        with StepNoise().at(seed=1, step=2, rows=range(2), total=2, device=torch.device("cuda")):
            torch.rand(3, device="cuda")
        return torch.equal(torch.cuda.get_rng_state(1), before)


def known_requests(folder: Path) -> dict[str, dict[str, int | str]]:
    """Return the counts of a known read, a known copy from the processor, and a pure kernel."""
    x = torch.zeros(4, device="cuda")
    runs = {
        "read": lambda: x.sum().item(),
        "sent": lambda: x + torch.zeros(4).to("cuda"),
        "nothing": lambda: x + 1,
    }
    return {
        name: waits_of(steady(run, folder)) | {"captured": capture_error(run)} for name, run in runs.items()
    }


if __name__ == "__main__":
    main()
