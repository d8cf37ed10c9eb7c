"""The paper's Figures 2, 3 and 4 and the losses, drawn from the metrics of runs.

Lines differ in dashes and markers as well as colour, and type is at least 8 pt at the paper's column width. Figures are
made without pyplot, so that no global state changes and no window opens.
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from partialsgd._util.extras import missing
from partialsgd.logging import series
from partialsgd.logging.metrics_log import AnyPath, Record
from partialsgd.logging.series import Measured, Runs, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Name: TypeAlias = Literal["criteria", 2, 3, 4]
Curves: TypeAlias = Mapping[str, Sequence[Series]]  # seeds by label

FIGURES: dict[Name, tuple[str, ...]] = {
    "criteria": ("c_norm", "c_sim", "c_align", "q"),
    2: ("c_sim", "c_align"),
    3: ("cosine",),
    4: ("c_norm", "c_sim", "c_align"),
}
_SQUARED = (2, 4)

_G, _PG, _PGT = r"\Vert G\,\Vert", r"\Vert p\odot G\,\Vert", r"\Vert p\odot\tilde{G}\,\Vert"
_INNER = r"\langle p\odot G,\, p\odot\tilde{G}\,\rangle"
_FRACTIONS = {
    "c_norm": ([_G], [_PG]),
    "c_sim": ([_PG], [_PGT]),
    "c_align": ([_PG, _PGT], [_INNER]),
    "cosine": ([_INNER], [_PG, _PGT]),
}

COLUMN, PAGE = 3.25, 6.75  # the widths of one and of both columns of the paper, in inches
LOG_FROM = 30  # an axis is logarithmic if its largest value is this many times its smallest
COLORS = ("#0072B2", "#D55E00", "#000000", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito's
_STYLES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P")
_OFF_SCALE = {"negative": ("▼", "v", True), "infinite": ("△", "^", False), "undefined": ("×", "x", True)}
SMALL, LARGE, _ROW = 8, 9, 5  # points
_LETTERS, _LINE = 17, 0.16  # letters to an inch and inches to a line, in the small size
_SHAPES = {1: (1, 1, COLUMN, 2.3), 2: (2, 1, COLUMN, 3.9), 3: (1, 3, PAGE, 2.5), 4: (2, 2, PAGE, 4.1)}


def plot_criteria(
    runs: Runs,
    *,
    figure: Name = "criteria",
    at: str | None = None,
    group: str | None = None,
    smooth: int = 1,
    to: AnyPath | None = None,
) -> Figure:
    """Draw the criteria of runs over their steps, as in Figure 2, 3 or 4 of the paper or, by default, unsquared.

    A run is a metrics file or its records. Several runs under one label are seeds: their mean is drawn in a band from
    minimum to maximum. `at` names the level or probe and `group` a group of its layers; by default a run shows its
    probe, or else the level farthest from plain training. `smooth=n` draws the running median of n measurements over
    the measurements themselves. Ratios that are negative, infinite or 0/0 are marked and counted above the panel.
    """
    if figure not in FIGURES:
        raise ValueError(f"figure must be one of {', '.join(map(repr, FIGURES))}; got {figure!r}")
    measured = dict(_measured(label, seeds, at, group) for label, seeds in series.load(runs).items())
    sheet, squared = new_figure(len(FIGURES[figure])), figure in _SQUARED
    for axes, key, letter in zip(sheet.axes, FIGURES[figure], "abcd", strict=False):
        ratio = partial(series.ratio, key=key, squared=squared, signed=key == "cosine")
        curves = {label: [ratio(seed) for seed in seeds] for label, seeds in measured.items()}
        axes.axhline(1.0, color="0.6", linewidth=0.8, zorder=0.6)  # plain training is at 1
        letter = letter if figure == 4 else ""
        draw_curves(axes, curves, _label(key, squared), smooth=smooth, letter=letter, log=key != "cosine")
    return finish_figure(sheet, to)


def plot_losses(runs: Runs, *, smooth: int = 1, to: AnyPath | None = None) -> Figure:
    """Draw the loss of each level over the steps that trained it; the options are those of `plot_criteria`."""
    curves: dict[str, list[Series]] = {}
    for label, seeds in series.load(runs).items():
        levels = list(dict.fromkeys(level for seed in seeds for step in seed for level in step["loss"]))
        for level in levels:
            losses = [{step["t"]: step["loss"] for step in seed if level in step["loss"]} for seed in seeds]
            name = f"{label}, {level}" if len(levels) > 1 else label
            curves[name] = [series.ratio(loss, level, signed=True) for loss in losses]
    if not curves:
        raise ValueError("no step has a loss: return the loss from the closure, or set g.loss")
    sheet = new_figure(1)
    draw_curves(sheet.axes[0], curves, "loss", smooth=smooth)
    return finish_figure(sheet, to)


def require_matplotlib() -> None:
    """Raise if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise missing("to draw figures, matplotlib is needed", "lab")


def new_figure(count: int) -> Figure:
    """Return a figure with this many panels that share the axis of steps."""
    require_matplotlib()
    from matplotlib.figure import Figure

    rows, columns, width, height = _SHAPES[count]
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for axes in panels[-1]:
        axes.set_xlabel("step $t$", fontsize=LARGE)
    return figure


def draw_curves(axes: Axes, curves: Curves, label: str, *, smooth: int = 1, letter: str = "", log: bool = True) -> None:
    """Draw each run as a line; several seeds are drawn as their mean in a band from minimum to maximum."""
    if smooth < 1:
        raise ValueError(f"smooth must be at least 1 measurement, got {smooth}; 1 means no smoothing")
    notes: list[str] = []
    for number, (name, seeds) in enumerate(curves.items()):
        style = line_style(number)
        shown = [seed.smoothed(smooth) if smooth > 1 else seed for seed in seeds]
        if len(seeds) == 1 and smooth > 1:
            raw = dict(sorted(seeds[0].values.items()))
            axes.plot(list(raw), list(raw.values()), color=style["color"], linewidth=0.5, alpha=0.35, zorder=1)
        _draw_line(axes, shown, name, number, style)
        notes += _draw_off_scale(axes, seeds, name if len(curves) > 1 else "", len(notes), style)
    finish_panel(axes, label, letter, notes)
    if log:
        _rescale(axes, [v for seeds in curves.values() for seed in seeds for v in seed.values.values()])


def finish_panel(axes: Axes, label: str, letter: str = "", notes: Sequence[str] = ()) -> None:
    """Add to a panel what every panel has: the label of its values, a grid, and notes above it."""
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


def finish_figure(figure: Figure, to: AnyPath | None) -> Figure:
    """Add one legend for all panels, and save the figure if `to` is a path."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    lines = _note_lines(figure)
    if len(labels) > 1:
        columns = max(1, int(figure.get_figwidth() / (max(map(len, labels)) / _LETTERS + 0.7)))
        style: dict[str, Any] = {"fontsize": SMALL, "frameon": False, "handlelength": 3.5}
        figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), **style)
        lines += 1 + (len(labels) - 1) // columns
    figure.set_figheight(figure.get_figheight() + lines * _LINE)
    if to is not None:
        from matplotlib import rc_context

        with rc_context({"pdf.fonttype": 42}):  # printers and publishers refuse Type 3 fonts
            figure.savefig(os.fspath(to), dpi=300)
    return figure


def line_style(number: int) -> dict[str, Any]:
    """Return the colour, dashes and marker of the n-th line."""
    cycles: dict[str, Sequence[Any]] = {"color": COLORS, "linestyle": _STYLES, "marker": _MARKERS}
    return {name: cycle[number % len(cycle)] for name, cycle in cycles.items()}


def _measured(label: str, seeds: list[list[Record]], at: str | None, group: str | None) -> tuple[str, list[Measured]]:
    """Return the measurements of one probe or level, with a label that names it if there was a choice."""
    names = series.names(step for seed in seeds for step in seed)
    if not names:
        raise ValueError(f"run {label!r} has no criteria: measure them with PartialSGD(..., meter=ps.CriteriaMeter())")
    if at is not None and at not in names:
        raise ValueError(f"run {label!r} has no measurement of {at!r}; it has {', '.join(names)}")
    label = f"{label} ({names[0]})" if at is None and len(names) > 1 else label
    return label, [series.measured(seed, at or names[0], group) for seed in seeds]


def _label(key: str, squared: bool) -> str:
    if key == "q":
        return "$q_t$"
    power = "^2" if squared else ""
    top, bottom = (r"\,".join(f"{norm}{power}" for norm in norms) for norms in _FRACTIONS[key])
    fraction = rf"\dfrac{{{top}}}{{{bottom}}}"
    return f"${fraction}$" if key == "cosine" else rf"$c_{{\mathrm{{{key[2:]}}}}}{power} = {fraction}$"


def _note_lines(figure: Figure) -> int:
    """Return the number of text lines above the panels: in each row of panels, those of the fullest."""
    rows: dict[int, int] = {}
    for axes in figure.axes:
        spec, note = axes.get_subplotspec(), axes.get_title(loc="right")
        if spec is not None and note:
            rows[spec.rowspan.start] = max(rows.get(spec.rowspan.start, 0), note.count("\n") + 2)
    return sum(rows.values())


def _draw_line(axes: Axes, seeds: Sequence[Series], name: str, number: int, style: Mapping[str, Any]) -> None:
    steps = sorted({t for seed in seeds for t in seed.values})
    at = [[v for seed in seeds if not math.isnan(v := seed.values.get(t, math.nan))] for t in steps]
    mean = [sum(values) / len(values) if values else math.nan for values in at]
    axes.plot(steps, mean, label=name, linewidth=1.2, markersize=3.5, markevery=_marked(mean, number), **style)
    if len(seeds) > 1:
        low, high = ([f(values) if values else math.nan for values in at] for f in (min, max))
        axes.fill_between(steps, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _marked(values: Sequence[float], number: int) -> list[int]:
    """Return about ten points along the line, different for each line, and all points without a neighbour."""
    is_drawn = [False, *(not math.isnan(value) for value in values), False]
    alone = {k for k in range(len(values)) if is_drawn[k + 1] and not is_drawn[k] and not is_drawn[k + 2]}
    every = max(1, len(values) // 10)
    return sorted(alone | set(range(number * every // 3 % every, len(values), every)))


def _draw_off_scale(axes: Axes, seeds: Sequence[Series], name: str, row: int, style: Mapping[str, Any]) -> list[str]:
    """Draw a row of marks above the panel for numbers that it cannot show, and return a note that counts them."""
    from matplotlib.transforms import ScaledTranslation

    figure = axes.get_figure(root=True)
    assert figure is not None
    above = ScaledTranslation(0, (4 + _ROW * row) / 72, figure.dpi_scale_trans)
    counts = []
    for kind, (glyph, marker, is_filled) in _OFF_SCALE.items():
        steps = [t for seed in seeds for t in getattr(seed, kind)]
        if not steps:
            continue
        counts.append(f"{glyph}\N{NO-BREAK SPACE}{len(steps)}\N{NO-BREAK SPACE}{kind}")
        fill = style["color"] if is_filled else "none"
        mark: dict[str, Any] = {"marker": marker, "markersize": 3.5, "markeredgewidth": 0.6, "markerfacecolor": fill}
        above_panel: dict[str, Any] = {"transform": axes.get_xaxis_transform() + above, "clip_on": False}
        axes.plot(steps, [1.0] * len(steps), linestyle="none", color=style["color"], **mark, **above_panel)
        axes.dataLim.update_from_data_x(steps, ignore=False)  # the marks lie within the axis of steps
        axes.autoscale_view()
    if not counts:
        return []
    note, spec = f"{', '.join(counts)} of {sum(len(seed.values) for seed in seeds)}", axes.get_subplotspec()
    assert spec is not None
    width = int(figure.get_figwidth() / spec.get_gridspec().ncols * _LETTERS)
    room = width - len(note) - 2
    if 8 <= room < len(name):  # to save a line; the legend has the whole name
        name = f"{name[: room // 2 - 1]}…{name[-(room // 2) :]}"
    return [textwrap.fill(f"{name}: {note}" if name else note, width)]


def _rescale(axes: Axes, values: Sequence[float]) -> None:
    """Make the axis logarithmic if positive values span more than LOG_FROM; a zero is then shown below them."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) / min(positive) > LOG_FROM and not any(value < 0 for value in values):
        if 0 in values:
            axes.set_yscale("symlog", linthresh=min(positive))
        else:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(lambda value, _: _between_powers(axes, value))
        axes.yaxis.set_major_formatter(lambda value, _: _power(axes, value))  # matplotlib would write 1 as 10⁰


def _power(axes: Axes, value: float) -> str:
    """Return 1 and 100 as they are and 1000 as 10³, unless the axis spans less than two powers of ten."""
    if value <= 0 or 0.005 < value < 500 or _is_short(axes):
        return f"{value:g}"
    return f"$10^{{{round(math.log10(value))}}}$"


def _between_powers(axes: Axes, value: float) -> str:
    """Return a label for 2, 3 and 5 if the axis spans less than two powers of ten, and none otherwise."""
    digit = round(value / 10 ** math.floor(math.log10(value)))
    return f"{value:g}" if _is_short(axes) and digit in (2, 3, 5) else ""


def _is_short(axes: Axes) -> bool:
    low, high = axes.get_ylim()
    return high < 100 * low
