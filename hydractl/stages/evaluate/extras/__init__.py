"""What a row is asked beyond its metrics: curves, corrupted data, analyses."""
