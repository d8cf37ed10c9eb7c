"""The table: on the screen, and in the README from what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.figures import Record, stored

README = Path(__file__).parent / "README.md"
HEAD = ("what", "limit", "measured", "95 % interval", "")
_BEGIN, _END = "<!-- written by `python -m benchmarks --write` -->", "<!-- end -->"


def screen(record: Record) -> Table:
    table = Table(title=_taken(record).removeprefix("- ").replace("`", ""))
    for column in HEAD:
        table.add_column(column, justify="left" if column == "what" else "right")
    for figure in record.figures:
        style = {"met": "green", "missed": "bold red"}.get(figure.verdict.removesuffix(" ~"))
        table.add_row(*figure.cells(), style=style)
    return table


def tables(names: Sequence[str]) -> str:
    """All that is stored: with two threads, which the limits are meant for, and with one."""
    parts, by_name = [], stored()
    for threads, title in ((2, "Two threads"), (1, "One thread")):
        if records := [by_name[name, threads] for name in names if (name, threads) in by_name]:
            parts.append(f"### {title}\n\n{_table(records)}")
    return "\n\n".join(parts)


def _table(records: Sequence[Record]) -> str:
    rows = [HEAD, ("---", "--:", "--:", "--:", "---")]
    lines = [*rows, *(figure.cells() for record in records for figure in record.figures)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{table}\n\n" + "\n".join(_taken(record) for record in records)


def _taken(record: Record) -> str:
    return (
        f"- `{record.name}`: {record.date}, {record.rounds} rounds, {_threads(record.threads)}, torch {record.torch}, "
        f"Python {record.python}, others took {_share(record.others)}"
    )


def _threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


def _share(others: float | None) -> str:
    return "an unknown part of the machine" if others is None else f"{others:.1%} of the machine"


def in_place(text: str, table: str) -> str:
    """The page with its table replaced."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table}\n{_END}{after}"
