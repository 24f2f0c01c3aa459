"""Analyses of `eval --analyse`. They explain the results of rows, and train nothing."""
