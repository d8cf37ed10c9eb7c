"""The table: on the screen, and in the README from what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.figures import Record

README = Path(__file__).parent / "README.md"
HEAD = ("what", "limit", "measured", "95 % interval", "")
_BEGIN, _END = "<!-- written by `python -m benchmarks --write` -->", "<!-- end -->"


def screen(record: Record) -> Table:
    table = Table(title=f"{record.name}: {record.rounds} rounds, {record.threads} threads, torch {record.torch}")
    for column in HEAD:
        table.add_column(column, justify="left" if column == "what" else "right")
    for figure in record.figures:
        style = {"met": "green", "missed": "bold red"}.get(figure.verdict.removesuffix(" ~"))
        table.add_row(*figure.cells(), style=style)
    return table


def markdown(records: Sequence[Record]) -> str:
    rows = [HEAD, ("---", "--:", "--:", "--:", "---")]
    lines = [*rows, *(figure.cells() for record in records for figure in record.figures)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{table}\n\n" + "\n".join(_taken(record) for record in records)


def _taken(record: Record) -> str:
    return (
        f"- `{record.name}`: {record.date}, {record.rounds} rounds, {record.threads} threads, torch {record.torch}, "
        f"Python {record.python}, load {record.load} when it began"
    )


def in_place(text: str, table: str) -> str:
    """The page with its table replaced."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table}\n{_END}{after}"
