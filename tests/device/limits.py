"""How often a step may make the host wait for the device.

`python -m tests.device.limits` writes the table of docs/gpu.md from this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from partialsgd import CriteriaMeter, methods
from tests.methods.laws import NAME_OF

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
_BEGIN, _END = "<!-- written by `python -m tests.device.limits` -->", "<!-- end -->"

STEPS = 6
FIRST_COUNTED = 2
"""The steps before make the optimizer's state and try out what the optimizer can do; they happen once in a training."""

LIMITS: dict[str, int] = {
    # The mask depends on the numbers, and the host must know which tensors move at all.
    "top_k": 1,
    "compressed_gradient": 1,
    "meprop": 1,
    "dynamic_pruning": 1,
    "dynamic_sparsity": 1,
    "compose": 1,  # of top_k, in the main case
    # A criterion decides: it is read when it is measured.
    "guarded": 1,
    "scaled_by_alpha": 1,
    "alternating_criterion": 1,
    "freezing_criterion": 1,
    "compose_freezing": 0,  # of freezing and SAM
    # They change x or the optimizer's state beside the step, so the host must know that the gradient is finite.
    "block_coordinate_free": 1,
    "independent_subnets_average": 1,
    "ac_dc": 2,  # and which tensors its pruning leaves
    "independent_subnets_criterion": 2,  # and the criterion
}
"""The most reads that a step may make, by method; settings that need more or less than the method's own have a line.

The others read nothing: all that a step needs to know is on the device, or on the host from the beginning.
"""
SCALER_LIMIT = 2
"""With a GradScaler, whose overflow flag decides on the host whether the step is taken; the loss is read too."""

OPTIONS: dict[str, tuple[str, dict[str, Any], int]] = {
    "nonfinite='skip'": ("dropout", {"nonfinite": "skip"}, 1),
    "nonfinite='ignore'": ("dropout", {"nonfinite": "ignore"}, 0),
    "clip_norm": ("dropout", {"clip_norm": 0.1}, 1),
    "outside='decay'": ("dropout", {"outside": "decay"}, 1),
    "outside='reset'": ("block_coordinate", {"outside": "reset"}, 1),
    "a meter at every step": ("dropout", {"meter": CriteriaMeter(1)}, 1),
    "a meter that waits for its turn": ("dropout", {"meter": CriteriaMeter(1000)}, 0),
}
"""Options of PartialSGD, each with the method that it is tried with and the most reads that a step may make."""


def limit_of(case: str) -> int:
    """The limit of a case, or of its method."""
    return LIMITS[case] if case in LIMITS else LIMITS.get(NAME_OF[case], 0)


def table() -> str:
    """The limits of the methods and options as a table in Markdown."""
    options = {name: limit for name, (_, _, limit) in OPTIONS.items()} | {"GradScaler": SCALER_LIMIT}
    rows = ["| reads a step | methods | options, in addition |", "| --: | --- | --- |"]
    for limit in sorted({0, *LIMITS.values()}):
        linked = ", ".join(f"[`{name}`](methods/{name}.md)" for name in methods.NAMES if LIMITS.get(name, 0) == limit)
        added = ", ".join(name if " " in name else f"`{name}`" for name, own in options.items() if own == limit)
        rows.append(f"| {limit or 'none'} | {linked} | {added} |")
    return "\n".join(rows)


def in_place(page: str) -> str:
    """The page with its table replaced."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(in_place(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
