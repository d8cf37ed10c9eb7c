"""The names that a run directory uses in and beside its metrics file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FAILED = "failed.json"
"""The file in the directory of a run that diverged; such a run has no final scores."""
VALID = "valid/"
"""The prefix of validation numbers in a record: valid/core/loss."""


def evaluation(record: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the validation numbers of a record by level; a level's name may have a slash, as in valid/1/4/loss."""
    levels: dict[str, dict[str, float]] = {}
    for key, value in record.items():
        if key.startswith(VALID):
            level, _, name = key.removeprefix(VALID).rpartition("/")
            levels.setdefault(level, {})[name] = float(value)
    return levels
