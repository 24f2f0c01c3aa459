"""Options and measurements that plugins add to `eval`. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hydractl.settings import Extension

if TYPE_CHECKING:
    from hydractl.evaluation.named_inputs import NamedModels
    from hydractl.families.load import OpenModel
    from hydractl.manifest.report import Report, Row
    from hydractl.provenance.command_config import InputRef


class RowMeasurer:
    """Measurements of a plugin in one run of `eval`. A subclass overrides methods as needed.

    Attributes:
        scopes: Names of the scopes in which labelled data are also measured, for conditions.
    """

    scopes: Sequence[str] = ()

    def open_data(self, run: Any) -> None:  # noqa: ANN401 - the `Evaluation` of `measure_row`, which imports this module
        """Open data beside those of the options, before models are loaded."""

    def derive(
        self,
        run: Any,  # noqa: ANN401 - as above
        named: NamedModels,
        loaded: Any,  # noqa: ANN401 - `RowModels` of `cost`, which imports this module
        opened: Sequence[OpenModel],
    ) -> tuple[Any, Sequence[OpenModel]]:
        """Return the models that answer for a row, and for each model the file that messages name."""
        del run, named
        return loaded, opened

    def measure(self, run: Any, row: Any) -> Callable[[Row], Row] | None:  # noqa: ANN401 - as above, and its `LoadedRow`
        """Measure a row while its models are loaded, in every process.

        Returns:
            A function that adds the measurements to the row of the report, in the process that leads; None if there are none.
        """

    def complete(self, report: Report) -> Report:
        """Return the report with options and fields of the plugin."""
        return report


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

    def begin(self, config: Any, opened: Sequence[Sequence[OpenModel]]) -> RowMeasurer:  # noqa: ANN401 - as above
        """Check the opened models of each row, and read files, before data are opened."""
        del config, opened
        return RowMeasurer()
