"""The numbers of the paper's tables: mean and deviation, as printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Printed:
    """What the paper says: a mean and, where it gives one, the deviation over its runs."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ({self.deviation:.2f})" if self.deviation is not None else "")


@final
@dataclass(frozen=True)
class Trio:
    """A ratio of Tables 1 and 2: the core alone, and both networks trained jointly."""

    core_alone: Printed
    core: Printed
    full: Printed


FULL_ALONE = {"iwslt14": Printed(32.48, 0.32), "wmt17": Printed(26.41, 0.14)}
"""The whole Transformer, trained by itself."""

TABLES: dict[str, dict[str, Trio]] = {
    "table1a": {
        "1/4": Trio(Printed(28.96, 0.04), Printed(29.15, 0.63), Printed(31.34, 0.36)),
        "1/8": Trio(Printed(27.87, 0.11), Printed(28.20, 0.48), Printed(31.62, 0.13)),
        "1/32": Trio(Printed(17.95, 3.65), Printed(24.03, 0.77), Printed(31.20, 0.58)),
    },
    "table1b": {"1/32": Trio(Printed(23.20, 0.09), Printed(23.18, 0.12), Printed(25.50, 0.22))},
    "table2a": {
        "1/4": Trio(Printed(31.29, 0.27), Printed(31.59, 0.18), Printed(31.95, 0.35)),
        "1/32": Trio(Printed(23.58, 0.58), Printed(23.84, 0.25), Printed(30.41, 0.40)),
    },
    "table2b": {"1/32": Trio(Printed(20.47, 0.34), Printed(20.08, 0.40), Printed(25.46, 0.17))},
}
"""Tables 1 and 2 by ratio."""

EPOCH_MINUTES = {"iwslt14": (7, "a GTX Titan X"), "wmt17": (100, "a V100")}
"""How long an epoch takes in the text, with or without alternating training, and on what."""

LOW_RANK_64 = Printed(22.10)
"""The low-rank core of r = 1/64 alone on WMT17, in the text: about as large as the narrow one of r = 1/32."""


@final
@dataclass(frozen=True)
class Pictures:
    """A line of Table 3: accuracy in percent, and FLOPs of an epoch."""

    core: Printed
    full: Printed
    epoch_flops: float


TABLE_3 = {
    "alternating": Pictures(Printed(93.94), Printed(95.05), 31.3e12),
    "slimmable": Pictures(Printed(93.99), Printed(94.72), 62.7e12),
}
