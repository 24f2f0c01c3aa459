"""Options added by a package behave like options of the command itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from hydractl import plugins as registry
from hydractl import settings
from hydractl.errors import UsageError
from hydractl.plugins import Plugin
from hydractl.provenance.command_config import CommandConfig, config_digest, input_refs, recorded_argv
from hydractl.settings import (
    CheckedSettings,
    Extension,
    OptionGroup,
    Role,
    by_default,
    check_extensions,
    configured,
    extension_field,
    options_of,
    setting,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(CheckedSettings):
    scores: tuple[str, ...] = setting((), "Files.", parse=lambda text: (text,), repeated=True, role=Role.FILE)


GROUP = by_default(Group(), OptionGroup(lambda given: Group(**given), options_of(Group)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Added(Extension):
    order_seed: int | None = setting(None, "A seed.", low=0, after="seed")
    fast: bool = setting(False, "A flag.", role=Role.EXECUTION)  # noqa: FBT003 - default of a field
    rounds: int = setting(5, "A number.")
    group: Group = GROUP

    def check_config(self, config: Any) -> None:
        if config.seed == self.order_seed:
            raise UsageError("`--order-seed` equals `--seed`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(CommandConfig):
    """A command with the options in its own configuration."""

    COMMAND: ClassVar[str] = "some"
    seed: int = setting(0, "A seed.")
    order_seed: int | None = setting(None, "A seed.", low=0, after="seed")
    size: int = setting(1, "A size.")
    fast: bool = setting(False, "A flag.", role=Role.EXECUTION)  # noqa: FBT003 - as above
    rounds: int = setting(5, "A number.")
    group: Group = GROUP


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Any]]:
    plugin = Plugin(extensions={"some": f"{__name__}:Added"})
    monkeypatch.setattr(settings, "plugins", lambda: (plugin,))
    settings.extension_classes.cache_clear()

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Extended(CommandConfig):
        COMMAND: ClassVar[str] = "some"
        seed: int = setting(0, "A seed.")
        size: int = setting(1, "A size.")
        extensions: tuple[Extension, ...] = extension_field("some")

        def __post_init__(self) -> None:
            check_extensions(self)

    yield Extended
    settings.extension_classes.cache_clear()


def typed(config: type[Any], **values: object) -> Any:
    return configured(config, {o.name: values.get(o.name) for o in options_of(config)})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"seed": 3},
        {"order_seed": 3},
        {"order_seed": 3, "size": 2, "scores": ["tests/a.json", "b.json"]},
        {"fast": True},
        {"rounds": 5},  # The default.
        {"rounds": 6, "fast": False},
    ],
)
def test_added_options_are_recorded_like_own_ones(extended, values):
    whole = typed(Whole, **values)
    whole_argv = recorded_argv(whole)
    config = typed(extended, **values)

    assert options_of(extended) == options_of(Whole)
    assert recorded_argv(config) == whole_argv
    assert config_digest(config) == config_digest(whole)
    assert [ref.name for ref in input_refs(config)] == [ref.name for ref in input_refs(whole)]


def test_a_configuration_has_every_extension(extended):
    assert extended().extensions == typed(extended, rounds=5, fast=False, seed=4).extensions == (Added(),)
    assert typed(extended, rounds=6).extensions == (Added(rounds=6),)
    assert extended(extensions=(Added(rounds=6),)) == typed(extended, rounds=6)


def test_an_added_option_is_checked_alone_and_with_the_command(extended):
    with pytest.raises(UsageError, match="`--order-seed -1`"):
        typed(extended, order_seed=-1)
    with pytest.raises(UsageError, match="`--order-seed` equals `--seed`"):
        typed(extended, seed=2, order_seed=2)
    assert extended(extensions=[Added(rounds=6)]) == extended(extensions=Added(rounds=6))
    with pytest.raises(UsageError, match="`extensions`: 5 is no extension of `some`"):
        extended(extensions=(5,))


def test_a_package_that_is_not_installed_adds_nothing(monkeypatch):
    monkeypatch.setattr(registry, "PACKAGES", ("hydractl.absent", "absent"))
    registry.plugins.cache_clear()
    try:
        assert registry.plugins() == ()
    finally:
        registry.plugins.cache_clear()
