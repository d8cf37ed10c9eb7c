"""Figures 2 to 4 of the paper from the stored runs, and the criteria against the switching period."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from partialsgd.logging import plot_criteria
from studies.convergence import numbers
from studies.convergence.numbers import GROUP, Quantity, value_of
from studies.convergence.runs import Run, Runs
from studies.convergence.settings import SETTINGS, SWITCHING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
DPI = 110
LEVELS = {
    "core": ("before a step of the core", {"color": "#D55E00", "marker": "s", "linestyle": "-"}),
    "full": ("before a full step", {"color": "#0072B2", "marker": "o", "linestyle": (0, (5, 1.5))}),
}


def draw(runs: Runs, to: Path = FIGURES) -> None:
    """Write every figure as a small file."""
    to.mkdir(parents=True, exist_ok=True)
    for name, make in FIGURE.items():
        make(runs).savefig(to / f"{name}.png", dpi=DPI, metadata={"Software": None})


def _paper(figure: Literal[2, 3, 4], names: dict[str, str], group: str | None = None) -> Callable[[Runs], Figure]:
    def make(runs: Runs) -> Figure:
        records = {label: _records(runs[name]) for label, name in names.items()}
        return plot_criteria(records, figure=figure, group=group, smooth=5)

    return make


def _records(runs: Sequence[Run]) -> list[list[dict[str, object]]]:
    return [run.records(SETTINGS[run.name].task.groups) for run in runs]


def switching(runs: Runs) -> Figure:
    """Cosine and c_norm of the core against the period, of the network and of the layers that it has a part of."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.75, 4.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True)
    for row, (group, of) in zip(panels, ((None, "whole network"), (GROUP, "narrowed layers")), strict=True):
        for axes, quantity in zip(row, (numbers.COSINE, numbers.C_NORM_2), strict=True):
            _draw_periods(axes, quantity, group, runs)
            axes.set_ylabel(f"{quantity.short}, {of}", fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel("switches after so many steps", fontsize=9)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def _draw_periods(axes: Axes, quantity: Quantity, group: str | None, runs: Runs) -> None:
    """A mark for each seed, and a line through their means, which does not go on to what has no period."""
    places = range(len(SWITCHING))
    for level, (label, look) in LEVELS.items():
        values = [[value_of(run, quantity, group=group, level=level) for run in runs[name]] for name in SWITCHING]
        shift = 0.1 if level == "full" else -0.1
        for place, seeds in zip(places, values, strict=True):
            at = [place + shift] * len(seeds)
            axes.plot(at, seeds, **{**look, "linestyle": "none"}, markersize=3.5, alpha=0.6, markeredgewidth=0)
        means = [numbers.mean(seeds) for seeds in values]
        axes.plot([place + shift for place in places][:-1], means[:-1], **look, markersize=0, linewidth=1.2)
        axes.plot([], [], **look, label=label, markersize=3.5, linewidth=1.2)
    standard = [value_of(run, quantity, group=group) for run in runs["standard"]]
    axes.axhline(numbers.mean(standard), color="0.3", linestyle=(0, (1, 1)), label="full steps only", linewidth=1.2)
    axes.set_xticks(list(places), [SETTINGS[name].period for name in SWITCHING])
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, color="0.9", linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


_EVERYWHERE = {"with dropout": "dropout", "without": "plain"}
_INSIDE = {"with dropout": "dropout_inner", "without": "plain_inner"}
_LEVELS = {"alternating": "period_1", "full steps only": "standard"}

FIGURE: dict[str, Callable[[Runs], Figure]] = {
    "dropout_figure_2": _paper(2, {"dropout": "dropout"}),
    "dropout_figure_3": _paper(3, _EVERYWHERE),
    "dropout_inner_figure_3": _paper(3, _INSIDE),
    "alternating_figure_4": _paper(4, _LEVELS),
    "alternating_narrowed_figure_4": _paper(4, _LEVELS, GROUP),
    "switching": switching,
}
