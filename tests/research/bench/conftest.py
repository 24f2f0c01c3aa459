"""Fixtures for command lines."""

from cli.conftest import call, environment, made, spawn

__all__ = ["call", "environment", "made", "spawn"]
