"""Which of timm's architectures are covered, and is what we say of them true?

    python benchmarks/coverage.py [--match GLOB] [--all] [--json]

Every architecture of a module that defines plain vision transformers or timm's `Eva` is built on the meta device and
either refused, with the reason, or shrunk (two blocks, at most four heads where the architecture allows it, the smallest
image) and checked with random weights of which none is zero or one by initialisation:

* the model's forward pass equals timm's,
* a pruned model equals the model whose dropped heads are masked,
* a hydra of two pruned, differing members equals its members.

`--all` also builds timm's other architectures, on the meta device only: they are to be refused with a reason.
Ends with `supported N refused N failed N`, and with exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import timm
import torch

from hydractl.checkpoint import write_tensors
from hydractl.errors import HydraError, UnsupportedModelError
from hydractl.families.opening import build_checked
from hydractl.families.probe import TOLERANCE, largest_difference, probe_inputs
from hydractl.families.table import family_for_name, family_of
from hydractl.fusion.hydra import load
from hydractl.fusion.slicing import prune_tensor, zero_dropped
from hydractl.manifest import Header, Kind, Preprocess, TowerKeep, full_mask
from hydractl.stages.fuse import FuseConfig, run_fuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hydractl.families.base import Described
    from hydractl.families.inputs import Inputs

MODULES = ("vision_transformer", "vision_transformer_hybrid", "deit", "vitamin", "beit3", "eva")
NUM_CLASSES = 7
DEPTH = 2
MAX_HEADS = 4
VISIBLE = 1e-3
BASE_DIGEST = "sha256:" + "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of one architecture: `supported`, `refused` (reason) or `failed` (reason).

    The differences are relative to max(1, largest logit) in fp32.
    """

    name: str
    verdict: str
    reason: str = ""
    library: float | None = None
    masked: float | None = None
    members: float | None = None


def main(argv: list[str] | None = None) -> int:
    """Sweep and print; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--match", default="*", metavar="GLOB", help="architectures whose name matches")
    parser.add_argument("--all", action="store_true", help="also build all of timm's other architectures")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    names = [n for n in architectures(everything=options.all) if fnmatch.fnmatch(n, options.match)]
    findings = []
    began = time.monotonic()
    for name in names:
        found = examine(name)
        findings.append(found)
        if found.verdict == "failed" or (found.verdict == "supported" and not options.json):
            print(line(found), file=sys.stderr)
    if options.json:
        print(json.dumps([asdict(f) for f in findings], indent=2, sort_keys=True))
    else:
        summarise(findings, seconds=time.monotonic() - began)
    return 1 if not findings or any(f.verdict == "failed" for f in findings) else 0


def architectures(*, everything: bool) -> list[str]:
    """Return timm's architectures of the modules whose classes are covered, or all of them."""
    if everything:
        return sorted(timm.list_models())
    return sorted({name for module in MODULES for name in timm.list_models(module=module)})


def examine(name: str) -> Finding:
    """Decide one architecture; an error that is not a refusal of ours is a failure."""
    try:
        family_for_name(name).describe(name, {"num_classes": NUM_CLASSES})
    except UnsupportedModelError as error:
        return Finding(name=name, verdict="refused", reason=error.message.partition(": ")[2] or error.message)
    try:
        library, masked, members = differences(shrunk(name))
    except (
        HydraError,
        RuntimeError,
        TypeError,
        ValueError,
        AttributeError,
        KeyError,
        AssertionError,
    ) as error:
        return Finding(name=name, verdict="failed", reason=f"{type(error).__name__}: {error}"[:300])
    good = max(library, masked, members) <= TOLERANCE
    return Finding(
        name=name,
        verdict="supported" if good else "failed",
        reason="" if good else f"differs by more than {TOLERANCE:g}",
        library=library,
        masked=masked,
        members=members,
    )


def shrunk(name: str) -> Described:
    """Return the architecture with two blocks and the smallest image, and fewer heads where it can be built so.

    Raises:
        UnsupportedModelError: If it cannot be built even in its own width.
    """
    family = family_for_name(name)
    with torch.device("meta"):
        model: Any = timm.create_model(name, num_classes=NUM_CLASSES)
    patch, stride = model.patch_embed.patch_size[0], max(model.patch_embed.feat_ratio(), 1)
    options: dict[str, object] = {
        "num_classes": NUM_CLASSES,
        "depth": DEPTH,
        "img_size": 2 * max(patch, stride),
    }
    heads = min(MAX_HEADS, model.blocks[0].attn.num_heads)
    narrow: dict[str, object] = {"num_heads": heads, "embed_dim": heads * model.blocks[0].attn.head_dim}
    for extra in (narrow, narrow | {"mlp_ratio": 4.0}, narrow | {"num_kv_heads": heads}, {}):
        try:
            described = family.describe(name, options | extra)
            # a convolutional stem may have a width of its own, which only a forward pass finds out
            with torch.device("meta"), torch.no_grad():
                meta = family.build(described.architecture, full_mask(described.architecture), None)
                meta(torch.empty(1, *image_size(described)))
        except (UnsupportedModelError, RuntimeError):
            continue
        return described
    raise UnsupportedModelError(f"`{name}` cannot be shrunk to two blocks")


def image_size(described: Described) -> tuple[int, ...]:
    """Return channels, height and width of what the model is asked.

    Raises:
        TypeError: If it is not asked about images alone.
    """
    if not isinstance(described.preprocess, Preprocess):
        raise TypeError(f"{described.architecture.name}: does not read images")
    return described.preprocess.input_size


def differences(described: Described) -> tuple[float, float, float]:
    """Return how far the model is from timm's, pruned from masked, and a hydra from its members."""
    architecture = described.architecture
    family = family_of(architecture)
    header = Header(
        kind=Kind.BASE,
        architecture=architecture,
        masks=(full_mask(architecture),),
        preprocess=described.preprocess,
    )
    state = perturbed(family.initialise(architecture, 0), seed=1)
    inputs = probe_inputs(header)
    library: Any = timm.create_model(architecture.name, **arguments(architecture.config))
    library.load_state_dict(state)
    with torch.inference_mode():
        expected = library.eval()(inputs)
        ours = build_checked(family, header, state, where=architecture.name)(inputs)
        from_library = largest_difference(ours, expected)
        heads = architecture.towers["vision"].num_heads
        masks = [keep(heads, [range(1, heads), ()]), keep(heads, [range(heads - 1), (heads - 1,)])]
        masked = []
        members = []
        for seed, mask in enumerate(masks, start=2):
            zeroed = zero_dropped(family, architecture, mask, state)
            sliced = {n: prune_tensor(family, architecture, mask, n, t) for n, t in state.items()}
            own = header.model_copy(update={"kind": Kind.MEMBER, "masks": (mask,), "base": BASE_DIGEST})
            pruned = build_checked(family, own, sliced, where=f"member {seed}")(inputs)
            whole = build_checked(family, header, zeroed, where="masked")(inputs)
            if largest_difference(whole, expected) < VISIBLE:
                raise ValueError("dropping heads changes nothing: the check would be empty")
            masked.append(largest_difference(pruned, whole))
            members.append((own, perturbed(sliced, seed=seed)))
        return from_library, max(masked), fused_difference(members, inputs)


def fused_difference(members: list[tuple[Header, dict[str, torch.Tensor]]], inputs: Inputs) -> float:
    """Fuse members through files, and return how far the hydra's member logits are from their own."""
    with tempfile.TemporaryDirectory(prefix="hydractl-") as folder:
        paths = [Path(folder) / f"{i}.st" for i in range(len(members))]
        for path, (header, state) in zip(paths, members, strict=True):
            with path.open("wb") as file:
                write_tensors(file, state, header=header)
        out = Path(folder) / "hydra.st"
        run_fuse(FuseConfig(models=tuple(map(str, paths)), out=out, mlp="keep", verify=False))
        found = load(out)(inputs).member_logits
        expected = torch.cat([load(path)(inputs).unsqueeze(0) for path in paths])
    return largest_difference(found, expected)


def keep(num_heads: int, layers: list[range | tuple[int, ...]]) -> dict[str, TowerKeep]:
    """Return the mask that keeps these heads of each layer."""
    return {"vision": TowerKeep(num_heads=num_heads, keep=tuple(tuple(layer) for layer in layers))}


def perturbed(state: Mapping[str, torch.Tensor], *, seed: int) -> dict[str, torch.Tensor]:
    """Return the state with noise in every weight and buffer, so that none is zero or one by initialisation."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, tensor in state.items():
        if not tensor.is_floating_point() or not tensor.numel():
            found[name] = tensor.clone()
            continue
        scale = 0.2 if tensor.ndim < 2 else 0.5 / max(tensor[0].numel(), 1) ** 0.5
        noise = scale * torch.randn(tensor.shape, generator=generator)
        found[name] = tensor + (noise.abs() if name.endswith("running_var") else noise)
    return found


def arguments(config: Mapping[str, object]) -> dict[str, Any]:
    """Return an architecture's options as timm takes them."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in config.items()}


def line(found: Finding) -> str:
    """Return one line about one architecture."""
    numbers = [found.library, found.masked, found.members]
    cells = " ".join("-".rjust(8) if n is None else f"{n:8.1e}" for n in numbers)
    return f"{found.verdict:10} {cells}  {found.name} {found.reason}".rstrip()


def summarise(findings: list[Finding], *, seconds: float) -> None:
    """Print the refusals grouped by reason, the failures, and the totals."""
    reasons = Counter(f.reason for f in findings if f.verdict == "refused")
    for reason, times in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        print(f"refused {times:5}  {reason}")
    for found in findings:
        if found.verdict == "failed":
            print(line(found))
    verdicts = Counter(f.verdict for f in findings)
    counts = " ".join(f"{verdict} {verdicts[verdict]}" for verdict in ("supported", "refused", "failed"))
    print(f"{counts} in {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
