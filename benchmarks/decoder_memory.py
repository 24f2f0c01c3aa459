"""Measure the peak memory of `prune` and `fuse` for a sharded decoder of 2 GB in bf16, above `import timm`.

The model is a Llama with random weights in shards of 500 MB; 32 query heads share 8 key heads. Both commands
copy tensor by tensor, and verify by filling each block from the files while it runs, so neither holds a
model.

    python benchmarks/decoder_memory.py [--layers 14] [--members 2]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from fuse_cost import MEGABYTE, watched


def main() -> int:
    """Make the folder, and measure. The exit code is 1 if a command needs as much memory as the model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=14, help="layers of the decoder")
    parser.add_argument("--members", type=int, default=2, help="members of the hydra")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = make_folder(folder / "model", options.layers)
        members = [str(folder / f"m{i}.st") for i in range(options.members)]
        chosen = ["--strategy", "random", "--keep-fraction", "0.75", "--whole-groups"]
        prune = ["prune", str(folder / "model"), *chosen, "--members", str(options.members)]
        commands = {
            "prune": [*prune, "-o", str(folder / "m{i}.st")],
            "fuse": ["fuse", *members, "-o", str(folder / "h.st")],
        }
        _, idle = watched([], folder)
        print(
            f"model folder of {size / MEGABYTE:.0f} MB; `import timm` {idle / MEGABYTE:.0f} MB; further memory:"
        )
        failed = 0
        for said, command in commands.items():
            seconds, peak = watched(command, folder)
            failed += peak - idle >= size
            print(f"{said:6} {(peak - idle) / MEGABYTE:5.0f} MB in {seconds:.0f} s")
        kept = sum(Path(path).stat().st_size for path in members) / len(members)
        print(
            f"members of {kept / MEGABYTE:.0f} MB, hydra {(folder / 'h.st').stat().st_size / MEGABYTE:.0f} MB"
        )
    print("claim (less memory than one model):", "FAILS" if failed else "holds")
    return 1 if failed else 0


def make_folder(folder: Path, layers: int) -> int:
    """Write a random transformers classifier with a tokenizer. Return the size of the weights in bytes."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    from support.text_folders import save_tokenizer

    make_config: Any = LlamaConfig
    config = make_config(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        num_labels=2,
        pad_token_id=0,
    )
    torch.set_default_dtype(torch.bfloat16)
    library: Any = LlamaForSequenceClassification  # transformers is untyped
    library(config).save_pretrained(folder, max_shard_size="500MB")
    save_tokenizer(folder)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    sys.exit(main())
