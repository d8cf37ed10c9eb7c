"""c_norm², c_sim², c_align² over t: the paper's Figures 2, 3 and 4, from the metrics of runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final

from partialsgd.logging import panels, series
from partialsgd.logging.records import Record
from partialsgd.logging.series import Measured, Runs, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Name: TypeAlias = Literal["criteria", 2, 3, 4]

_G, _PG, _PGT = r"\Vert G\,\Vert", r"\Vert p\odot G\,\Vert", r"\Vert p\odot\tilde{G}\,\Vert"
_INNER = r"\langle p\odot G,\, p\odot\tilde{G}\,\rangle"


@final
@dataclass(frozen=True)
class Quantity:
    """A number of a measurement, and how a panel shows it."""

    key: str
    label: str
    squared: bool = False
    signed: bool = False


C_NORM = Quantity("c_norm", rf"$c_{{\mathrm{{norm}}}} = \dfrac{{{_G}}}{{{_PG}}}$")
C_SIM = Quantity("c_sim", rf"$c_{{\mathrm{{sim}}}} = \dfrac{{{_PG}}}{{{_PGT}}}$")
C_ALIGN = Quantity("c_align", rf"$c_{{\mathrm{{align}}}} = \dfrac{{{_PG}\,{_PGT}}}{{{_INNER}}}$")
Q = Quantity("q", "$q_t$")
C_NORM_2 = Quantity("c_norm", rf"$c_{{\mathrm{{norm}}}}^2 = \dfrac{{{_G}^2}}{{{_PG}^2}}$", squared=True)
C_SIM_2 = Quantity("c_sim", rf"$c_{{\mathrm{{sim}}}}^2 = \dfrac{{{_PG}^2}}{{{_PGT}^2}}$", squared=True)
C_ALIGN_2 = Quantity(
    "c_align", rf"$c_{{\mathrm{{align}}}}^2 = \dfrac{{{_PG}^2\,{_PGT}^2}}{{{_INNER}^2}}$", squared=True
)
COSINE = Quantity("cosine", rf"$\dfrac{{{_INNER}}}{{{_PG}\,{_PGT}}}$", signed=True)

FIGURES: dict[Name, tuple[Quantity, ...]] = {
    "criteria": (C_NORM, C_SIM, C_ALIGN, Q),
    2: (C_SIM_2, C_ALIGN_2),
    3: (COSINE,),
    4: (C_NORM_2, C_SIM_2, C_ALIGN_2),
}


def plot_criteria(
    runs: Runs,
    *,
    figure: Name = "criteria",
    at: str | None = None,
    group: str | None = None,
    smooth: int = 1,
    to: str | os.PathLike[str] | None = None,
) -> Figure:
    """The criteria of runs over their steps, overlaid, as in Figure 2, 3 or 4 of the paper or, by default, unsquared.

    A run is a metrics file or its records; of several under one label, seeds, the mean is drawn in a band from the
    least to the largest. `at` names the level or probe, `group` a group of its layers; by default a run shows its
    probe, or else the level that is farthest from plain training. `smooth=n` draws the running median of n
    measurements over the measurements themselves. Ratios that are negative, infinite or 0/0 are marked and counted.
    """
    if figure not in FIGURES:
        raise ValueError(f"figure must be one of {', '.join(map(repr, FIGURES))}; got {figure!r}")
    _require_window(smooth)
    found = dict(_measured(label, seeds, at, group) for label, seeds in series.load(runs).items())
    sheet = panels.sheet(len(FIGURES[figure]))
    for axes, quantity, letter in zip(sheet.axes, FIGURES[figure], "abcd", strict=False):
        curves = {
            label: [
                series.ratio(seed, quantity.key, squared=quantity.squared, signed=quantity.signed) for seed in seeds
            ]
            for label, seeds in found.items()
        }
        axes.axhline(1.0, color="0.6", linewidth=0.8, zorder=0.6)  # plain training, over the grid
        letter = letter if figure == 4 else ""
        panels.draw(axes, curves, quantity.label, smooth=smooth, letter=letter, log=not quantity.signed)
    return panels.finished(sheet, to)


def plot_losses(runs: Runs, *, smooth: int = 1, to: str | os.PathLike[str] | None = None) -> Figure:
    """The loss of each level over the steps that trained it; the rest is as in `plot_criteria`."""
    _require_window(smooth)
    curves = {
        (f"{label}, {level}" if len(levels) > 1 else label): [_loss(seed, level) for seed in seeds]
        for label, seeds in series.load(runs).items()
        if (levels := list(dict.fromkeys(level for seed in seeds for step in seed for level in step["loss"])))
        for level in levels
    }
    if not curves:
        raise ValueError("no step has a loss: return it from the closure, or put it into g.loss")
    sheet = panels.sheet(1)
    panels.draw(sheet.axes[0], curves, "loss", smooth=smooth)
    return panels.finished(sheet, to)


def _measured(label: str, seeds: list[list[Record]], at: str | None, group: str | None) -> tuple[str, list[Measured]]:
    """The measurements of one probe or level, and a label that names it where there was a choice."""
    names = series.names(step for seed in seeds for step in seed)
    if not names:
        raise ValueError(
            f"run {label!r} holds no criteria: measure them with PartialSGD(..., meter=ps.CriteriaMeter())"
        )
    if at is not None and at not in names:
        raise ValueError(f"run {label!r} has no measurement of {at!r}; it has {', '.join(names)}")
    told = f"{label} ({names[0]})" if at is None and len(names) > 1 else label
    return told, [series.measured(seed, at or names[0], group) for seed in seeds]


def _loss(steps: list[Record], level: str) -> Series:
    return series.ratio({step["t"]: step["loss"] for step in steps if level in step["loss"]}, level, signed=True)


def _require_window(smooth: int) -> None:
    if smooth < 1:
        raise ValueError(f"smooth is a number of measurements, 1 for none; got {smooth}")
