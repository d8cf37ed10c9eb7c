"""The figures of a page: one panel each, so that a phone shows them one below the other, and one legend for several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeAlias, final

from partialsgd.lab.page import curves, numbers, svg
from partialsgd.lab.page.curves import Curves
from partialsgd.lab.page.markup import Html, el, joined
from partialsgd.lab.page.runs import Level, Run
from partialsgd.logging import panels
from partialsgd.logging.series import Series

Point: TypeAlias = tuple[str, Run, Level]
"""The name of a level of a run, and both."""

_MARKERS = {
    "o": "M15-3a3 3 0 1 0 .01 0z",
    "s": "M12-3h6v6h-6z",
    "^": "M15-4l3.5 6.5h-7z",
    "D": "M15-4l4 4-4 4-4-4z",
    "v": "M15 4l3.5-6.5h-7z",
    "P": "M14-4h2v3h3v2h-3v3h-2V1h-3v-2h3z",
}
_NO_LEGEND = Html("")
_ANNOTATED = 6  # points whose names have a place beside them


@final
class Charts:
    """Draws for one page: curves of one name look the same in all figures, and each figure has ids of its own."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._names = curves.names(runs)
        self._ids = (f"f{k}" for k in count(1))

    def lines(
        self,
        found: Curves,
        title: str,
        unit: str,
        *,
        note: str = "",
        log: bool = True,
        best: Callable[..., int] = min,
        at_one: bool = False,
        width: float = panels.COLUMN,
    ) -> Html:
        """Numbers over the steps; `at_one` draws the line where plain training is."""
        sheet = panels.sheet(1)
        sheet.set_figwidth(width)
        axes = sheet.axes[0]
        if at_one:
            axes.axhline(1.0, color="0.6", linewidth=0.8, zorder=0.6)
        labels = svg.labels(self._names)
        drawn = {label: [found.get(name, Series({}))] for name, label in zip(self._names, labels, strict=True)}
        panels.draw(axes, drawn, "", log=log)
        return self._figure(sheet, title, note, curves.told(found, unit, best=best))

    def sizes(self, points: Sequence[Point], score: str) -> Html:
        """The score of levels against their size; those of one run are joined, and of several it is told which."""
        sheet = panels.sheet(1)
        axes = sheet.axes[0]
        for run in dict.fromkeys(run.name for _, run, _ in points):
            own = [(level.parameters, (level.test or {})[score]) for _, r, level in points if r.name == run]
            axes.plot(*zip(*own, strict=True), color="0.6", linewidth=0.8, zorder=1)
        for name, _, level in points:
            at = (float(level.parameters or 0), (level.test or {})[score])
            look = panels.look_of(self._names.index(name))
            axes.plot([at[0]], [at[1]], linestyle="none", markersize=5, **_marker(look))
        if len(points) <= _ANNOTATED:
            for (named, _), at in _highest(points, score).items():
                axes.annotate(
                    svg.label(named), at, (5, 5), textcoords="offset points", fontsize=8, annotation_clip=False
                )
        panels.finish(axes, "")
        axes.margins(0.15)
        axes.set_xlabel("parameters", fontsize=9)
        axes.xaxis.set_major_formatter(lambda value, _: _short(value))
        axes.locator_params(axis="x", nbins=5)
        words = "; ".join(
            f"{name}: {numbers.whole(level.parameters)} parameters, {score} {numbers.plain((level.test or {})[score])}"
            for name, _, level in points
        )
        legend = self.legend([name for name, _, _ in points]) if len(self._runs) > 1 else _NO_LEGEND
        title = f"{score[:1].upper()}{score[1:]} against size"
        return self._figure(sheet, title, "on the test data", f"{words}.", legend)

    def legend(self, shown: Sequence[str]) -> Html:
        """What the lines are; nothing where there is one."""
        items = [el("li", _swatch(self._names.index(name)), name) for name in self._names if name in shown]
        return el("ul", *items, class_="legend") if len(items) > 1 else _NO_LEGEND

    def _figure(self, sheet: Any, title: str, note: str, words: str, legend: Html = _NO_LEGEND) -> Html:
        for axes in sheet.axes:
            axes.set_xlabel(axes.get_xlabel().replace("$t$", "t"))
            for axis in (axes.xaxis, axes.yaxis):
                _without_offset(axis.get_major_formatter())
            for line in axes.lines:
                line.set_label("_")  # the page has one legend for several figures
        drawn = svg.inline(panels.finished(sheet, None), next(self._ids), title, words)
        caption = [el("strong", title), *([el("span", f" {note}", class_="note")] if note else [])]
        return el("figure", el("figcaption", *caption), drawn, legend)


def grid(figures: Sequence[Html], kind: str = "figures") -> Html:
    return el("div", *figures, class_=kind)


def _without_offset(formatter: Any) -> None:
    """Each tick says its whole number; a formatter of a logarithmic axis does so anyway."""
    if hasattr(formatter, "set_useOffset"):
        formatter.set_useOffset(False)


def _marker(look: dict[str, Any]) -> dict[str, Any]:
    return {key: look[key] for key in ("color", "marker")}


def _highest(points: Sequence[Point], score: str) -> dict[tuple[str, int | None], tuple[float, float]]:
    """Of levels with one name and one size the best: several labels would lie on each other, and the legend has all."""
    found: dict[tuple[str, int | None], tuple[float, float]] = {}
    for _, _, level in points:
        at = (float(level.parameters or 0), (level.test or {})[score])
        known = found.get((level.name, level.parameters), at)
        found[level.name, level.parameters] = max(at, known)
    return found


def _short(value: float) -> str:
    """Of parameters: 142k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _swatch(number: int) -> Html:
    look = panels.look_of(number)
    color, style = svg.color(look["color"]), look["linestyle"]
    dashes = "" if style == "-" else f' stroke-dasharray="{" ".join(str(1.6 * part) for part in style[1])}"'
    return joined(
        [
            Html('<svg viewBox="0 -6 30 12" aria-hidden="true">'),
            Html(f'<path d="M0 0H30" style="stroke: {color}" stroke-width="1.8" fill="none"{dashes}/>'),
            Html(f'<path d="{_MARKERS[look["marker"]]}" style="fill: {color}"/></svg>'),
        ]
    )
