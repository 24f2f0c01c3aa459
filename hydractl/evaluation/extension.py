"""Options that plugins add to `eval`. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydractl.settings import Extension

if TYPE_CHECKING:
    from hydractl.evaluation.rows import RowMeasurer
    from hydractl.families.load import OpenModel
    from hydractl.provenance.command_config import InputRef


class EvalExtension(Extension):
    """Options that a plugin adds to `eval`."""

    __slots__ = ()

    @property
    def scopes(self) -> Sequence[str]:
        """Names of the scopes in which labelled data may also be measured, before models are known."""
        return ()

    def scope_hint(self, scope: str | None, measured: Sequence[str]) -> str | None:
        """Return the hint for a scope of labelled data that is not measured."""
        del scope, measured
        return None

    def further_inputs(self, config: Any) -> Sequence[InputRef]:  # noqa: ANN401 - `EvalConfig`, which imports this module
        """Return inputs that are not single settings."""
        del config
        return ()

    def begin(self, config: Any, opened: Sequence[Sequence[OpenModel]]) -> RowMeasurer | None:  # noqa: ANN401 - as above
        """Check the opened models of each row, and read files, before data are opened.

        Returns:
            Measurements of the plugin in this run; None if it measures nothing.
        """
        del config, opened
        return None
