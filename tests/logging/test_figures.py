"""Figures show the numbers of the records and can be read in print and in grey, and nothing vanishes from them."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import nn

import partialsgd as ps
from partialsgd import PartialSGD
from partialsgd.logging import plot_criteria, plot_losses, record
from partialsgd.logging.metrics_log import Record
from tests.logging.training import alternating, measured, noisy, run, steps
from tests.training import family

KEYS = {"criteria": ("c_norm", "c_sim", "c_align", "q"), 2: ("c_sim", "c_align"), 3: ("cosine",)}
KEYS[4] = ("c_norm", "c_sim", "c_align")


def lines_of(figure: Figure, panel: int = 0) -> dict[str, Line2D]:
    return {str(line.get_label()): line for line in figure.axes[panel].lines if str(line.get_label())[0] != "_"}


def marks_of(figure: Figure, panel: int, marker: str) -> list[int]:
    rows = [line for line in figure.axes[panel].lines if line.get_linestyle() == "None"]
    return [int(t) for line in rows if line.get_marker() == marker for t in line.get_xdata()]


def note_of(figure: Figure, panel: int) -> str:
    return " ".join(figure.axes[panel].get_title(loc="right").split())


def standard() -> list[Record]:
    """Plain training of the whole network, with its core as a probe: what Figure 4 compares with."""
    nested = family()
    meter = ps.CriteriaMeter(every=2, probe="core", alerts=None)
    optimizer = torch.optim.SGD(nested.parameters(), 0.1)
    return [record(step) for step in steps(PartialSGD(nested, optimizer, meter=meter), 12)]


@pytest.mark.parametrize("name", KEYS)
def test_lines_are_the_numbers_of_the_records(name: object) -> None:
    joint = [record(step) for step in steps(alternating(), 12)]
    runs = {"standard": standard(), "alternating": joint}
    figure = plot_criteria(runs, figure=name)
    assert len(figure.axes) == len(KEYS[name])
    for panel, key in enumerate(KEYS[name]):
        lines = lines_of(figure, panel)
        assert list(lines) == ["standard", "alternating (core)"]  # it had full to choose from
        for line, records in zip(lines.values(), runs.values(), strict=True):
            found = [(r["t"], one[key]) for r in records for one in r.get("criteria", ()) if one["level"] == "core"]
            assert len(found) > 2 and any(number != 1 for _, number in found)
            power = 2 if name in (2, 4) else 1
            assert list(line.get_xdata()) == [t for t, _ in found]
            assert list(line.get_ydata()) == [number**power for _, number in found]


def test_labels_say_where_a_number_is_squared() -> None:
    for name, is_squared in (("criteria", False), (2, True), (3, False), (4, True)):
        for axes in plot_criteria({"a": noisy(0)}, figure=name).axes:
            assert ("^2" in axes.get_ylabel()) is is_squared
    ratios = [axes.get_ylabel() for axes in plot_criteria({"a": noisy(0)}, figure=4).axes]
    assert [ratio.partition("}}")[0].rpartition("{")[2] for ratio in ratios] == ["norm", "sim", "align"]
    assert [axes.get_xlabel()[-3:] for axes in plot_criteria({"a": noisy(0)}, figure=4).axes] == ["(a)", "(b)", "(c)"]


def test_seeds_are_a_mean_in_a_band_from_the_least_to_the_largest() -> None:
    seeds = [noisy(seed) for seed in range(3)]
    figure = plot_criteria({"a": seeds}, figure=4)
    squares = [[step["criteria"][0]["c_norm"] ** 2 for step in seed] for seed in seeds]
    line = lines_of(figure)["a"]
    assert list(line.get_ydata()) == pytest.approx([sum(three) / 3 for three in zip(*squares, strict=True)])
    (band,) = figure.axes[0].collections
    corners = {(x, round(y, 9)) for x, y in band.get_paths()[0].vertices}
    for t, three in zip(line.get_xdata(), zip(*squares, strict=True), strict=True):
        assert {(t, round(min(three), 9)), (t, round(max(three), 9))} <= corners


def test_smoothing_leaves_the_measurements_to_be_seen() -> None:
    records = noisy(0)
    figure = plot_criteria({"a": records}, figure=4, smooth=5)
    numbers = [step["criteria"][0]["c_norm"] ** 2 for step in records]
    raw = [line for line in figure.axes[0].lines if list(line.get_ydata()) == numbers]
    (smooth,) = lines_of(figure).values()
    assert len(raw) == 1
    assert list(smooth.get_ydata()[2:-2]) == [sorted(numbers[k - 2 : k + 3])[2] for k in range(2, len(numbers) - 2)]


def test_a_level_a_probe_or_a_group_can_be_asked_for() -> None:
    one, two = measured(2.0, level="core", groups={"head": measured(7.0)}), measured(level="full")
    figure = plot_criteria({"a": run([two, one])}, at="full")
    assert list(lines_of(figure)["a"].get_ydata()) == [1.0]
    assert list(lines_of(plot_criteria({"a": run([two, one])}, group="head"))["a (core)"].get_ydata()) == [7.0]
    with pytest.raises(ValueError, match="there is no group 'tail'; there are head"):
        plot_criteria({"a": run([two, one])}, group="tail")
    with pytest.raises(ValueError, match="run 'a' has no measurement of 'tiny'; it has core, full"):
        plot_criteria({"a": run([two, one])}, at="tiny")


def test_losses_are_drawn_by_level() -> None:
    records = [record(step) for step in steps(alternating(), 6)]
    lines = lines_of(plot_losses({"alternating": records, "plain": run(measured(), measured())}))
    assert list(lines) == ["alternating, full", "alternating, core", "plain"]
    core = lines["alternating, core"]
    assert list(core.get_xdata()) == [1, 3, 5]
    assert list(core.get_ydata()) == [r["loss"]["core"] for r in records if r["t"] % 2]


def test_what_cannot_be_drawn_is_refused() -> None:
    model = nn.Linear(6, 2)
    unmeasured = [record(step) for step in steps(PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1)), 2)]
    with pytest.raises(ValueError, match=r"run 'a' has no criteria: .*PartialSGD\(..., meter=ps\.CriteriaMeter\(\)\)"):
        plot_criteria({"a": unmeasured})
    with pytest.raises(ValueError, match="runs must map a label to each run"):
        plot_criteria({})
    with pytest.raises(ValueError, match="figure must be one of 'criteria', 2, 3, 4; got 5"):
        plot_criteria({"a": noisy(0)}, figure=5)
    for plot in (plot_criteria, plot_losses):
        with pytest.raises(ValueError, match="smooth must be at least 1 measurement, got 0"):
            plot({"a": noisy(0)}, smooth=0)
    with pytest.raises(ValueError, match="no step has a loss"):
        plot_losses({"a": [{**unmeasured[0], "loss": {}}]})
    with pytest.raises(FileNotFoundError):
        plot_criteria({"a": "nowhere.jsonl"})


def test_figures_are_written_with_type_that_printers_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = dict(matplotlib.rcParams)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # its import would fail: no window is asked for
    plot_criteria({"a": noisy(0), "b": noisy(1)}, figure=4, to=tmp_path / "figure.pdf")
    plot_losses({"a": noisy(0)}, to=str(tmp_path / "figure.png"))
    text = (tmp_path / "figure.pdf").read_bytes()
    assert b"/CIDFontType2" in text and b"/Type3" not in text
    assert (tmp_path / "figure.png").read_bytes()[1:4] == b"PNG"
    assert dict(matplotlib.rcParams) == settings


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"matplotlib is needed: pip install .*\[lab\]"):
        plot_criteria({"a": noisy(0)})


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
    assert min(lines_of(figure)["plain"].get_ydata()[:2]) == -1 / 1.5


def test_a_point_without_neighbours_has_a_marker() -> None:
    found = [-1.0 if t % 2 or 20 < t < 60 else 2.0 for t in range(100)]
    figure = plot_criteria({"a": run(*(measured(c_align=c) for c in found))}, figure=2)
    line = lines_of(figure, 1)["a"]
    assert {t for t, c in enumerate(found) if c > 0} <= set(line.get_markevery())
    line = lines_of(figure, 0)["a"]
    assert len(line.get_markevery()) <= 11
