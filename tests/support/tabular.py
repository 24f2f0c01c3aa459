"""Write rows as CSV, JSON Lines or Parquet."""

from __future__ import annotations

import csv
import json

import datasets


def write(path, rows, features=None):
    """Write rows in the format of the path's suffix, and return the path.

    Args:
        path: Output file.
        rows: Rows with equal keys.
        features: Column types for Parquet.
    """
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet(path, {key: [row[key] for row in rows] for key in rows[0]}, features)
    return path


def parquet(path, columns, features=None):
    """Write columns as Parquet without a progress bar."""
    hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(path))
    if not hidden:
        datasets.enable_progress_bars()
