"""docs/loops.md keeps its promise: a loop with two sizes has at most five lines more or other than the loop before."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.test_docs import DOCS, blocks

PAGE = DOCS / "loops.md"


def before_and_after(page: Path, heading: str) -> tuple[list[str], list[str]]:
    """The first two blocks of code of a section; `tests/test_docs.py` runs them."""
    text = page.read_text(encoding="utf-8")
    begin = text[: text.index(f"\n## {heading}\n")].count("\n")
    before, after = [block for block in blocks(page) if block.line > begin and block.is_run][:2]
    return before.code.splitlines(), after.code.splitlines()


@pytest.mark.parametrize("heading", ["Hugging Face Trainer", "Lightning", "A plain loop"])
def test_at_most_five_lines_are_added_or_changed(heading: str) -> None:
    before, after = before_and_after(PAGE, heading)
    changes = [line for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    assert 0 < len(changes) <= 5, changes
    assert sum("partialsgd" in line for line in before) == 0
