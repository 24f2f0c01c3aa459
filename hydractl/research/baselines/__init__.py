"""What one may have for the same model without training it again: rows of a table beside hydras."""
