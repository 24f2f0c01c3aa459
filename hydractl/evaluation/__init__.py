"""Measurements of `eval`: data, rows, guarantees, caveats, costs and conditions."""
