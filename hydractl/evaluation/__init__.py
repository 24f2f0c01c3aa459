"""Data, rows, thresholds, prediction sets, warnings and costs of `eval`."""
