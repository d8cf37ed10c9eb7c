"""The paper's regime: one learning rate for all rows, large dropout, equal epochs, on a grid of rates.

At which rates is the core that is trained jointly ahead of the core alone, which has twice as many updates?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from partialsgd.lab.reproduce.experiment import Experiment, Row, always
from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.lab.training.settings import Settings
from studies import pages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = (0.00075, 0.0015, 0.003, 0.006, 0.012)
FIGURE, DPI = "regime", 150
_WAYS = {"core": "core alone", "joint": "core jointly"}


@final
@dataclass(frozen=True)
class Regime:
    """A core alone and jointly, with as many epochs, at each of several rates."""

    name: str
    says: str
    base: Settings
    """The settings of the joint run, but for its rate and its ratio."""
    ratio: str
    rates: Sequence[float] = RATES
    score: str = "BLEU"

    def experiment(self) -> Experiment:
        return Experiment(
            name=self.name,
            title=self.says,
            score=self.score,
            rows=lambda folder: list(self.rows()),
            lines=lambda folder: [],
            choices=lambda folder: (),
        )

    def rows(self) -> Iterator[Row]:
        """Rate by rate, from both ends of the grid inwards, so that the figure has its range early."""
        ways: Mapping[str, Any] = {"core": {"alone": "core", "method": "plain"}, "joint": {"method": "alternating"}}
        for rate in sorted(self.rates, key=lambda rate: -abs(self.rates.index(rate) - (len(self.rates) - 1) / 2)):
            for way, changes in ways.items():
                settings: Any = {"ratio": (self.ratio,), "lr": rate, **changes}
                yield Row(_row(way, rate), always(replace(self.base, **settings)), 1, None, block=f"{rate:g}")

    def scores(self, folder: RunFolder) -> dict[str, dict[float, float]]:
        """The test score of the core by way and rate, of the runs that are there and did not diverge."""
        found: dict[str, dict[float, float]] = {way: {} for way in _WAYS}
        for rate in self.rates:
            for way, level in (("core", "full"), ("joint", "core")):
                for _, summary in folder.scored(_row(way, rate)):
                    found[way][rate] = summary["levels"][level]["test"][self.score]
        return found


def _row(way: str, rate: float) -> str:
    return f"{way}-lr{rate:g}"


def section(scores: Mapping[str, Mapping[float, float]]) -> str:
    """The table, the figure and what they say, if both ways have a rate in common."""
    rates = sorted(scores["core"].keys() & scores["joint"].keys())
    if not rates:
        return "No pair of runs is stored yet."
    ahead = [rate for rate in rates if scores["joint"][rate] > scores["core"][rate]]
    rows = [
        (
            f"{rate:g}",
            *(f"{scores[way][rate]:.2f}" for way in _WAYS),
            f"{scores['joint'][rate] - scores['core'][rate]:+.2f}",
        )
        for rate in rates
    ]
    best = {way: max(scores[way], key=scores[way].__getitem__) for way in _WAYS}
    at = f" ({', '.join(f'{rate:g}' for rate in ahead)})" if ahead else ""
    return (
        f"{pages.table(('peak rate', *_WAYS.values(), 'jointly less alone'), rows)}\n\n"
        f"![BLEU of the core alone and jointly against the learning rate](figures/{FIGURE}.png)\n\n"
        f"The core that is trained jointly, with half of the updates, is ahead at {len(ahead)} of {len(rates)} rates"
        f"{at}. At the rate with its best test score, the core alone reaches {scores['core'][best['core']]:.2f} "
        f"({best['core']:g}) and jointly {scores['joint'][best['joint']]:.2f} ({best['joint']:g}). One seed."
    )


def draw(scores: Mapping[str, Mapping[float, float]], to: Path) -> None:
    """Write the figure as a small file, if both ways have a run."""
    if all(scores.values()):
        figure(scores).savefig(to / f"{FIGURE}.png", dpi=DPI, metadata={"Software": None})


def figure(scores: Mapping[str, Mapping[float, float]]) -> Figure:
    """The test BLEU of the core against the peak learning rate, alone and jointly."""
    from matplotlib.figure import Figure

    from partialsgd.logging.figures import COLORS

    drawn = Figure(figsize=(3.4, 2.6), layout="constrained")
    axes = drawn.subplots()
    for color, (way, label), line, marker in zip(COLORS, _WAYS.items(), ("-", (0, (5, 1.5))), "os", strict=False):
        rates = sorted(scores[way])
        axes.plot(rates, [scores[way][rate] for rate in rates], color=color, linestyle=line, marker=marker, label=label)
    axes.set(xscale="log", xlabel="peak learning rate", ylabel="test BLEU of the core")
    axes.grid(visible=True, color="0.9", linewidth=0.5)
    axes.legend(fontsize=8, frameon=False)
    axes.tick_params(labelsize=8)
    return drawn
