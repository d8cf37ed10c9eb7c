"""Errors that say whose they are."""

from __future__ import annotations


class WrongCall(ValueError):
    """A command was asked for what there is not: nothing has failed, and the call must be another."""


class NotThere(WrongCall, FileNotFoundError):
    """A run or its data, where the call says."""


class AlreadyThere(WrongCall, FileExistsError):
    """What would be written over."""
