"""Figures can be read: in print, in grey, by anyone, and nothing vanishes from them."""

from __future__ import annotations

import math

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from partialsgd.logging import panels, plot_criteria, plot_losses
from tests.logging.made import measured, noisy, run

NAMES = ["criteria", 2, 3, 4]


def lines_of(figure: Figure, panel: int = 0) -> dict[str, Line2D]:
    return {str(line.get_label()): line for line in figure.axes[panel].lines if str(line.get_label())[0] != "_"}


def marks_of(figure: Figure, panel: int, marker: str) -> list[int]:
    rows = [line for line in figure.axes[panel].lines if line.get_linestyle() == "None"]
    return [int(t) for line in rows if line.get_marker() == marker for t in line.get_xdata()]


def note_of(figure: Figure, panel: int) -> str:
    return " ".join(figure.axes[panel].get_title(loc="right").split())


def crowded(name: object, count: int = 5) -> Figure:
    runs = {
        f"switching every {4**k} steps": [noisy(k + s, level=3.0**k, negative=0.1 * k) for s in range(2)]
        for k in range(count)
    }
    runs["one that is not finite"] = run(*[measured(math.inf, math.inf, value) for value in (math.inf, math.nan, -1.0)])
    return plot_criteria(runs, figure=name, smooth=3)


def test_lines_differ_in_more_than_colour() -> None:
    lines = list(lines_of(plot_criteria({str(k): noisy(k) for k in range(12)})).values())
    assert len(lines) == 12
    looks = {(line.get_color(), str(line._unscaled_dash_pattern), line.get_marker()) for line in lines}
    assert len({look[1:] for look in looks}) == 12  # in grey, too
    assert len({look[1] for look in looks}) == 5


def test_no_line_is_pale_on_white_paper() -> None:
    for color in panels.COLORS:
        red, green, blue = to_rgb(color)
        assert 0.299 * red + 0.587 * green + 0.114 * blue < 0.7


@pytest.mark.parametrize("name", NAMES)
def test_no_type_is_under_eight_points_and_none_is_cut_off(name: object) -> None:
    one, two = {"a": noisy(0)}, {"standard": noisy(0), "alternating": noisy(1, level=20.0)}
    for figure in (crowded(name), plot_criteria(one, figure=name), plot_criteria(two, figure=name)):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        assert all(text.get_fontsize() >= 8 for text in figure.findobj(Text) if text.get_text())
        box, (width, height) = figure.get_tightbbox(canvas.get_renderer()), figure.get_size_inches()
        assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.01


@pytest.mark.parametrize(("name", "width"), [("criteria", 6.75), (2, 3.25), (3, 3.25), (4, 6.75)])
def test_figures_are_as_wide_as_the_columns_of_the_paper(name: object, width: float) -> None:
    assert crowded(name).get_figwidth() == width


def test_axes_are_logarithmic_where_values_span_decades() -> None:
    def scales(*c_align: float) -> list[str]:
        figure = plot_criteria({"a": run(*(measured(1.5, 0.5, c) for c in c_align))}, figure=4)
        return [axes.get_yscale() for axes in figure.axes]

    assert scales(1.0, 5.0) == ["linear"] * 3  # squared: 1 to 25
    assert scales(1.0, 6.0) == ["linear", "linear", "log"]  # 1 to 36
    assert scales(1.0, -600.0) == ["linear"] * 3  # what is not drawn does not count
    small = run(measured(c_align=1.0), measured(c_align=1000.0))
    assert plot_criteria({"a": small}, figure=3).axes[0].get_yscale() == "linear"  # a cosine is between −1 and 1
    assert plot_losses({"a": run(*[measured()] * 60)}).axes[0].get_yscale() == "log"


def test_a_logarithmic_axis_says_1_and_2_and_5_in_one_size() -> None:
    figure = plot_criteria({"a": run(*(measured(1.5, 0.5, c) for c in (1.0, 6.0)))}, figure=4)
    axis = figure.axes[2].yaxis
    FigureCanvasAgg(figure).draw()  # ticks are made when they are drawn
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    shown = {tick.label1.get_text(): tick.label1.get_fontsize() for tick in ticks if tick.label1.get_text()}
    assert {"1", "2", "5", "10"} <= set(shown) and len(set(shown.values())) == 1
    assert [panels._power(figure.axes[0], value) for value in (0.0, 1e-4, 100.0)] == ["0", "0.0001", "100"]
    long = plot_criteria({"a": run(*(measured(1.5, 0.5, c) for c in (1.0, 600.0)))}, figure=4).axes[2]
    powers = [panels._power(long, value) for value in (1e-4, 0.01, 100.0, 1e5)]
    assert powers == ["$10^{-4}$", "0.01", "100", "$10^{5}$"]
    zero = plot_criteria({"a": run(*(measured(c_sim=c) for c in (0.0, 0.01, 1.0)))}, figure=2).axes[0]
    assert zero.yaxis.get_major_formatter()(1.0) == "1"


def test_a_zero_has_a_place_on_a_logarithmic_axis() -> None:
    axes = plot_criteria({"a": run(*(measured(c_sim=c) for c in (0.0, 0.01, 1.0)))}, figure=2).axes[0]
    assert axes.get_yscale() == "symlog"
    low, high = axes.get_ylim()
    assert low <= 0 < 1e-4 < high


def test_what_cannot_be_drawn_is_marked_and_counted() -> None:
    found = [2.0, -1.5, math.inf, -3.0, math.nan, 1.0]
    good = run(*[measured()] * 6)
    figure = plot_criteria({"plain": run(*(measured(c_align=c) for c in found)), "dropout": good}, figure=4)
    assert note_of(figure, 2) == "plain: ▼ 2 negative, △ 1 infinite, × 1 undefined of 6"
    assert [marks_of(figure, 2, marker) for marker in "v^x"] == [[1, 3], [2], [4]]
    assert note_of(figure, 0) == note_of(figure, 1) == ""
    figure = plot_criteria({"plain": run(*(measured(c_align=c) for c in found))}, figure=3)
    assert note_of(figure, 0) == "× 1 undefined of 6"  # a cosine shows its sign


def test_marks_stand_above_the_panel_one_row_for_each_run() -> None:
    bad = run(measured(), measured(c_align=-1.0))
    figure = plot_criteria({"one": bad, "two": bad}, figure=2)
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[1]
    rows = [line for line in axes.lines if line.get_linestyle() == "None"]
    heights = [line.get_transform().transform((1, 1.0))[1] for line in rows]
    assert axes.bbox.y1 < heights[0] < heights[1]
    assert [note[:3] for note in axes.get_title(loc="right").split("\n")] == ["two", "one"]  # in the order of the rows


def test_a_point_without_neighbours_has_a_marker() -> None:
    found = [-1.0 if t % 2 or 20 < t < 60 else 2.0 for t in range(100)]
    figure = plot_criteria({"a": run(*(measured(c_align=c) for c in found))}, figure=2)
    line = lines_of(figure, 1)["a"]
    assert {t for t, c in enumerate(found) if c > 0} <= set(line.get_markevery())
    line = lines_of(figure, 0)["a"]
    assert len(line.get_markevery()) <= 11
