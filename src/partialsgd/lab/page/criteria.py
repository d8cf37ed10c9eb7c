"""The criteria over time, and below them what the theorem makes of them."""

from __future__ import annotations

from collections.abc import Sequence

from partialsgd.lab.page import curves, numbers, readings
from partialsgd.lab.page.charts import Charts, grid
from partialsgd.lab.page.curves import Curves
from partialsgd.lab.page.markup import Html, el, folded, joined, listed, section
from partialsgd.lab.page.readings import Reading
from partialsgd.lab.page.runs import Run
from partialsgd.logging import series

_TITLES = {"c_norm": "c_norm", "c_sim": "c_sim", "c_align": "c_align", "alpha": "α", "q": "q"}
_NOTES = {
    "c_norm": "‖G‖ / ‖p ⊙ G‖",
    "c_sim": "‖p ⊙ G‖ / ‖p ⊙ G̃‖",
    "c_align": "1 / cos(p ⊙ G, p ⊙ G̃)",
    "q": "‖G‖ / (α ‖p ⊙ G̃‖)",
}
_WIDTH = 2.5  # inches: four stand side by side
_ABOUT = (
    "G is the gradient at x, p ⊙ G̃ the one that a step uses: masked, and taken at x̃. All of these are 1 in plain SGD; "
    "the larger c_norm, c_align and q are, and the further c_sim is from 1, the less a step is one of SGD."
)


def shown(runs: Sequence[Run], charts: Charts) -> Html:
    found = {run.name: readings.readings(run) for run in runs}
    measured = [run for run in runs if found[run.name]]
    if not measured:
        how = el("code", "partialsgd train --measure-every 50")
        said = joined(["Nothing was measured. ", how, " measures the criteria at every 50th step of each level."])
        return section("criteria", "Is it converging?", el("p", said))
    drawn = {key: _curves(runs, found, key) for key in _NOTES}
    figures = [_chart(charts, drawn[key], key) for key in _NOTES] if drawn["q"] else []
    return section(
        "criteria",
        "Is it converging?",
        el("p", _ABOUT),
        *([charts.legend(list(drawn["q"])), grid(figures, "figures four")] if figures else []),
        *(part for run in measured for part in _read(run, found[run.name], len(runs) > 1)),
        folded("What these numbers cannot say", listed(readings.limits(measured))),
        *_unmeasured(runs, measured),
    )


def _chart(charts: Charts, found: Curves, key: str) -> Html:
    return charts.lines(found, _TITLES[key], key, note=_NOTES[key], at_one=True, width=_WIDTH)


def _curves(runs: Sequence[Run], found: dict[str, list[Reading]], key: str) -> Curves:
    return {
        curves.name_of(run, reading.name, runs): series.ratio(reading.found, key)
        for run in runs
        for reading in found[run.name]
        if not reading.is_plain
    }


def _read(run: Run, found: Sequence[Reading], is_named: bool) -> list[Html]:
    parts: list[Html] = []
    method = str(run.settings.get("method", ""))
    for reading in found:
        parts.append(el("h3", f"{run.name} · {reading.name}" if is_named else reading.name))
        if reading.is_plain:
            count = numbers.counted(len(reading.found), "measured step")
            parts.append(el("p", f"All criteria are 1 at all of {count}: these are steps of plain training."))
            continue
        parts += [*_words(reading, method), el("p", readings.verdict(reading))]
    parts += [el("p", said, class_="warning") for said in readings.alerts(found)]
    bound = readings.alternating(run)
    return [*parts, el("p", bound)] if bound else parts


def _words(reading: Reading, method: str) -> list[Html]:
    """Each number, and what it says."""
    parts = [
        part
        for key, said in readings.words(reading, method).items()
        for part in (el("dt", el("strong", _TITLES[key]), f" {_halves(reading, key)}"), el("dd", said))
    ]
    about = f"Medians of the first and of the second half of {numbers.counted(len(reading.found), 'measurement')}:"
    return [el("p", about, class_="note"), el("dl", *parts, class_="words")]


def _halves(reading: Reading, key: str) -> str:
    return " → ".join(numbers.plain(_rounded(reading.median(key, part))) for part in (0, 1))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _unmeasured(runs: Sequence[Run], measured: Sequence[Run]) -> list[Html]:
    names = [run.name for run in runs if run not in measured]
    return [el("p", f"Nothing was measured in {numbers.named(names)}.", class_="note")] if names else []
