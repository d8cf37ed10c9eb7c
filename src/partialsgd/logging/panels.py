"""How a figure looks: told apart by line style and marker as well as colour, at the paper's width, no type under 8 pt.

Figures are made without pyplot, so that nothing global changes and no window is asked for.
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from partialsgd.logging.series import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.25, 6.75
"""The width of a column and of both, in inches."""
LOG_FROM = 30
"""The ratio of the largest value to the smallest from which an axis is logarithmic."""

COLORS = ("#0072B2", "#D55E00", "#000000", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito's
_STYLES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P")
_OFF_SCALE = {"negative": ("▼", "v", True), "infinite": ("△", "^", False), "undefined": ("×", "x", True)}
SMALL, LARGE, _ROW = 8, 9, 5  # points
_LETTERS, _LINE = 17, 0.16  # of the small size: how many to an inch, and how high
_SHAPES = {1: (1, 1, COLUMN, 2.3), 2: (2, 1, COLUMN, 3.9), 3: (1, 3, PAGE, 2.5), 4: (2, 2, PAGE, 4.1)}


def require_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise ImportError("to draw figures, matplotlib is needed: pip install partialsgd[lab]")


def sheet(count: int) -> Figure:
    """So many panels with one axis of steps."""
    require_matplotlib()
    from matplotlib.figure import Figure

    rows, columns, width, height = _SHAPES[count]
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for axes in panels[-1]:
        axes.set_xlabel("step $t$", fontsize=LARGE)
    return figure


def row(count: int) -> Figure:
    """So many panels beside each other, to be compared: with one scale of values."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN if count == 1 else PAGE, 2.5), layout="constrained")
    figure.subplots(1, count, sharex=True, sharey=True)
    return figure


def draw(
    axes: Axes,
    curves: Mapping[str, Sequence[Series]],
    label: str,
    *,
    smooth: int = 1,
    letter: str = "",
    log: bool = True,
) -> None:
    """Each run as a line, those of several seeds as their mean in a band."""
    notes: list[str] = []
    for number, (name, seeds) in enumerate(curves.items()):
        look = look_of(number)
        shown = [seed.smoothed(smooth) if smooth > 1 else seed for seed in seeds]
        if len(seeds) == 1 and smooth > 1:
            axes.plot(*_points(seeds[0].values), color=look["color"], linewidth=0.5, alpha=0.35, zorder=1)
        _draw_line(axes, shown, name, number, look)
        notes += _draw_off_scale(axes, seeds, name if len(curves) > 1 else "", len(notes), look)
    finish(axes, label, letter, notes)
    if log:
        _rescale(axes, [v for seeds in curves.values() for seed in seeds for v in seed.values.values()])


def finish(axes: Axes, label: str, letter: str = "", notes: Sequence[str] = ()) -> None:
    """What every panel has: the name of its values, a quiet grid, and notes above it."""
    axes.set_ylabel(label, fontsize=LARGE)
    axes.tick_params(which="both", labelsize=SMALL)
    axes.set_axisbelow(True)
    axes.grid(visible=True, color="0.9", linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if letter:
        axes.set_xlabel(f"{axes.get_xlabel()}\n({letter})", fontsize=LARGE)
    if notes:
        axes.set_title("\n".join(reversed(notes)), loc="right", fontsize=SMALL, pad=5 + _ROW * len(notes))


def finished(figure: Figure, to: str | os.PathLike[str] | None) -> Figure:
    """With one legend for all panels, and written if a path says where."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    lines = _note_lines(figure)
    if len(labels) > 1:
        columns = max(1, int(figure.get_figwidth() / (max(map(len, labels)) / _LETTERS + 0.7)))
        look: dict[str, Any] = {"fontsize": SMALL, "frameon": False, "handlelength": 3.5}
        figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), **look)
        lines += 1 + (len(labels) - 1) // columns
    figure.set_figheight(figure.get_figheight() + lines * _LINE)
    if to is not None:
        from matplotlib import rc_context

        with rc_context({"pdf.fonttype": 42}):  # printers and publishers refuse Type 3
            figure.savefig(os.fspath(to), dpi=300)
    return figure


def look_of(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of the n-th line."""
    return {
        "color": COLORS[number % len(COLORS)],
        "linestyle": _STYLES[number % len(_STYLES)],
        "marker": _MARKERS[number % len(_MARKERS)],
    }


def _note_lines(figure: Figure) -> int:
    """How many lines of text stand above the panels: those of the fullest in each row."""
    rows: dict[int, int] = {}
    for axes in figure.axes:
        place, note = axes.get_subplotspec(), axes.get_title(loc="right")
        if place is not None and note:
            rows[place.rowspan.start] = max(rows.get(place.rowspan.start, 0), note.count("\n") + 2)
    return sum(rows.values())


def _points(values: Mapping[int, float]) -> tuple[list[int], list[float]]:
    steps = sorted(values)
    return steps, [values[t] for t in steps]


def _draw_line(axes: Axes, seeds: Sequence[Series], name: str, number: int, look: Mapping[str, Any]) -> None:
    steps = sorted({t for seed in seeds for t in seed.values})
    at = [[v for seed in seeds if not math.isnan(v := seed.values.get(t, math.nan))] for t in steps]
    mean = [sum(values) / len(values) if values else math.nan for values in at]
    axes.plot(steps, mean, label=name, linewidth=1.2, markersize=3.5, markevery=_marked(mean, number), **look)
    if len(seeds) > 1:
        low, high = ([f(values) if values else math.nan for values in at] for f in (min, max))
        axes.fill_between(steps, low, high, color=look["color"], alpha=0.2, linewidth=0)


def _marked(values: Sequence[float], number: int) -> list[int]:
    """Some ten along the line, at other places on each; and points that have no neighbour to draw a line to."""
    there = [False, *(not math.isnan(value) for value in values), False]
    alone = {k for k in range(len(values)) if there[k + 1] and not there[k] and not there[k + 2]}
    every = max(1, len(values) // 10)
    return sorted(alone | set(range(number * every // 3 % every, len(values), every)))


def _draw_off_scale(axes: Axes, seeds: Sequence[Series], name: str, row: int, look: Mapping[str, Any]) -> list[str]:
    """A row of marks above the panel for what it cannot show, and a line that counts them."""
    from matplotlib.transforms import ScaledTranslation

    figure = axes.get_figure(root=True)
    assert figure is not None
    above = ScaledTranslation(0, (4 + _ROW * row) / 72, figure.dpi_scale_trans)
    told = []
    for kind, (glyph, marker, is_filled) in _OFF_SCALE.items():
        steps = [t for seed in seeds for t in getattr(seed, kind)]
        if not steps:
            continue
        told.append(f"{glyph}\N{NO-BREAK SPACE}{len(steps)}\N{NO-BREAK SPACE}{kind}")
        axes.plot(
            steps,
            [1.0] * len(steps),
            linestyle="none",
            marker=marker,
            markersize=3.5,
            markeredgewidth=0.6,
            color=look["color"],
            markerfacecolor=look["color"] if is_filled else "none",
            transform=axes.get_xaxis_transform() + above,
            clip_on=False,
        )
        axes.dataLim.update_from_data_x(steps, ignore=False)  # the marks lie within the axis of steps
        axes.autoscale_view()
    if not told:
        return []
    counts = f"{', '.join(told)} of {sum(len(seed.values) for seed in seeds)}"
    return [_in_lines(name, counts, _width(axes))]


def _in_lines(name: str, counts: str, width: int) -> str:
    """A long name loses its middle where this saves a line, for the legend has it whole."""
    if not name:
        return textwrap.fill(counts, width)
    room = width - len(counts) - 2
    if 8 <= room < len(name):
        name = f"{name[: room // 2 - 1]}…{name[-(room // 2) :]}"
    return textwrap.fill(f"{name}: {counts}", width)


def _width(axes: Axes) -> int:
    """How many letters a line above the panel holds."""
    figure, place = axes.get_figure(root=True), axes.get_subplotspec()
    assert figure is not None and place is not None
    return int(figure.get_figwidth() / place.get_gridspec().ncols * _LETTERS)


def _rescale(axes: Axes, values: Sequence[float]) -> None:
    """Logarithmic where positive values span more than LOG_FROM; a zero has its place below them."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) / min(positive) > LOG_FROM and not any(value < 0 for value in values):
        if 0 in values:
            axes.set_yscale("symlog", linthresh=min(positive))
            axes.yaxis.set_major_formatter(lambda value, _: _power(axes, value))
        else:
            axes.set_yscale("log")
            # matplotlib writes 10⁰, and between two powers of ten 6 × 10⁰; 1 and 6 are enough.
            axes.yaxis.set_major_formatter(lambda value, _: _power(axes, value))
            axes.yaxis.set_minor_formatter(lambda value, _: _between_powers(axes, value))


def _power(axes: Axes, value: float) -> str:
    """1 and 100, and from there on 10³, but for an axis that has 2000 between them."""
    if value <= 0 or 0.005 < value < 500 or _is_short(axes):
        return f"{value:g}"
    return f"$10^{{{round(math.log10(value))}}}$"


def _between_powers(axes: Axes, value: float) -> str:
    """2, 3 and 5 where the axis shows less than two powers of ten, and nothing where they are enough."""
    digit = round(value / 10 ** math.floor(math.log10(value)))
    return f"{value:g}" if _is_short(axes) and digit in (2, 3, 5) else ""


def _is_short(axes: Axes) -> bool:
    low, high = axes.get_ylim()
    return high < 100 * low
