"""Blocks of a page that a command writes, between two comments."""

from __future__ import annotations

from collections.abc import Sequence


def begin(name: str) -> str:
    return f"<!-- {name}: written by `python -m studies.write` -->"


def end(name: str) -> str:
    return f"<!-- end of {name} -->"


def with_block(text: str, name: str, content: str) -> str:
    """The page with another content of the block."""
    if text.count(begin(name)) != 1 or text.count(end(name)) != 1:
        raise ValueError(f"the page must have {begin(name)} and {end(name)} once each")
    before, _, rest = text.partition(begin(name))
    _, _, after = rest.partition(end(name))
    return f"{before}{begin(name)}\n{content}\n{end(name)}{after}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A Markdown table whose first columns hold words, and the others numbers."""
    lines = [head, ["---"] * words + ["--:"] * (len(head) - words), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
