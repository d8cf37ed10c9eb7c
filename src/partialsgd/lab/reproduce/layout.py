"""A table of texts, as Markdown and in a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from rich.table import Table as RichTable

_TERMINAL = 80


@final
@dataclass(frozen=True)
class Table:
    """Texts in rows and columns."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    """How many columns, from the left, hold words and not numbers."""
    note: str = ""


def as_markdown(table: Table, level: int = 2) -> str:
    line = [" --- "] * table.words + [" --: "] * (len(table.head) - table.words)
    body = [f"| {' | '.join(row)} |" for row in table.rows]
    lines = [f"{'#' * level} {table.title}", "", f"| {' | '.join(table.head)} |", f"|{'|'.join(line)}|", *body]
    return "\n".join([*lines, "", table.note] if table.note else lines)


def rich_table(table: Table) -> RichTable:
    """What would be wider than a terminal is set closer, and no cell loses its end."""
    heads = [max(map(len, name.split()), default=0) for name in table.head]  # a head may be broken between words
    widths = [max([head, *(len(row[k]) for row in table.rows)]) for k, head in enumerate(heads)]
    is_wide = sum(widths) + 3 * len(widths) + 1 > _TERMINAL
    shown = RichTable(title=table.title, caption=table.note or None, padding=(0, 0 if is_wide else 1))
    for k, name in enumerate(table.head):
        justify: Literal["left", "right"] = "left" if k < table.words else "right"
        shown.add_column(name, justify=justify, min_width=widths[k] if is_wide else heads[k], overflow="fold")
    for k, row in enumerate(table.rows):
        ends = k + 1 < len(table.rows) and table.rows[k + 1][0] != row[0]
        shown.add_row(*row, end_section=ends)
    return shown
