"""Data sets, preprocessing and batches."""
