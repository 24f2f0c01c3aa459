"""Options and measurements that plugins add to `eval`. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydractl.settings import Extension

if TYPE_CHECKING:
    from hydractl.families.load import OpenModel
    from hydractl.manifest.report import Row


class RowMeasurer:
    """Measurements of a plugin in one run of `eval`. A subclass overrides methods as needed."""

    def measure(self, run: Any, row: Any) -> Callable[[Row], Row] | None:  # noqa: ANN401 - `Evaluation` and `LoadedRow` of `measure_row`, which imports this module
        """Measure a row while its models are loaded, in every process.

        Args:
            run: The `Evaluation`.
            row: The `LoadedRow`.

        Returns:
            A function that adds the measurements to the row of the report; None if there are none.
        """

    def report_fields(self) -> Mapping[str, Any]:
        """Return values of fields of the report."""
        return {}


class EvalExtension(Extension):
    """Options that a plugin adds to `eval`."""

    __slots__ = ()

    @property
    def recorded(self) -> Mapping[str, str | tuple[str, ...] | None]:
        """Options of the report; None for omitted ones."""
        return {}

    def begin(self, config: Any, opened: Sequence[Sequence[OpenModel]]) -> RowMeasurer:  # noqa: ANN401 - `EvalConfig`, which imports this module
        """Check the opened models of each row, and read files, before data are opened."""
        del config, opened
        return RowMeasurer()
