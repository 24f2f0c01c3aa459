"""Input files for the command lines of `same_bytes.py`: tiny library models, data, and damaged files.

Weights are noise from a fixed seed, so that no weight is zero or one by initialization. Uses no code of
hydractl.
"""

from __future__ import annotations

import json
import random
import shutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from torch import nn

Options = dict[str, object]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
GOOD, BAD = ("good", "fine", "great"), ("bad", "awful", "poor")
FILMS, GADGETS = ("film", "plot", "actor"), ("phone", "battery", "screen")
PLAIN = (
    "the", "was", "very", "a", "photo", "of", "red", "blue", "circle", "square", ".", *map(str, range(10)),
)  # fmt: skip
KNOWN = (*SPECIAL, *GOOD, *BAD, *FILMS, *GADGETS, *PLAIN)
DIGITS = [str(i) for i in range(7)]
END = 60
WORDS = (*KNOWN, *(f"word{i}" for i in range(len(KNOWN), END)), "[END]")
"""Vocabulary of 61 words, the size of the tiny text models. The last word ends the texts of CLIP."""
PROCESSOR: Options = {
    "image_processor_type": "ViTImageProcessor", "image_mean": [0.4], "image_std": [0.3], "resample": 3,
}  # fmt: skip
VIT, BERT, TIMM, OPEN_CLIP = (
    "transformers-vit-plain", "transformers-bert-plain", "timm-vit-class-token", "openclip-plain",
)  # fmt: skip
EDITED: tuple[tuple[str, str, str, Options | None], ...] = (
    ("cropped", VIT, "preprocessor_config.json", {"size": {"shortest_edge": 9}, "crop_size": 8, "do_center_crop": True}),
    ("clip-processor", VIT, "preprocessor_config.json", {"image_processor_type": "CLIPImageProcessor"}),
    ("odd-processor", VIT, "preprocessor_config.json", {"image_processor_type": "DetrImageProcessor"}),
    ("other-size", VIT, "preprocessor_config.json", {"size": {"height": 9, "width": 9}}),
    ("unresized", VIT, "preprocessor_config.json", {"do_resize": False}),
    ("no-processor", VIT, "preprocessor_config.json", None),
    ("no-config", VIT, "config.json", None),
    ("no-weights", VIT, "model.safetensors", None),
    ("other-heads", VIT, "config.json", {"num_attention_heads": 3}),
    ("more-layers", VIT, "config.json", {"num_hidden_layers": 4}),
    ("wider", VIT, "config.json", {"hidden_size": 40}),
    ("headless", VIT, "config.json", {"architectures": ["ViTModel"]}),
    ("unlabelled", VIT, "config.json", {"id2label": None, "label2id": None, "num_labels": 7}),
    ("other-type", VIT, "config.json", {"model_type": "swin"}),
    ("refused-type", VIT, "config.json", {"model_type": "t5"}),
    ("relative-bias", "transformers-beit-plain", "config.json", {"use_relative_position_bias": True}),
    ("no-tokenizer", BERT, "tokenizer.json", None),
    ("left", BERT, "tokenizer_config.json", {"padding_side": "left", "truncation_side": "left"}),
    ("short", BERT, "tokenizer_config.json", {"model_max_length": 6}),
    ("decoder", BERT, "config.json", {"is_decoder": True}),
    ("one-segment", BERT, "config.json", {"type_vocab_size": 1}),
    ("mpnet-left", "transformers-mpnet-plain", "tokenizer_config.json", {"padding_side": "left"}),
    ("timm-border", TIMM, "config.json", {"pretrained_cfg": {"crop_mode": "border", "crop_pct": 0.8, "interpolation": "bilinear"}}),
    ("timm-squash", TIMM, "config.json", {"label_names": None, "pretrained_cfg": {"crop_mode": "squash", "std": [0.2]}}),
    ("timm-labels", TIMM, "config.json", {"label_names": ["a", "b"]}),
    ("timm-classes", TIMM, "config.json", {"num_classes": 9, "model_args": {}}),
    ("timm-swin", TIMM, "config.json", {"architecture": "swin_tiny_patch4_window7_224"}),
    ("timm-norm", TIMM, "config.json", {"architecture": "vit_base_patch16_xp_224", "model_args": {}}),
    ("open-clip-shortest", OPEN_CLIP, "open_clip_config.json", {"preprocess_cfg": {"interpolation": "bilinear"}}),
    ("open-clip-resize", OPEN_CLIP, "open_clip_config.json", {"preprocess_cfg": {"resize_mode": "longest"}}),
    ("open-clip-empty", OPEN_CLIP, "open_clip_config.json", {"model_cfg": {}}),
    ("open-clip-no-tokenizer", OPEN_CLIP, "tokenizer.json", None),
)  # fmt: skip
"""Modified copies of model folders: name, source folder, changed file, and changed JSON entries (None removes
the file)."""
FILES = {
    "empty.json": "", "empty.st": "", "broken.json": '{"schema": "hydractl.scores/1", ', "list.json": "[1, 2]",
    "unknown.json": '{"schema": "hydractl.nonsense/1"}', "blank.jsonl": "\n",
    "odd.jsonl": '{"text": "a", "label": 1}\n{"text": 3}\n', "one.jsonl": '{"text": "the film", "label": "positive"}\n',
    "labels.txt": "".join(f"kind {i}\n" for i in range(7)), "classes.txt": "".join(f"{i}\n" for i in range(5)),
}  # fmt: skip
RANDOM = random.Random(0)  # noqa: S311 - reproducible, not secret


def write_inputs(folder: Path, variants: Iterable[Any]) -> None:
    """Write all input files.

    Args:
        folder: Empty folder.
        variants: Variants of `support.variants` with `family`, `name`, `arch` and `options`.
    """
    for variant in variants:
        save_model(folder / str(variant), variant)
    for name, source, file, changes in EDITED:
        save_edited(folder / "edited" / name, folder / source, file, changes)
    save_tokenizer(folder / "tokenizer", "[SEP]")
    write_texts(folder)
    write_images(folder / "images", ("cat", "dog", "owl"), "RGB")
    write_images(folder / "pixels", DIGITS, "L")
    write_images(folder / "shapes", ("red circle", "blue circle", "red square", "blue square"), "RGB")
    write_images(folder / "novel", ("green ring", "yellow star"), "RGB")
    write_weights(folder)
    write_damage(folder)


def save_model(folder: Path, variant: Any) -> None:  # noqa: ANN401 - what tests call a variant
    """Write a variant with its library."""
    import torch

    library = str(variant.family).partition("-")[0]
    torch.manual_seed(0)
    folder.mkdir()
    {"timm": save_timm, "transformers": save_transformers, "openclip": save_open_clip}[library](
        folder, variant.arch, dict(variant.options)
    )


def save_timm(folder: Path, arch: str, options: Options) -> None:
    """Write a timm model folder."""
    import timm

    problem = {key: options.pop(key) for key in ("problem_type",) if key in options}
    model = perturbed(timm.create_model(arch, pretrained=False, **options))
    config = problem | {
        "architecture": arch, "num_classes": model.num_classes, "model_args": options, "label_names": DIGITS,
        "pretrained_cfg": {"mean": [0.4], "std": [0.3], "interpolation": "bicubic", "crop_pct": 0.9},
    }  # fmt: skip
    write_json(folder / "config.json", config)
    save_tensors(model, folder / "model.safetensors")


def save_transformers(folder: Path, arch: str, options: Options) -> None:
    """Write a transformers model folder with an image processor, a tokenizer, or both."""
    import transformers

    reporter: Any = transformers.logging  # untyped
    reporter.set_verbosity_error()
    reporter.disable_progress_bar()
    nested = {tower: own for tower in ("text", "vision") if (own := beneath(options, tower))}
    flat = {k: v for k, v in options.items() if "." not in k}
    flat |= {f"{tower}_config": own for tower, own in nested.items()}
    pair = len(nested) > 1
    image = "image_size" in options or "vision" in nested
    labels = DIGITS if image else ["negative", "positive"]
    flat |= {"num_labels": len(labels), "id2label": dict(enumerate(labels))}
    # `token_classification` is not a `problem_type` of transformers; it selects the class below.
    by_word = flat.get("problem_type") == "token_classification"
    flat = {k: v for k, v in flat.items() if not (by_word and k == "problem_type")}
    named = getattr(transformers, arch, None)
    if named is not None:
        model = named(named.config_class(**flat))
    else:
        kind = "Image" if image else "Token" if by_word else "Sequence"
        config = transformers.AutoConfig.for_model(arch, architectures=[], **flat)
        auto = "AutoModel" if pair else f"AutoModelFor{kind}Classification"
        model = getattr(transformers, auto).from_config(config)
    perturbed(model).save_pretrained(folder, max_shard_size="30KB" if arch == "deit" else "1GB")
    if image:
        size: Any = nested.get("vision", options)["image_size"]
        height, width = (size, size) if isinstance(size, int) else size
        channels = 3 if pair else 1
        write_json(
            folder / "preprocessor_config.json",
            PROCESSOR | {"size": {"height": height, "width": width}, "image_mean": [0.4] * channels,
                         "image_std": [0.3] * channels},
        )  # fmt: skip
    if pair or not image:
        save_tokenizer(folder, "[END]" if pair else "[SEP]")


def save_open_clip(folder: Path, arch: str, options: Options) -> None:
    """Write an open_clip model folder."""
    import open_clip

    known: dict[str, Any] = open_clip.get_model_config(arch.removeprefix("openclip:"))
    for tower in ("text", "vision"):
        known[f"{tower}_cfg"] = known[f"{tower}_cfg"] | beneath(options, tower)
    known["text_cfg"] |= {"hf_tokenizer_name": "."}
    known |= {k: v for k, v in options.items() if "." not in k}
    own = {k: v for k, v in known.items() if k != "custom_text"}
    own["text_cfg"] = {k: v for k, v in own["text_cfg"].items() if k != "hf_tokenizer_name"}
    model = perturbed((open_clip.CustomTextCLIP if known.get("custom_text") else open_clip.CLIP)(**own))
    images = {"mean": [0.4] * 3, "std": [0.3] * 3, "resize_mode": "squash"}
    write_json(folder / "open_clip_config.json", {"model_cfg": known, "preprocess_cfg": images})
    save_tensors(model, folder / "open_clip_model.safetensors")
    save_tokenizer(folder, "[END]")


def save_edited(folder: Path, source: Path, file: str, changes: Options | None) -> None:
    """Copy a folder, and change one JSON file or remove one file."""
    shutil.copytree(source, folder)
    if changes is None:
        (folder / file).unlink()
    else:
        write_json(folder / file, json.loads((folder / file).read_text()) | changes)


def beneath(options: Mapping[str, object], tower: str) -> Options:
    """Return the options of one tower, without the prefix."""
    prefix = f"{tower}."
    return {k.removeprefix(prefix): v for k, v in options.items() if k.startswith(prefix)}


def perturbed(model: Any) -> Any:  # noqa: ANN401 - the libraries are untyped
    """Add noise to every weight and buffer, in place."""
    import torch

    module: nn.Module = model.eval()
    draw = torch.Generator().manual_seed(1)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and tensor.numel():
            spread = 0.2 if tensor.ndim < 2 else 0.5 / max(tensor[0].numel(), 1) ** 0.5
            noise = spread * torch.randn(tensor.shape, generator=draw)
            # Variances must stay positive.
            tensor.add_(noise.abs() if name.endswith("running_var") else noise)
    return module


def save_tokenizer(folder: Path, last: str) -> None:
    """Write a tokenizer with the vocabulary `WORDS` and the given end token."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=SPECIAL[1]))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single=f"[CLS] $A {last}",
        pair=f"[CLS] $A {last} $B:1 {last}:1",
        special_tokens=[("[CLS]", 2), (last, WORDS.index(last))],
    )
    named = {f"{word[1:-1].lower()}_token": word for word in SPECIAL}
    saver: Any = PreTrainedTokenizerFast  # untyped
    saver(tokenizer_object=made, **named).save_pretrained(folder)


def write_texts(folder: Path) -> None:
    """Write reviews of films and gadgets with two labels and a second text, as JSON Lines, CSV and Parquet."""
    import datasets

    datasets.disable_progress_bars()
    for name, things, count in (("train", FILMS, 48), ("val", FILMS, 24), ("ood", GADGETS, 16)):
        rows = [
            {"text": text, "other": f"the {RANDOM.choice(GADGETS)}", "label": label}
            for text, label in (review(things) for _ in range(count))
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        table = datasets.Dataset.from_list(rows)
        table.to_parquet(folder / f"{name}.parquet")
        table.to_csv(folder / f"{name}.csv")


def review(things: tuple[str, ...]) -> tuple[str, str]:
    """Return a random text and its label."""
    label = RANDOM.choice(("negative", "positive"))
    words = ["the", RANDOM.choice(things), "was", *["very"] * RANDOM.randrange(4)]
    return " ".join([*words, RANDOM.choice(GOOD if label == "positive" else BAD)]), label


def write_images(folder: Path, names: Sequence[str], mode: str) -> None:
    """Write a folder per class with four noise images each."""
    from PIL import Image

    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(4):
            pixels = bytes(RANDOM.randrange(256) for _ in range(9 * 8 * len(mode)))
            Image.frombytes(mode, (9, 8), pixels).save(folder / name / f"{i}.png")


def write_weights(folder: Path) -> None:
    """Write checkpoints like training scripts: plain or wrapped state dicts, with prefixes and averages."""
    import torch
    from safetensors.torch import load_file

    state = load_file(folder / "timm-vit-class-token" / "model.safetensors")
    behind = {f"module.{k}": v for k, v in state.items()}
    average = {f"module.{k}": v * 2 for k, v in state.items()}
    torch.save(state, folder / "plain.pth")
    torch.save({"epoch": 1, "state_dict": behind, "state_dict_ema": average}, folder / "wrapped.pth")
    torch.save({"model": behind, "optimizer": {"lr": 1.0}}, folder / "model.ckpt")
    torch.save({k: v for k, v in state.items() if "head" not in k}, folder / "headless.pth")
    torch.save({"state_dict": Code()}, folder / "code.pth")
    bert = load_file(folder / "transformers-bert-plain" / "model.safetensors")
    torch.save(bert, folder / "bert.bin")


class Code:
    """Class whose pickle needs code to load."""


def write_damage(folder: Path) -> None:
    """Write unusable files and lists of names."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "broken.st").write_bytes(b"\xff" * 64)


def save_tensors(model: nn.Module, path: Path) -> None:
    """Write the state dict of a model."""
    from safetensors.torch import save_file

    save_file({k: v.contiguous().clone() for k, v in model.state_dict().items()}, path)


def write_json(path: Path, value: object) -> None:
    """Write a JSON document."""
    path.write_text(json.dumps(value, indent=2))
