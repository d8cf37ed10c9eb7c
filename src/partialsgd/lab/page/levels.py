"""Which sizes came out, how good each is, and what it cost: the table, and the same in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from partialsgd.lab.page import numbers
from partialsgd.lab.page.markup import Html, boxed, el, folded, joined, listed, section, table
from partialsgd.lab.page.runs import Level, Run


class Cell(NamedTuple):
    """What is shown, and what it is sorted by; None, and what is not finite, comes last."""

    shown: str
    value: str | float | None


def shown(runs: Sequence[Run], lead: Html, figures: Sequence[Html]) -> Html:
    found = [_unfinished(run) for run in runs if not run.is_finished]
    notes = [*_signatures(runs), *(["A level with 0 updates had no steps of its own."] if _has_untrained(runs) else [])]
    how = (
        "Scores are on the test data, of the checkpoint that was best on the validation data. Latency: of one example, "
        "by the level taken out, on the machine of the run and beside whatever ran there."
    )
    return section(
        "levels",
        "Levels",
        *([el("p", lead, class_="lead")] if lead else []),
        *(el("p", one, class_="warning") for one in found),
        el("div", _table(runs), *figures, class_="beside"),
        *([el("p", " ".join([how, *notes]), class_="note")] if any(run.is_finished for run in runs) else []),
        *_all_numbers(runs),
    )


def columns(runs: Sequence[Run]) -> list[str]:
    scores = dict.fromkeys(run.score for run in runs if run.score and run.is_finished)
    latest = [] if all(run.is_finished for run in runs) else ["validation loss"]
    names = ["run"] if len(runs) > 1 else []
    known = ["parameters", "share", "training FLOPs", "updates", "latency"] if scores else ["updates"]
    return [*names, "level", *scores, *latest, *known]


def largest_scores(runs: Iterable[Run]) -> dict[str, float]:
    found: dict[str, float] = {}
    for run in runs:
        for level in run.levels:
            if run.score and level.test:
                found[run.score] = max(found.get(run.score, 0.0), level.test[run.score])
    return found


def cells(run: Run, level: Level, head: Sequence[str], largest: Mapping[str, float]) -> list[Cell]:
    """A row of the table."""
    losses = run.validation("loss").get(level.name, {})
    last = losses[max(losses)] if losses else None
    own: dict[str, Cell] = {
        "run": Cell(run.name, run.name),
        "level": Cell(level.name, level.name),
        "validation loss": Cell(numbers.plain(last), last),
        "parameters": Cell(numbers.whole(level.parameters), level.parameters),
        "share": Cell(numbers.share(level.share), level.share),
        "training FLOPs": Cell(numbers.power(level.flops), level.flops),
        "updates": Cell(numbers.whole(level.updates), level.updates),
        "latency": Cell(numbers.latency(level.latency), level.latency),
    }
    if run.score and level.test:
        value = level.test[run.score]
        own[run.score] = Cell(numbers.score(value, largest[run.score]), value)
    return [own.get(name, Cell(numbers.NOTHING, None)) for name in head]


def _table(runs: Sequence[Run]) -> Html:
    head = columns(runs)
    if not any(run.levels for run in runs):
        return Html("")
    words = head.index("level") + 1
    heads = (_head(name, "" if k < words else "number") for k, name in enumerate(head))
    largest = largest_scores(runs)
    rows = (_row(cells(run, level, head, largest), words) for run in runs for level in run.levels)
    whole = el("table", el("thead", el("tr", *heads)), el("tbody", *rows), class_="sorts")
    return boxed(whole, "The levels")


def _head(name: str, kind: str) -> Html:
    return el("th", el("button", name, type="button"), scope="col", aria_sort="none", class_=kind)


def _row(row: Sequence[Cell], words: int) -> Html:
    first, *rest = row
    return el(
        "tr",
        el("th", first.shown, scope="row", **_key(first)),
        *(el("td", c.shown, class_="" if k < words else "number", **_key(c)) for k, c in enumerate(rest, 1)),
    )


def _key(cell: Cell) -> dict[str, str]:
    """A sort reads this, not the text."""
    value = cell.value
    if isinstance(value, str):
        return {"data_text": value}
    return {"data_number": repr(float(value))} if value is not None and math.isfinite(value) else {}


def _unfinished(run: Run) -> Html:
    if run.failure is not None:
        made = numbers.counted(run.steps[-1]["t"] + 1 if run.steps else 0, "step")
        return joined([el("strong", run.name), f" has diverged after {made}: {run.failure}"])
    if not run.steps:
        return joined([el("strong", run.name), " has made no step yet: there is nothing to show of it."])
    last = run.steps[-1]
    epochs = f", epoch {last['epoch']:.3g} of {run.settings.get('epochs', '?')}" if "epoch" in last else ""
    return joined(
        [
            el("strong", run.name),
            f" is not at its end: {numbers.counted(last['t'] + 1, 'step')} so far{epochs}. Sizes, test scores and "
            "costs are known when it is; ",
            el("code", f"partialsgd resume {run.path}"),
            " goes on with it if it was stopped.",
        ]
    )


def _has_untrained(runs: Iterable[Run]) -> bool:
    return any(not level.updates for run in runs if run.is_finished for level in run.levels)


def _signatures(runs: Sequence[Run]) -> list[str]:
    found = dict.fromkeys(str(run.extras["signature"]) for run in runs if "signature" in run.extras)
    return [f"sacrebleu signature: {signature}." for signature in found]


def _all_numbers(runs: Sequence[Run]) -> list[Html]:
    """Everything that was measured on the test data."""
    ended = [run for run in runs if run.is_finished]
    if not ended:
        return []
    parts: list[Html] = []
    for run in ended:
        names = dict.fromkeys(name for level in run.levels for name in level.test or {})
        rows = ([name, *(numbers.plain((level.test or {}).get(name)) for level in run.levels)] for name in names)
        title = f"All numbers on the test data, {run.name}"
        parts += [el("h3", run.name)] if len(ended) > 1 else []
        parts.append(table(["", *(level.name for level in run.levels)], rows, title=title))
    return [folded("All numbers on the test data", *parts)]


def meta(runs: Sequence[Run]) -> Html:
    """What the page is of, in a line for each run."""
    return listed((_meta(run, len(runs) > 1) for run in runs), class_="meta")


def _meta(run: Run, is_named: bool) -> Html:
    said = [run.recipe, str(run.settings.get("method", "")), f"seed {run.settings.get('seed', '?')}"]
    levels = f"trains {numbers.named([level.name for level in run.trained])}" if run.trained else ""
    steps = numbers.counted((run.summary or {}).get("steps", len(run.steps)), "step")  # some may not be in the log
    ended = "not at its end" if run.failure is None else "diverged"
    time = f"{numbers.duration(run.seconds)} of training" if run.is_finished else ended
    time += f", {numbers.duration(run.wall)} with evaluations" if run.wall is not None else ""
    line = " · ".join(part for part in (*said, levels, steps, time) if part)
    return joined([*([el("strong", run.name), " "] if is_named else []), line])
