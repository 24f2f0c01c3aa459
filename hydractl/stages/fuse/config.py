"""Configuration of `fuse`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.metrics.ood_scores import ENERGY_DENSITY
from hydractl.prediction.class_names import NOTHING_NAMED, Naming
from hydractl.processes.distributed import refuse_shared_input
from hydractl.provenance.command_config import IF_CHANGED, CommandConfig
from hydractl.settings import (
    CheckedSettings,
    Constraint,
    Option,
    OptionGroup,
    Role,
    Setting,
    by_default,
    check,
    flag,
    long_option,
    required,
    setting,
)
from hydractl.stages import options as shared

AUTO, MERGING, MEASURING = shared.AUTO, "Merging", "Calibration and measurement"
MERGES_NOTHING = "`--force-merge` has no effect, because nothing is averaged, or the trunk is chosen on data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring(shared.WithTemperature, CheckedSettings):
    """Data for measurement and calibration of the hydra, and settings for running models."""

    val: DataRef | None = setting(
        None,
        "Labelled held-out data: choose the trunk, measure the effect of merging, and standardize the OOD score.",
        parse=DataRef.parse,
        metavar=shared.DATA_METAVAR,
        panel=MEASURING,
        role=Role.DATA,
    )
    temperature: DataRef | float | None = by_default(
        None,
        replace(
            shared.TEMPERATURE,
            help="Store a temperature: a number, or fitted on labelled held-out data.",
            panel=MEASURING,
        ),
    )
    train: DataRef | None = by_default(
        None,
        replace(
            shared.TRAIN,
            help=f"Fit the OOD score `{ENERGY_DENSITY}` on labelled training data and store it, for `predict`.",
            panel=MEASURING,
            needs=Constraint("val", why=f"`{ENERGY_DENSITY}` needs held-out ID data to standardize it"),
        ),
    )
    max_length: int | None = by_default(None, shared.MAX_LENGTH)
    batch_size: int = by_default(
        64, replace(shared.BATCH_SIZE, help="Samples per forward pass (default: 64).")
    )
    num_workers: int | None = by_default(None, shared.NUM_WORKERS)
    device: str = by_default(
        "auto", replace(shared.DEVICE, help="Device: auto (default), cpu, cuda, cuda:N or mps.")
    )

    @classmethod
    def parse(cls, options: dict[str, Any]) -> Measuring:
        """Return the configuration from the given options by name.

        Raises:
            UsageError: If options for running models are given without data.
        """
        measuring = cls(**options)
        preprocess = [
            f"`{long_option(name)}`"
            for name in ("max_length", "batch_size", "num_workers", "device")
            if name in options
        ]
        if preprocess and not measuring.refs:
            raise UsageError(
                f"{' and '.join(preprocess)}: no effect, because no model runs on data",
                hint="add `--val DATA` or `--temperature DATA`, or leave it out",
            )
        return measuring

    @property
    def labelled(self) -> dict[str, DataRef]:
        """Labelled data for measurement and calibration, by option."""
        named = {"--val": self.val, "--temperature": self.temperature_data}
        return {option: ref for option, ref in named.items() if ref is not None}

    @property
    def refs(self) -> tuple[DataRef, ...]:
        """All data on which models run."""
        return (*self.labelled.values(), *(() if self.train is None else (self.train,)))


NOT_MEASURED = Measuring()


@dataclass(frozen=True, slots=True, kw_only=True)
class FuseConfig(CommandConfig):
    """Options of `fuse`."""

    COMMAND: ClassVar[str] = "fuse"
    COMMON = (
        "out",
        "val",
        "train",
        "temperature",
        "trunk",
        "max_nll_increase",
        "mlp",
        "own_blocks",
        "classes",
        "device",
        "force",
    )

    models: tuple[str, ...] = required(
        Setting(
            "Members: checkpoints, folders or Hub ids of one architecture.",
            positional=True,
            metavar="MODEL...",
            shows_default=False,
            role=Role.MODEL,
        )
    )
    """References of M >= 1 members of the same architecture, pruned or not, fine-tuned or not."""
    out: Path = required(shared.OUT_MODEL)
    mlp: Literal["merge", "keep"] | None = setting(
        None,
        "Average MLPs that differ, or keep those of each member (default: merge; with `--trunk` or `--val`: keep).",
        panel=MERGING,
        choices=("merge", "keep"),
        excludes=Constraint(
            "own_blocks", for_values=("merge",), why="members have their own copies of the other MLPs"
        ),
    )
    """`merge` is the method of the paper."""
    trunk: int | str | None = setting(
        None,
        "Average all differences in the first N blocks, which then run once. auto, the default with `--val` and without "
        "`--mlp`: the largest N within `--max-nll-increase`.",
        panel=MERGING,
        parse=partial(
            shared.count_or_auto, "--trunk", of="blocks", hint="`--trunk 8`, or `--trunk auto --val val/`"
        ),
        low=0,
        shows_range=False,
        metavar="N|auto",
        needs=Constraint(
            "measuring.val",
            for_values=(AUTO,),
            why="it measures the effect of merging",
            hint="add `--val DATA` with labelled held-out data",
        ),
    )
    """Number of merged blocks; 0 averages nothing. Models with several towers merge this number of blocks in
    each tower, or all blocks of a shorter tower."""
    max_nll_increase: float = by_default(
        shared.SMALL_INCREASE,
        replace(
            shared.MAX_NLL_INCREASE,
            panel=MERGING,
            only_with=Constraint(
                "auto",
                message="`--max-nll-increase` has no effect: the trunk is not chosen",
                hint="leave it out, or add `--val DATA` and leave `--trunk` and `--mlp` out",
            ),
        ),
    )
    """The increase is the NLL of the hydra minus the NLL of the members' ensemble. With a fitted temperature,
    each has its own. Otherwise, both use the given or stored temperature."""
    own_blocks: bool = flag(
        Setting(
            "Copy all blocks after `--trunk` for each member, even equal blocks, to train the hydra further.",
            panel=MERGING,
            needs=Constraint(
                lambda config: isinstance(config.trunk, int),
                message="`--own-blocks` needs the number of blocks before them",
                hint="add `--trunk N`",
            ),
        )
    )
    force_merge: bool = flag(
        Setting(
            "Average members even if their lineage does not show a common base.",
            panel=MERGING,
            only_with=Constraint(
                lambda config: config.merges and not config.auto,
                message=MERGES_NOTHING,
                hint="add `--trunk N` or `--mlp merge`, or leave it out",
            ),
        )
    )
    measuring: Measuring = by_default(NOT_MEASURED, OptionGroup(Measuring.parse, Option.of(Measuring)))
    naming: Naming = by_default(NOTHING_NAMED, shared.NAMING)
    seed: int = by_default(
        0, replace(shared.SEED, help="Seed of the batch for `--verify`.", panel=shared.OUTPUT)
    )
    """Seed of the random batch of `verify`."""
    verify: bool = flag(shared.VERIFY, on=True)
    force: bool = flag(shared.FORCE)
    if_changed: bool = flag(IF_CHANGED)

    def __post_init__(self) -> None:
        check(self)
        if not self.models:
            raise UsageError("nothing to fuse", hint="`hydractl fuse a.st b.st c.st -o hydra.st`")
        refuse_shared_input(*self.models, what="member")

    @property
    def auto(self) -> bool:
        """Whether the trunk is chosen on data."""
        if self.trunk is None:
            return self.measuring.val is not None and self.mlp is None
        return self.trunk == AUTO

    @property
    def mlps(self) -> Literal["merge", "keep"]:
        """Whether MLPs that differ are averaged (`merge`) or stored for each member (`keep`)."""
        return self.mlp or ("merge" if self.trunk is None and not self.auto else "keep")

    @property
    def merges(self) -> bool:
        """Whether different tensors may be averaged."""
        return self.mlps == "merge" or self.auto or bool(self.trunk)
