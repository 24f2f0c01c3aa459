"""Data sets on the Hugging Face Hub, read through `datasets`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from hydractl.data.reference import did_you_mean
from hydractl.data.tabular import ArrowTable
from hydractl.errors import DataError, HubError
from hydractl.progress import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hydractl.data.reference import DataRef
    from hydractl.progress import Progress


def fetch_table(ref: DataRef, progress: Progress) -> ArrowTable:
    """Return one split of a Hub data set.

    Raises:
        HubError: If the data set cannot be reached: no network, offline, unknown, private.
        DataError: If the configuration or split is unknown or has to be chosen.
    """
    progress.step(f"Reading {ref.source}")
    with _translated(ref), _without_bars():
        dataset = _load(ref, progress)
    return ArrowTable(dataset, ref, where=ref.source)


def _load(ref: DataRef, progress: Progress) -> Any:  # noqa: ANN401 - a `datasets.Dataset`, untyped
    import datasets  # noqa: PLC0415 - seconds of import that other data need not pay

    if ref.revision is not None and datasets.config.HF_HUB_OFFLINE:
        progress.warn(f"{ref.source}: the Hub is switched off, so the cached copy may be of another revision")
    # a bare name would read a local folder of that name instead
    address = f"hf://datasets/{ref.repo_id}"
    try:
        split = ref.split
        if split is None or split.isidentifier():  # the rest are slices such as `train[:10%]`
            splits = datasets.get_dataset_split_names(address, ref.config, revision=ref.revision)
            split = _choose(ref, "split", split, splits)
        return datasets.load_dataset(address, ref.config, split=split, revision=ref.revision)
    except ValueError:
        if not datasets.config.HF_HUB_OFFLINE:  # the cache does not tell the names
            _choose(
                ref, "config", ref.config, datasets.get_dataset_config_names(address, revision=ref.revision)
            )
        raise


def _choose(ref: DataRef, key: str, wanted: str | None, present: Sequence[str]) -> str:
    """Return `wanted` if it is there, or the only one there is."""
    shown = quoted(present)
    if wanted is None:
        if len(present) == 1:
            return present[0]
        raise DataError(f"{ref.source}: has several {key}s: {shown}", hint=f"choose one with `::{key}=NAME`")
    if wanted not in present:
        raise DataError(
            f"{ref.source}: has no {key} `{wanted}`; it has {shown}", hint=did_you_mean(wanted, present)
        )
    return wanted


@contextlib.contextmanager
def _translated(ref: DataRef) -> Iterator[None]:
    """Turn the library's errors into ours."""
    import datasets  # noqa: PLC0415 - as above
    from datasets.exceptions import DatasetNotFoundError, DatasetsError  # noqa: PLC0415 - as above
    from httpx2 import HTTPError  # noqa: PLC0415 - what huggingface_hub's transport raises; as above
    from huggingface_hub.errors import EntryNotFoundError  # noqa: PLC0415 - as above

    try:
        yield
    except DatasetNotFoundError as error:
        raise HubError(
            f"{ref.source}: is not on the Hub, or is private",
            hint="check the name; for a private or gated data set run `hf auth login`",
        ) from error
    except DatasetsError as error:
        raise DataError(f"{ref.source}: cannot be read: {_first_line(error)}") from error
    except (ConnectionError, TimeoutError, FileNotFoundError, HTTPError, EntryNotFoundError) as error:
        offline = datasets.config.HF_HUB_OFFLINE
        raise HubError(
            f"{ref.source}: cannot be reached: {_first_line(error)}",
            hint="it is not in the cache; unset HF_HUB_OFFLINE" if offline else "check the network",
        ) from error
    # slices that do not parse are ValueErrors, data sets that need their own code RuntimeErrors, full disks OSErrors
    except (ValueError, RuntimeError, OSError) as error:
        raise DataError(f"{ref.source}: cannot be read: {_first_line(error)}") from error


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the libraries' progress bars off the terminal, which is not ours to write to here."""
    import datasets  # noqa: PLC0415 - as above
    from huggingface_hub.utils.tqdm import (  # noqa: PLC0415 - as above
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    shown = not datasets.are_progress_bars_disabled()
    shown_hub = not are_progress_bars_disabled()
    if shown:
        datasets.disable_progress_bars()
    if shown_hub:
        disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
        if shown_hub:
            enable_progress_bars()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
