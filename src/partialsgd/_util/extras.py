"""The error for an optional package that is not installed."""

from __future__ import annotations


def missing(need: str, extra: str) -> ImportError:
    """Return the error for a missing package. Its command works in a clone: no package index may have the name."""
    return ImportError(f'{need}: pip install -c constraints.txt ".[{extra}]" in a clone of partialsgd')
