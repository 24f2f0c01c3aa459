"""Limits of the lists in a report. Importing this module loads no other."""

from __future__ import annotations

MOST_CLASSES, MOST_CONFUSIONS, MOST_EXAMPLES = 100, 20, 100
