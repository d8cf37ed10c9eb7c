"""Helpers for tests of the command line: how a call is typed and its answer read, and which recipes there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from partialsgd.lab import recipes

Call: TypeAlias = Callable[..., tuple[Any, str, str]]
"""The arguments of a call → its exit code, what it prints and what it says of errors."""

RECIPES = sorted(path.parent.name for path in Path(str(recipes.__file__)).parent.glob("*/settings.py"))
"""By their folders: what other tests register is none of them."""


def without_space(text: str) -> str:
    return re.sub(r"[\s│]+", "", text)


def require_wrong(call: Call, argv: list[str], message: str) -> None:
    """A wrong call ends with 2, prints nothing and names what is wrong."""
    code, out, err = call(*argv)
    assert (code, out) == (2, "")
    assert message in err and "Traceback" not in err


def as_text(value: object) -> str:
    """The name of a case: the words of its call, and no message."""
    return " ".join(value) if isinstance(value, list) else ""
