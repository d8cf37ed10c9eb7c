"""Charts of the report: curves over the steps, and scores over the number of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, final

from markupsafe import Markup

from partialsgd.lab.page import svg
from partialsgd.lab.page.formatting import number
from partialsgd.lab.page.run_files import Level, Run
from partialsgd.logging import figures, series
from partialsgd.logging.series import Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind: TypeAlias = Literal["loss", "score", "ratio"]
Curves: TypeAlias = Mapping[str, Series]
"""Curves by the label of their level."""

MAX_POINTS = 100
"""A longer curve is drawn as means of neighbouring steps, because the noise of single batches would hide the others."""
_MAX_ANNOTATIONS = 6
_SWATCH_MARKERS = {
    "o": "M15-3a3 3 0 1 0 .01 0z",
    "s": "M12-3h6v6h-6z",
    "^": "M15-4l3.5 6.5h-7z",
    "D": "M15-4l4 4-4 4-4-4z",
    "v": "M15 4l3.5-6.5h-7z",
    "P": "M14-4h2v3h3v2h-3v3h-2V1h-3v-2h3z",
}


class LegendEntry(NamedTuple):
    """A label, and the color, dashes and marker of its line in SVG."""

    label: str
    color: str
    dashes: str
    marker: str


class Chart(NamedTuple):
    """A drawing, and its description in words for readers who cannot see it."""

    id: str
    title: str
    note: str
    description: str
    view_box: str
    drawing: Markup
    legend: Sequence[LegendEntry] = ()


@final
class Charts:
    """Draws the charts of one page, so that a level has the same color, dashes and marker in all of them."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        levels = [(run, name) for run in runs for name in (*(level.name for level in run.levels), *measured(run))]
        self.labels = list(dict.fromkeys(run.label(name) for run, name in levels))
        self._ids = (f"chart{k}" for k in count(1))

    def lines(self, curves: Curves, title: str, unit: str, note: str = "", kind: Kind = "loss") -> Chart:
        """Draw curves over the steps; a ratio has a line at 1, and four charts of ratios fit side by side."""
        figure = figures.new_figure(1)
        if kind == "ratio":
            figure.set_figwidth(2.5)
            figure.axes[0].axhline(1.0, color="0.6", linewidth=0.8, zorder=0.6)
        plot_labels = svg.plot_labels(self.labels)
        drawn = {plot: [curves.get(label, Series({}))] for label, plot in zip(self.labels, plot_labels, strict=True)}
        figures.draw_curves(figure.axes[0], drawn, "", log=kind != "score")
        description = " ".join(_describe(label, curve, unit, kind) for label, curve in curves.items())
        return self._chart(figure, title, note, description)

    def training(self) -> dict[str, Any]:
        """Draw the losses and scores over the steps, with one legend for all."""
        longest = max(len(run.steps) for run in self._runs)
        if not longest:
            return {"charts": [], "legend": []}
        note = "of the batch at each step"
        if longest > MAX_POINTS:
            note = f"means of neighbouring steps, at most {MAX_POINTS} points"
        losses, validation_losses = training_losses(self._runs), validation_curves(self._runs, "loss")
        charts = [self.lines(losses, "Training loss", "loss", note=note)]
        if validation_losses:
            charts.append(self.lines(validation_losses, "Validation loss", "loss"))
        for score in dict.fromkeys(run.score for run in self._runs if run.score):
            if curves := validation_curves(self._runs, score):
                charts.append(self.lines(curves, f"Validation {score}", score, kind="score"))
        return {"charts": charts, "legend": self.legend([*losses, *validation_losses])}

    def sizes(self, score: str) -> Chart | None:
        """Draw the test scores of all trained levels over their parameters; levels of one run are joined by a line."""
        runs = [run for run in self._runs if run.summary and run.score == score and run.trained]
        points = [(run.label(level.name), level) for run in runs for level in run.trained]
        if not points:
            return None
        figure = figures.new_figure(1)
        axes = figure.axes[0]
        for run in runs:
            sizes, scores = zip(*((level.parameters, level.score) for level in run.trained), strict=True)
            axes.plot(sizes, scores, color="0.6", linewidth=0.8, zorder=1)
        for label, level in points:
            style = {**figures.line_style(self.labels.index(label)), "linestyle": "none"}
            axes.plot([level.parameters or 0], [level.score or 0.0], markersize=5, **style)
        _finish_sizes(figure, [level for _, level in points])
        description = "; ".join(
            f"{label}: {number(level.parameters)} parameters, {score} {number(level.score)}" for label, level in points
        )
        legend = [] if len(self._runs) == 1 else self.legend([label for label, _ in points])
        title = f"{score[:1].upper()}{score[1:]} against size"
        return self._chart(figure, title, "on the test data", f"{description}.", legend)

    def legend(self, labels: Sequence[str]) -> list[LegendEntry]:
        """Return the entries of the given labels; a single curve needs no legend."""
        entries = [_legend_entry(label, k) for k, label in enumerate(self.labels) if label in labels]
        return entries if len(entries) > 1 else []

    def _chart(
        self, figure: Figure, title: str, note: str, description: str, legend: Sequence[LegendEntry] = ()
    ) -> Chart:
        for axes in figure.axes:
            axes.set_xlabel(axes.get_xlabel().replace("$t$", "t"))
            for axis in (axes.xaxis, axes.yaxis):
                if hasattr(formatter := axis.get_major_formatter(), "set_useOffset"):
                    formatter.set_useOffset(False)
            for line in axes.lines:
                line.set_label("_")  # the page has its own legends
        name = next(self._ids)
        view_box, drawing = svg.convert(figures.finish_figure(figure, None), name)
        return Chart(name, title, note, description, view_box, drawing, legend)


def measured(run: Run) -> dict[str, str]:
    """Return the recorded name of each level or probe with criteria, by the name that the page shows."""
    return {run.level_name(name): name for name in series.names(run.steps)}


def training_losses(runs: Sequence[Run]) -> Curves:
    """Return the batch losses; if a step passed a level more than once, their mean."""
    curves: dict[str, Series] = {}
    for run in runs:
        losses: dict[str, dict[int, list[float]]] = {}
        for step in run.steps:
            for level, loss in step["loss"].items():
                losses.setdefault(run.level_name(level), {}).setdefault(step["t"], []).append(loss)
        for level, values in losses.items():
            curves[run.label(level)] = _series({t: fmean(each) for t, each in values.items()})
    return curves


def validation_curves(runs: Sequence[Run], name: str) -> Curves:
    return {run.label(level): _series(values) for run in runs for level, values in run.validation(name).items()}


def thin(values: Mapping[int, float]) -> dict[int, float]:
    """Replace groups of neighbours by their mean at the middle step, so that at most MAX_POINTS are left."""
    size = math.ceil(len(values) / MAX_POINTS)
    steps = sorted(values)
    groups = [steps[k : k + size] for k in range(0, len(steps), size or 1)]
    return {group[len(group) // 2]: fmean(values[t] for t in group) for group in groups}


def _finish_sizes(figure: Figure, levels: Sequence[Level]) -> None:
    """Label the axis, and the levels if they are few; of levels with the same name and size only the best."""
    from matplotlib.ticker import EngFormatter

    axes = figure.axes[0]
    best = {(level.name, level.parameters): level for level in sorted(levels, key=lambda level: level.score or 0.0)}
    for level in best.values() if len(levels) <= _MAX_ANNOTATIONS else ():
        point = (float(level.parameters or 0), level.score or 0.0)
        style: Any = {"textcoords": "offset points", "fontsize": 8, "annotation_clip": False}
        axes.annotate(svg.plot_label(level.name), point, (5, 5), **style)
    figures.finish_panel(axes, "")
    axes.margins(0.15)
    axes.set_xlabel("parameters", fontsize=9)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.locator_params(axis="x", nbins=5)


def _series(values: Mapping[int, float]) -> Series:
    return series.ratio({t: {"": value} for t, value in thin(values).items()}, "", signed=True)


def _describe(label: str, curve: Series, unit: str, kind: Kind) -> str:
    values = {t: value for t, value in sorted(curve.values.items()) if math.isfinite(value)}
    if not values:
        return f"{label}: no values."
    best, word = (max, "highest") if kind == "score" else (min, "lowest")
    first, last, top = next(iter(values)), next(reversed(values)), best(values, key=values.__getitem__)
    return (
        f"{label}: {unit} {number(values[first])} at step {first:,}, {number(values[last])} at step {last:,}, "
        f"{word} {number(values[top])} at step {top:,}."
    )


def _legend_entry(label: str, position: int) -> LegendEntry:
    style = figures.line_style(position)
    line = style["linestyle"]
    dashes = "" if line == "-" else " ".join(str(1.6 * part) for part in line[1])
    return LegendEntry(label, svg.css_color(style["color"]), dashes, _SWATCH_MARKERS[style["marker"]])
