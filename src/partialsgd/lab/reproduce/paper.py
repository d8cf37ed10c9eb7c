"""The paper: the numbers that it prints, and sentences on what it leaves open."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, final

from partialsgd.lab.page.formatting import plural
from partialsgd.lab.training.settings import Settings

if TYPE_CHECKING:
    from partialsgd.lab.reproduce.experiment import Grid


@final
class Printed(NamedTuple):
    """A printed mean and, where the paper gives one, the deviation over its runs."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ({self.deviation:.2f})" if self.deviation is not None else "")


@final
class JointNumbers(NamedTuple):
    """One ratio of Tables 1 and 2: the core alone, and both networks trained jointly."""

    core_alone: Printed
    core: Printed
    full: Printed


@final
class ImageNumbers(NamedTuple):
    """One line of Table 3: accuracies in percent, and the FLOPs of an epoch."""

    core: Printed
    full: Printed
    epoch_flops: float


FULL_ALONE = {"iwslt14": Printed(32.48, 0.32), "wmt17": Printed(26.41, 0.14)}
"""The whole Transformer, trained by itself."""

TABLES: dict[str, dict[str, JointNumbers]] = {
    "table1a": {
        "1/4": JointNumbers(Printed(28.96, 0.04), Printed(29.15, 0.63), Printed(31.34, 0.36)),
        "1/8": JointNumbers(Printed(27.87, 0.11), Printed(28.20, 0.48), Printed(31.62, 0.13)),
        "1/32": JointNumbers(Printed(17.95, 3.65), Printed(24.03, 0.77), Printed(31.20, 0.58)),
    },
    "table1b": {"1/32": JointNumbers(Printed(23.20, 0.09), Printed(23.18, 0.12), Printed(25.50, 0.22))},
    "table2a": {
        "1/4": JointNumbers(Printed(31.29, 0.27), Printed(31.59, 0.18), Printed(31.95, 0.35)),
        "1/32": JointNumbers(Printed(23.58, 0.58), Printed(23.84, 0.25), Printed(30.41, 0.40)),
    },
    "table2b": {"1/32": JointNumbers(Printed(20.47, 0.34), Printed(20.08, 0.40), Printed(25.46, 0.17))},
}
"""Tables 1 and 2 by ratio."""

EPOCH_MINUTES = {"iwslt14": (7, "a GTX Titan X"), "wmt17": (100, "a V100")}
"""Minutes of an epoch in the text, with or without alternating training, and the GPU."""

LOW_RANK_64 = Printed(22.10)
"""The low-rank core of r = 1/64 alone on WMT17, in the text: about as large as the narrow one of r = 1/32."""

TABLE_3 = {
    "alternating": ImageNumbers(Printed(93.94), Printed(95.05), 31.3e12),
    "slimmable": ImageNumbers(Printed(93.99), Printed(94.72), 62.7e12),
}


# Sentences on choices that the paper leaves open, which several experiments share.

ALTERNATION = (
    "The whole network has the first step, the core the second, and so on in turns, also where a run was stopped and "
    "goes on. Each step draws its own noise.",
    "Optimizer state outside the trained network holds still: moments, step counts and weight decay. The gradient is "
    "not clipped.",
)
SMOOTHING = "The lines are running medians of five measurements"


def describe_tuning(grid: Grid, base: Settings, untuned: str) -> str:
    """Which cells are searched, and with how much training."""
    if len(grid.cells) == 1:
        return untuned
    changes: Any = dict(grid.search)
    return (
        f"Every row is tuned over the same {len(grid.cells)} cells, each a run of its own with seed 0, of "
        f"{describe_length(replace(base, **changes))} instead of {describe_length(base)}. "
        "Of a row with whole runs at several cells the best by validation, with seed 0, is shown. "
        "Rows without a grid, like those at equal FLOPs, take the cell of the row that they follow."
    )


def describe_length(base: Settings) -> str:
    return plural(base.epochs, "epoch") if base.max_steps is None else plural(base.max_steps, "step")
