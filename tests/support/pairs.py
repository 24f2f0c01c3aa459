"""A tiny zero-shot task: a tokenizer, and references of two-tower models with this tokenizer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hydractl.families.open_model import open_model
from support.builders import Sample, perturbed

if TYPE_CHECKING:
    from pathlib import Path

PAD, END = 0, 1
WORDS = (
    "<pad>",
    "<end>",
    "<unknown>",
    "a",
    "an",
    "of",
    "photo",
    "drawing",
    "number",
    "the",
    "big",
    ".",
    *map(str, range(10)),
)
_TOWER = "hidden_size=32,{t}.num_hidden_layers=2,{t}.num_attention_heads=4,{t}.intermediate_size=48"
_PAIR = (
    f"text.{_TOWER.format(t='text')},vision.{_TOWER.format(t='vision')},vision.image_size=8,vision.patch_size=4,"
    f"text.vocab_size={len(WORDS)},text.max_position_embeddings=12,text.pad_token_id={PAD},text.eos_token_id={END}"
)
ARCHITECTURES = {
    "clip": f"arch:clip::projection_dim=16,{_PAIR}",
    "siglip": f"arch:siglip::text.projection_size=32,{_PAIR}",
}


def write_tokenizer(path: Path) -> Path:
    """Write a tokenizer with the vocabulary `WORDS` and an end token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unknown>"))  # noqa: S106 - no password
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", END)])
    made.save(str(path))
    return path


def pair(kind: str, folder: Path) -> Sample:
    """Return a base of a kind in `ARCHITECTURES`, with random weights."""
    path = folder / f"{kind}.tokenizer.json"
    model_file = open_model(f"{ARCHITECTURES[kind]},tokenizer={write_tokenizer(path)}")
    return Sample(model_file.header, perturbed(model_file.checkpoint.tensors(), seed=7, scale=2.0))


def save_clip(folder: Path) -> None:
    """Write a CLIP with random weights, its tokenizer and its image processor with transformers."""
    import transformers

    tower = {
        "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "projection_dim": 12,
    }  # fmt: skip
    text = tower | {"vocab_size": len(WORDS), "pad_token_id": PAD, "eos_token_id": END}
    config = transformers.CLIPConfig(
        text_config=text, vision_config=tower | {"image_size": 8, "patch_size": 4}, projection_dim=12
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    words = {"pad_token": WORDS[PAD], "eos_token": WORDS[END]}
    file = write_tokenizer(folder / "t.json")
    transformers.PreTrainedTokenizerFast(tokenizer_file=str(file), **words).save_pretrained(folder)
    size = {"height": 8, "width": 8}
    processor = {"image_processor_type": "CLIPImageProcessor", "size": size, "crop_size": size}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
