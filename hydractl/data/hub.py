"""Data sets on the Hugging Face Hub, read through `datasets`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from hydractl.data.reference import did_you_mean
from hydractl.data.tabular import open_arrow
from hydractl.errors import DataError, HubError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hydractl.data.reference import DataRef
    from hydractl.data.table import TableSet
    from hydractl.progress import Progress


def open_hub(ref: DataRef, progress: Progress) -> TableSet:
    """Return one split of a Hub data set.

    Raises:
        HubError: If the data set cannot be reached: no network, offline, unknown, private.
        DataError: If the configuration or split is unknown or has to be chosen, or the rows are no images.
    """
    progress.step(f"Reading {ref.source}")
    with _translated(ref), _without_bars():
        dataset = _load(ref)
    return open_arrow(dataset, ref, where=ref.source, progress=progress)


def _load(ref: DataRef) -> Any:  # noqa: ANN401 - a `datasets.Dataset`, untyped
    import datasets  # noqa: PLC0415 - seconds of import that other data need not pay

    configs: list[str] = datasets.get_dataset_config_names(ref.repo_id, revision=ref.revision)
    config = _choose(ref, "config", ref.config, configs)
    if ref.split is None or ref.split.isidentifier():
        splits: list[str] = datasets.get_dataset_split_names(ref.repo_id, config, revision=ref.revision)
        split = _choose(ref, "split", ref.split, splits)
    else:
        split = ref.split  # a slice such as `train[:10%]`, which the library reads itself
    return datasets.load_dataset(ref.repo_id, config, split=split, revision=ref.revision)


def _choose(ref: DataRef, key: str, wanted: str | None, present: Sequence[str]) -> str:
    """Return `wanted` if it is there, or the only one there is."""
    shown = ", ".join(f"`{name}`" for name in present)
    if wanted is None:
        if len(present) == 1:
            return present[0]
        raise DataError(f"{ref.source}: has several {key}s: {shown}", hint=f"choose one with `::{key}=NAME`")
    if wanted not in present:
        raise DataError(f"{ref.source}: has no {key} `{wanted}`; it has {shown}", hint=did_you_mean(wanted, present))
    return wanted


@contextlib.contextmanager
def _translated(ref: DataRef) -> Iterator[None]:
    """Turn the library's errors into ours."""
    from datasets.exceptions import DatasetNotFoundError, DatasetsError  # noqa: PLC0415 - as above
    from httpx2 import HTTPError  # noqa: PLC0415 - as above
    from huggingface_hub.errors import EntryNotFoundError, OfflineModeIsEnabled  # noqa: PLC0415 - as above

    try:
        yield
    except DatasetNotFoundError as error:
        raise HubError(
            f"{ref.source}: is not on the Hub, or is private",
            hint="check the name; for a private or gated data set run `hf auth login`",
        ) from error
    except OfflineModeIsEnabled as error:
        raise HubError(
            f"{ref.source}: is not in the local cache, and the Hub is switched off",
            hint="unset HF_HUB_OFFLINE, or use `digits` or a folder",
        ) from error
    except (ConnectionError, TimeoutError, HTTPError, EntryNotFoundError) as error:
        raise HubError(
            f"{ref.source}: the Hub cannot be reached or refuses: {_first_line(error)}",
            hint="check the network, or use `digits` or a folder",
        ) from error
    # unknown slices and configurations are ValueErrors, data sets that need their own code RuntimeErrors
    except (DatasetsError, ValueError, RuntimeError, OSError) as error:
        raise DataError(f"{ref.source}: cannot be read: {_first_line(error)}") from error


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the libraries' progress bars off the terminal, which is not ours to write to here."""
    import datasets  # noqa: PLC0415 - as above
    from huggingface_hub import utils  # noqa: PLC0415 - as above

    shown = not datasets.are_progress_bars_disabled()
    shown_hub = not utils.are_progress_bars_disabled()
    if shown:
        datasets.disable_progress_bars()
    if shown_hub:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
        if shown_hub:
            utils.enable_progress_bars()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
