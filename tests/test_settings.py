"""Settings: rejected declarations, configurations of options, and parsing."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydractl.errors import UsageError
from hydractl.scoring.methods import METHODS
from hydractl.settings import (
    Constraint,
    Option,
    OptionGroup,
    Setting,
    by_default,
    bytes_of,
    check,
    configured,
    declared,
    flag,
    number,
    options_of,
    required,
    setting,
    words,
)
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.export.config import ExportConfig
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.importing.config import ImportConfig
from hydractl.stages.inspect.config import InspectConfig
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.prune.config import DiverseConfig, PruneConfig
from hydractl.stages.score.config import ScoreConfig
from hydractl.training.recipe import Recipe

SETTINGS = [m.settings for m in METHODS.values()]
DECLARING = [ScoreConfig, PruneConfig, DiverseConfig, FinetuneConfig, Recipe, FuseConfig, EvalConfig, InspectConfig,
             ImportConfig, *SETTINGS]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Some:
    name: str = required(Setting("Its name.", positional=True))
    rates: tuple[float, ...] = setting(
        (), "Rates.", above=0.0, parse=lambda t: tuple(number("--rates", x) for x in words("--rates", t))
    )
    share: float | None = setting(None, "A share.", low=0.0, high=1.0)
    kind: str = setting("a", "A kind.", choices=("a", "b"), after="loud")
    both: int | None = by_default(
        None,
        OptionGroup(
            lambda given: sum(given.values()) or None,
            (Option("left", "int", Setting("Left.", low=0)), Option("right", "int", Setting("Right."))),
            extra_names=("share",),
        ),
    )
    loud: bool = flag(Setting("Loud."))

    def __post_init__(self) -> None:
        check(self)


ABSENT = dict.fromkeys(("rates", "share", "kind", "left", "right")) | {"loud": False}


def test_options_stand_in_the_order_of_the_fields_unless_one_says_after_which_it_comes():
    assert [o.name for o in options_of(Some)] == ["name", "rates", "share", "left", "right", "loud", "kind"]
    assert [o.default for o in options_of(Some)] == [..., (), None, None, None, False, "a"]


def test_what_is_not_typed_is_as_the_field_has_it():
    assert configured(Some, {**ABSENT, "name": "n"}) == Some(name="n")


def test_what_is_typed_is_read_checked_and_composed():
    typed = {"name": "n", "rates": "0.5,2", "share": 1.0, "kind": "b", "left": 2, "right": 3, "loud": True}

    assert configured(Some, typed) == Some(name="n", rates=(0.5, 2.0), share=1.0, kind="b", both=6, loud=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "c"}, "`--kind c`: unknown"),
        ({"share": 1.5}, "`--share 1.5`: must be between 0 and 1"),
        ({"share": nan}, "`--share nan`: must be between 0 and 1"),
        ({"rates": (1.0, 0.0)}, "`--rates 0`: must be above 0"),
        ({"rates": (inf,)}, "`--rates inf`: must be above 0"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(values, message):
    with pytest.raises(UsageError) as caught:
        Some(name="n", **values)

    assert caught.value.message == message


RANGED = [
    (config, name, told)
    for config in DECLARING
    for name, told in declared(config).items()
    if (told.low, told.high, told.above, told.below) != (None,) * 4
]
NEEDED = {
    "model": "a",
    "models": ("a",),
    "sources": ("a",),
    "arch": "vit",
    "out": "a",
    "data": "digits",
    "train": "digits",
    "val": "digits",
    "files": ("a",),
}


@pytest.mark.parametrize("config", dict.fromkeys(config for config, *_ in RANGED))
def test_every_declared_range_is_kept(config):
    for name, told in [(name, told) for ranged, name, told in RANGED if ranged is config]:
        check_range(config, name, told)


def check_range(config, name, told):
    needed = {k: v for k, v in NEEDED.items() if k in declared(config) and declared(config)[k] is not told}
    outside = [
        bound
        for bound in (
            None if told.low is None else told.low - 1,
            None if told.high is None else told.high + 1,
            told.above,
            told.below,
        )
        if bound is not None
    ]
    several = next(o.kind for o in Option.of(config) if o.name == name).startswith("tuple")
    for value in outside:
        typed = value if isinstance(value, int) else f"{value:g}"
        with pytest.raises(UsageError, match=rf"`{told.option(name)} {typed}`: must be ") as caught:
            config(**{**needed, name: (value,) if several else value})
        assert caught.value.hint == told.range_hint


@given(st.integers(1, 1 << 40))
def test_a_number_is_bytes(count):
    assert bytes_of("--x", str(count)) == bytes_of("--x", f"{count} B") == count


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GiB", 2 << 30), ("512MB", 512_000_000), ("1.5 kib", 1536), ("3TB", 3 * 10**12), ("0.5MiB", 1 << 19)],
)
def test_units(text, count):
    assert bytes_of("--x", text) == count


@pytest.mark.parametrize("text", ["", "GiB", "2 G", "1e3", "0", "-1", "99999999TB", "2GiB!"])
def test_bad_sizes(text):
    with pytest.raises(UsageError, match="is not a memory size") as caught:
        bytes_of("--x", text)

    assert "512MB" in caught.value.hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Tied:
    """Configuration with constraints between settings."""

    way: str = setting("plain", "How.", choices=("plain", "fast", "slow"))
    tries: int | None = setting(None, "How often.", metavar="N", only_with=Constraint("way", ("fast",)))
    pause: int | None = setting(
        None, "How long.", only_with=Constraint("way", ("fast", "slow"), why="else none")
    )
    log: str | None = setting(None, "Where to.", metavar="FILE[::K=V]")
    level: int = setting(
        0, "How much.", needs="log", excludes=("quick", Constraint("keeps", (False,), for_values=(7,)))
    )
    quick: bool = flag(Setting("Soon."))
    keeps: bool = flag(Setting("Keep it.", option_names=("--keep-heads/--drop",)), on=True)
    named: int | None = setting(
        None, "Bare.", option_names=("named",), only_with=Constraint("is_fast", option="way")
    )
    count: int = setting(
        3, "How many.", needs=Constraint(
            lambda config: config.count != config.tries, for_values=(3, 4), message="{config.count} of {config.way}", hint="{config.tries}"
        )
    )  # fmt: skip

    def __post_init__(self):
        check(self)

    @property
    def is_fast(self):
        return self.way == "fast"


@pytest.mark.parametrize(("values", "message", "hint"), [
    ({"tries": 0}, "`--tries` has no effect without `--way fast`", "add `--way fast`, or leave `--tries` out"),
    ({"pause": 1}, "`--pause` has no effect with `--way plain`: else none", "leave `--pause` out"),
    ({"level": 1}, "`--level` needs `--log`", "add `--log FILE`, or leave `--level` out"),
    ({"level": 1, "log": "x", "quick": True}, "`--level` and `--quick` exclude each other", "leave one of them out"),
    ({"level": 7, "log": "x", "keeps": False}, "`--level 7` and `--drop` exclude each other", "leave one of them out"),
    ({"count": 4, "tries": 4, "way": "fast"}, "4 of fast", "4"),
    ({"tries": 3, "way": "fast"}, "3 of fast", "3"),
    ({"named": 1, "way": "slow"}, "`named` has no effect with `--way slow`", "leave `named` out"),
])  # fmt: skip
def test_what_does_not_go_with_another_setting_is_refused(values, message, hint):
    with pytest.raises(UsageError) as caught:
        Tied(**values)

    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize("values", [
    {}, {"way": "fast", "tries": 0, "pause": 1, "named": 0}, {"level": 7, "log": "x"}, {"quick": True, "keeps": False},
    {"level": 1, "log": "x", "keeps": False}, {"count": 5, "tries": 5, "way": "fast"}, {"count": 4, "tries": 3, "way": "fast"},
])  # fmt: skip
def test_what_goes_with_another_setting_is_taken(values):
    assert Tied(**values)


def test_every_constraint_names_settings_that_are_there():
    for config in (*DECLARING, ExportConfig, PredictConfig):
        for told in declared(config).values():
            for constraint in (c for r in ("needs", "only_with", "excludes") for c in told.constraints(r)):
                named = constraint.option or constraint.field_name
                if constraint.message:
                    continue  # Its own message names no option.
                options = declared(config) if "." not in named else [o.name for o in options_of(config)]
                assert named.split(".")[-1] in options
