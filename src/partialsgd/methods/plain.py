"""p = 1, δx = 0: stochastic gradient descent, or whatever the optimizer makes of it."""

from __future__ import annotations

from partialsgd.method import Method


def plain() -> Method:
    """Plain training: every coordinate moves, nothing is perturbed."""
    return Method(name="plain")
