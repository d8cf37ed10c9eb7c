"""The criteria of a figure as numbers: medians over the second half of each training, in the mean over the seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, median
from typing import Any

from partialsgd.lab.reproduce.folder import Ended, Folder
from partialsgd.lab.reproduce.plans import Figure
from partialsgd.logging import metrics_log, series

SQUARED = ("c_norm", "c_sim", "c_align")


def of_figure(figure: Figure, folder: Folder) -> Iterator[dict[str, Any]]:
    """A row for each curve, and where layers are grouped one more for these."""
    for group in dict.fromkeys([None, figure.group]):
        for label, row in figure.curves.items():
            runs = {run.settings.seed: found for run in folder.scored(row) if (found := _numbers(run, group))}
            if runs:
                by_key = {key: [found[key] for found in runs.values()] for key in next(iter(runs.values()))}
                yield {"curve": label, "row": row, "of": group or "network", "seeds": list(runs)} | by_key


def _numbers(ended: Ended, group: str | None) -> dict[str, float | None]:
    """A negative ratio counts as infinite: it lies beyond every bound. An infinite median is None, as in JSON."""
    steps = [record for record in metrics_log.read(ended.path / "metrics.jsonl") if "criteria" in record]
    if not steps:
        return {}
    measured = series.measured(steps, series.names(steps)[0], group)
    late = [one for t in sorted(measured)[len(measured) // 2 :] if not math.isnan((one := measured[t])["cosine"])]
    if not late:
        return {}  # 0 / 0 wherever it was measured
    squares = {f"{key}²": _finite(median(_square(one[key]) for one in late)) for key in SQUARED}
    cosines = [one["cosine"] for one in late]
    return {**squares, "cosine": fmean(cosines), "negative": fmean(cosine < 0 for cosine in cosines)}


def _square(ratio: float) -> float:
    return ratio * ratio if ratio >= 0 else float("inf")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
