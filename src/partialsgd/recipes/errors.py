"""Errors that say whose they are."""

from __future__ import annotations


class WrongCall(ValueError):
    """A command was asked for what there is not: nothing has failed, and the call must be another."""
