"""The section on the methods in docs/results.md: a table for each task, and what it says in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean, median
from typing import final

from studies import pages
from studies.methods.settings import SETTINGS
from studies.methods.tasks import TASKS, Task
from studies.methods.train import FILE, Row, stored

HEAD = ("method", "accuracy", "smaller network", "time", "FLOPs", "learning rate")
NEAR = 0.01


@final
class Summary:
    """One method on one task, against plain training with the same seeds."""

    def __init__(self, rows: Sequence[Row], plain: Sequence[Row]) -> None:
        self.rows = rows
        self.method = rows[0].method
        plain_by_seed = {row.seed: row for row in plain}
        pairs = [(row, plain_by_seed[row.seed]) for row in rows if row.seed in plain_by_seed]
        self.time = median(row.seconds / other.seconds for row, other in pairs) if pairs else None
        self.flops = median(row.flops / other.flops for row, other in pairs) if pairs else None
        self.whole = [row.whole for row in rows if row.whole is not None]
        self.small = [row.small for row in rows if row.small is not None]
        gaps = [b.whole - a.whole for a, b in pairs if a.whole is not None and b.whole is not None]
        self.behind = mean(gaps) if gaps else None
        """By how much the whole network is less accurate than with plain training."""

    def cells(self) -> tuple[str, ...]:
        small = _accuracy(self.small) + (f", {SETTINGS[self.method].of}" if self.small else "")
        rates = _all(self.rows, lambda row: str(row.rate))
        return self.method, _accuracy(self.whole), small, _times(self.time), _times(self.flops), rates


def sections(file: Path = FILE) -> str:
    """A section for each task with stored trainings."""
    rows = stored(file)
    parts = [_section(task, summaries(task.name, rows)) for task in TASKS.values()]
    return "\n\n".join(part for part in parts if part) or "No training is stored yet."


def summaries(task: str, rows: Sequence[Row]) -> list[Summary]:
    """The stored trainings of a task, by method."""
    own = [row for row in rows if row.task == task]
    plain = [row for row in own if row.method == "plain"]
    return [Summary(list(group), plain) for _, group in groupby(own, key=lambda row: row.method)]


def _section(task: Task, methods: Sequence[Summary]) -> str:
    if not methods:
        return ""
    rows = [row for summary in methods for row in summary.rows]
    settings = "\n".join(f"- `{summary.rows[0].settings}`" for summary in methods)
    return "\n\n".join(
        [
            f"### {task.name}",
            f"{rows[0].task_settings}. {_conditions(rows)}",
            pages.table(HEAD, [_linked(summary.cells()) for summary in methods]),
            "\n".join(f"- {sentence}" for sentence in findings(methods)),
            f"Settings:\n\n{settings}",
        ]
    )


def _conditions(rows: Sequence[Row]) -> str:
    versions = f"torch {_all(rows, lambda row: row.torch)}, Python {_all(rows, lambda row: row.python)}"
    return f"Seeds {_all(rows, lambda row: str(row.seed))}; {versions}; {_dates(rows)}."


def findings(methods: Sequence[Summary]) -> list[str]:
    """Sentences made of the numbers."""
    others = [summary for summary in methods if summary.method != "plain"]
    plain = next((summary for summary in methods if summary.method == "plain"), None)
    if plain is None or not others:
        return ["There is nothing to compare yet."]
    near = [s.method for s in others if s.behind is not None and not _is_far(s)]
    far = [f"{s.method} (−{100 * s.behind:.1f})" for s in _by(others, "behind") if s.behind and _is_far(s)]
    less = [f"{s.method} ({s.flops:.2f})" for s in _by(others, "flops") if s.flops and s.flops < 0.995]
    faster = [f"{s.method} ({s.time:.2f})" for s in _by(others, "time") if s.time and s.time < 0.95]
    return [
        f"Plain training reaches {_accuracy(plain.whole)}. At most a point behind it, or ahead: {_listed(near)}.",
        f"More than a point behind, in points: {_listed(far)}.",
        f"Fewer FLOPs than plain training (its own are 1): {_listed(less)}.",
        f"Less time by 5 % or more: {_listed(faster)}.",
    ]


def _is_far(summary: Summary) -> bool:
    """True if a method is behind by more than NEAR, as shown with one decimal."""
    return summary.behind is not None and round(100 * summary.behind, 1) > 100 * NEAR


def _by(methods: Sequence[Summary], number: str) -> list[Summary]:
    return sorted(methods, key=lambda summary: getattr(summary, number) or 0.0)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _linked(cells: Sequence[str]) -> tuple[str, ...]:
    return f"[{cells[0]}](methods/{cells[0]}.md)", *cells[1:]


def _accuracy(values: Sequence[float]) -> str:
    """The mean and the range."""
    if not values:
        return "–"
    low, high = min(values), max(values)
    span = f" ({100 * low:.1f} – {100 * high:.1f})" if len(values) > 1 else ""
    return f"{mean(values):.1%}{span}"


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f} ×"


def _all(rows: Sequence[Row], of: Callable[[Row], str]) -> str:
    return ", ".join(sorted({of(row) for row in rows}))


def _dates(rows: Sequence[Row]) -> str:
    first, last = min(row.date for row in rows), max(row.date for row in rows)
    return first if first == last else f"{first} to {last}"
