"""A table in Markdown and in a terminal."""

from __future__ import annotations

import io

from partialsgd.lab.reproduce.layout import Table, as_markdown, rich_table
from rich.console import Console

SIZES = Table("Sizes", ("r", "network", "BLEU"), (("1/4", "core", "1.00"), ("1/8", "core", "–")), words=2, note="Told.")


def test_in_markdown_words_stand_left_and_numbers_right() -> None:
    assert as_markdown(SIZES, level=3).splitlines() == [
        "### Sizes",
        "",
        "| r | network | BLEU |",
        "| --- | --- | --: |",
        "| 1/4 | core | 1.00 |",
        "| 1/8 | core | – |",
        "",
        "Told.",
    ]


def test_in_a_terminal_a_line_parts_what_differs_in_the_first_column() -> None:
    page = io.StringIO()
    Console(file=page, width=40).print(rich_table(SIZES))
    lines = [line.strip() for line in page.getvalue().splitlines()]
    first, second = (next(k for k, line in enumerate(lines) if ratio in line) for ratio in ("1/4", "1/8"))
    assert lines[0] == "Sizes" and lines[-1] == "Told."
    assert second == first + 2 and lines[first + 1].startswith("├")


def test_a_wide_table_keeps_every_letter_in_eighty_columns() -> None:
    head = ("r", "network", "trained", "parameters", "FLOPs", "FLOPs, paper", "ours, as it counts", "time")
    row = ("1/2", "core", "alternating", "11,173,962", "1.18e+12", "3.13e+13", "3.99e+11", "36.1 s")
    page = io.StringIO()
    Console(file=page, width=80).print(rich_table(Table("Sizes", head, (row,), words=3)))
    (line,) = (line for line in page.getvalue().splitlines() if "core" in line)
    assert line.replace("│", " ").split() == " ".join(row).split() and len(line) <= 80
