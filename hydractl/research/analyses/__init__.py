"""Analyses of `eval --analyse`. Analyses explain results of rows, and train nothing."""
