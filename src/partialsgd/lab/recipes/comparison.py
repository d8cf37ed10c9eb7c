"""Joint and separate training side by side: the numbers of finished runs, as a table, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any, TypeAlias, final

from rich.table import Table

Summary: TypeAlias = dict[str, Any]

_HEAD = ("level", "trained", "updates", "training FLOPs", "time")


@final
@dataclass(frozen=True)
class Pair:
    """The summaries of the runs with one seed."""

    seed: int
    joint: Summary
    alone: Mapping[str, Summary]


@final
@dataclass(frozen=True)
class Row:
    """A level, or all of them, trained in one way: means over the seeds."""

    level: str
    trained: str
    scores: tuple[float, ...]
    """One for each seed; of all levels together there is none."""
    updates: float
    flops: float
    seconds: float | None
    """None for a level that was trained together with the others, whose time cannot be told apart."""


def rows(pairs: Sequence[Pair]) -> list[Row]:
    """For each level jointly and alone, and what it took for all of them."""
    levels = list(pairs[0].joint["levels"])
    found = [row for level in levels for row in (_row(pairs, level, "jointly"), _row(pairs, level, "alone"))]
    return [*found, _total(found, "jointly", fmean(p.joint["seconds"] for p in pairs)), _total(found, "alone", None)]


def _row(pairs: Sequence[Pair], level: str, trained: str) -> Row:
    summaries = [pair.joint if trained == "jointly" else pair.alone[level] for pair in pairs]
    own = [summary["levels"][level] for summary in summaries]
    return Row(
        level,
        trained,
        tuple(row["test"][summary["score"]] for row, summary in zip(own, summaries, strict=True)),
        fmean(row["updates"] for row in own),
        fmean(row["flops"] for row in own),
        None if trained == "jointly" else fmean(summary["seconds"] for summary in summaries),
    )


def _total(found: Sequence[Row], trained: str, seconds: float | None) -> Row:
    own = [row for row in found if row.trained == trained]
    took = sum(row.seconds or 0.0 for row in own) if seconds is None else seconds
    return Row("all", trained, (), sum(row.updates for row in own), sum(row.flops for row in own), took)


def table(found: Sequence[Row], pairs: Sequence[Pair], budget: str) -> Table:
    shown = Table(title=_title(pairs, budget), caption=_caption(pairs))
    head, *cells = _cells(found, pairs)
    for name in head:
        shown.add_column(name, justify="left" if name in _HEAD[:2] else "right")
    for line, row in zip(cells, found, strict=True):
        shown.add_row(*line, end_section=row.trained == "alone")
    return shown


def as_markdown(found: Sequence[Row], pairs: Sequence[Pair], budget: str) -> str:
    head, *cells = _cells(found, pairs)
    lines = [head, ("---", "---", *("---:" for _ in head[2:])), *cells]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"# {_title(pairs, budget)}\n\n{body}\n\n{_caption(pairs)}\n"


def as_json(found: Sequence[Row], pairs: Sequence[Pair], budget: str) -> dict[str, Any]:
    first = pairs[0].joint
    return {
        "recipe": first["recipe"],
        "budget": budget,
        "score": first["score"],
        "seeds": [pair.seed for pair in pairs],
        "rows": [asdict(row) for row in found],
    }


def spread(values: Sequence[float]) -> str:
    """The mean, and the deviation of the sample where there is one."""
    if not values:
        return ""
    return f"{fmean(values):.4g}" + (f" ± {stdev(values):.2g}" if len(values) > 1 else "")


def _cells(found: Sequence[Row], pairs: Sequence[Pair]) -> Iterator[tuple[str, ...]]:
    level, trained, *costs = _HEAD
    yield (level, trained, pairs[0].joint["score"], *costs)
    for row in found:
        time = "" if row.seconds is None else f"{row.seconds:,.0f} s"
        yield (row.level, row.trained, spread(row.scores), f"{row.updates:,.0f}", f"{row.flops:.3g}", time)


def _title(pairs: Sequence[Pair], budget: str) -> str:
    each = {"epochs": "the same epochs", "updates": "the same updates", "flops": "the FLOPs of the whole joint run"}
    return f"{pairs[0].joint['recipe']}: jointly and alone; alone each level gets {each[budget]}"


def _caption(pairs: Sequence[Pair]) -> str:
    score, seeds = pairs[0].joint["score"], ", ".join(str(pair.seed) for pair in pairs)
    means = f"; means ± deviations of {len(pairs)} runs" if len(pairs) > 1 else ""
    return f"{score} on the test data, seed{'s' if len(pairs) > 1 else ''} {seeds}{means}"
