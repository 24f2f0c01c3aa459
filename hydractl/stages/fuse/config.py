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
MERGES_NOTHING = "`--force-merge` has no effect, because nothing is averaged"
OWNED, OWN_FEWER = (
    "members have their own copy of every block",
    "leave one of them out, or copy fewer blocks: `--own-from L`",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring(shared.WithTemperature, CheckedSettings):
    """Data for measurement and calibration of the hydra, and settings for running models."""

    data: DataRef | None = setting(
        None,
        f"Measure the effect of merging on labelled data: {shared.DATA_SOURCES}.",
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
    fit: DataRef | None = by_default(
        None,
        replace(
            shared.FIT,
            help=f"Fit the OOD score `{ENERGY_DENSITY}` on labelled training data and store it, for `predict`.",
            panel=MEASURING,
            needs=Constraint("val", why=f"`{ENERGY_DENSITY}` needs held-out ID data to standardize it"),
        ),
    )
    val: DataRef | None = setting(
        None,
        "Held-out ID data to standardize the OOD score on, apart from `--fit`.",
        parse=DataRef.parse,
        metavar=shared.DATA_METAVAR,
        panel=MEASURING,
        role=Role.DATA,
        only_with="fit",
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
                hint="add `--data DATA`, `--temperature DATA` or `--fit TRAIN --val VAL`, or leave it out",
            )
        return measuring

    @property
    def labelled(self) -> dict[str, DataRef]:
        """Labelled data for measurement and calibration, by option."""
        named = {"--data": self.data, "--temperature": self.temperature_data}
        return {option: ref for option, ref in named.items() if ref is not None}

    @property
    def refs(self) -> tuple[DataRef, ...]:
        """All data on which models run."""
        return (*self.labelled.values(), *(ref for ref in (self.fit, self.val) if ref is not None))


NOT_MEASURED = Measuring()


@dataclass(frozen=True, slots=True, kw_only=True)
class FuseConfig(CommandConfig):
    """Options of `fuse`."""

    COMMAND: ClassVar[str] = "fuse"

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
        "Average MLPs that differ, or keep those of each member (default: merge; with `--merge-trunk`: keep).",
        panel=MERGING,
        choices=("merge", "keep"),
        excludes=Constraint("own_from", (0,), for_values=("merge",), why=OWNED, hint=OWN_FEWER),
    )
    """`merge` is the method of the paper."""
    merge_trunk: int | str | None = setting(
        None,
        "Average all that differs before block L, which then runs once; auto finds the largest L on `--data`.",
        panel=MERGING,
        parse=partial(
            shared.count_or_auto,
            "--merge-trunk",
            of="blocks",
            hint="`--merge-trunk 8`, or `--merge-trunk auto --data val/`",
        ),
        low=0,
        shows_range=False,
        metavar="L|auto",
        needs=Constraint(
            "measuring.data",
            for_values=(AUTO,),
            why="it measures the cost of merging",
            hint="add `--data DATA` with labelled held-out data",
        ),
        excludes=Constraint("own_from", (0,), for_values=(AUTO,), why=OWNED, hint=OWN_FEWER),
    )
    """Number of merged blocks; 0 averages nothing. Models with several towers merge this number of blocks in
    each tower, or all blocks of a shorter tower."""
    max_loss: float | None = setting(
        None,
        "Highest cost of `--merge-trunk auto`, in nats of NLL (default: 0).",
        panel=MERGING,
        low=0.0,
        shows_range=False,
        metavar="NATS",
        only_with=Constraint("merge_trunk", (AUTO,)),
    )
    """The cost is the NLL of the hydra minus the NLL of the members' ensemble. With a fitted temperature,
    each has its own. Otherwise, both use the given or stored temperature."""
    force_merge: bool = flag(
        Setting(
            "Average members even if their lineage does not show a common base.",
            panel=MERGING,
            only_with=Constraint(
                lambda config: config.merges or config.own_from == 0,
                message=MERGES_NOTHING,
                hint="add `--merge-trunk L` or `--mlp merge`, or leave it out",
            ),
            excludes=Constraint("own_from", (0,), message=MERGES_NOTHING, hint="leave it out"),
        )
    )
    own_from: int | None = setting(
        None,
        "Copy block L and all that follows for each member even if equal, to train the hydra further.",
        panel=MERGING,
        low=0,
        shows_range=False,
        metavar="L",
        excludes=Constraint(
            lambda config: (
                isinstance(config.merge_trunk, int) and (config.own_from or 0) < config.merge_trunk
            ),
            message="`--own-from {config.own_from}`: members cannot have their own copy of blocks that "
            "`--merge-trunk {config.merge_trunk}` averages",
            hint="add `--own-from {config.merge_trunk}`, or a lower `--merge-trunk`",
        ),
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
        """Whether the merged trunk is selected on data."""
        return self.merge_trunk == AUTO

    @property
    def mlps(self) -> Literal["merge", "keep"]:
        """Whether MLPs that differ are averaged (`merge`) or stored for each member (`keep`)."""
        return self.mlp or ("merge" if self.merge_trunk is None else "keep")

    @property
    def merges(self) -> bool:
        """Whether different tensors may be averaged."""
        return self.own_from != 0 and (self.mlps == "merge" or bool(self.merge_trunk))
