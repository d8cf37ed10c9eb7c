"""p = the stages after a growing prefix, δx = 0: layer freezing (Brock et al. 2017; named in Section 1).

By criterion the prefix is the longest for which c_norm = ‖G‖ / ‖p ⊙ G‖ stays under a budget: with δx = 0 it is the
only criterion there is.
"""

from __future__ import annotations

import math
from typing import Literal

from torch import nn

from partialsgd import masks
from partialsgd.masks import Mask
from partialsgd.meters.criteria import squared_norms
from partialsgd.method import Context, Method
from partialsgd.methods._shared.settings import LARGEST, require_count, require_one_of
from partialsgd.methods._shared.stages import StageNames, Stages

By = Literal["linear", "cubic", "criterion"]
_FROZEN = "freezing.frozen"


def freezing(
    by: By = "linear",
    *,
    steps: int = 1000,
    start: float = 0.8,
    budget: float = 1.05,
    every: int = 50,
    stages: StageNames | None = None,
    cut: bool = True,
) -> Method:
    """Freezing: the first stages stop moving one after the other, and their backward pass is not run.

    By a schedule stage i of L stops at `steps` · r, with r = start + (1 − start) i / (L − 1), or r³ when `by="cubic"`;
    the last stage never stops. `by="criterion"` measures the whole gradient at every `every`-th step and freezes the
    longest prefix for which c_norm is at most `budget`, until the next measurement.
    """
    require_one_of("by", by, By)
    if not 0 <= start <= 1:
        raise ValueError(f"start must be in [0, 1], the share of the steps after which the first stage stops; {start=}")
    if not 1 <= budget <= LARGEST:
        raise ValueError(f"budget must be from 1, the least that c_norm can be, to {LARGEST:.2g}; got {budget}")
    require_count("steps", steps)
    require_count("every", every)

    def build(model: nn.Module) -> Method:
        all_stages = Stages(model, stages, cut=cut, method="freezing")
        last = len(all_stages) - 1
        shares = [start + (1 - start) * k / last for k in range(last)]
        ends = [steps * (r**3 if by == "cubic" else r) for r in shares]

        def frozen(context: Context) -> int:
            if by != "criterion":
                return sum(context.t >= end for end in ends)
            if context.t % every == 0 or _FROZEN not in context.memory:
                everything = masks.everything(context.parameters)
                squares = squared_norms(everything, context.gradient, context.gradient)  # the same on all ranks
                of_stages = [sum(squares[n].whole for n in names if n in squares) for names in all_stages.names]
                context.memory[_FROZEN] = longest_prefix([math.sqrt(square) for square in of_stages], budget)
            return int(context.memory[_FROZEN])

        def mask(context: Context) -> Mask:
            return all_stages.mask(context, range(frozen(context), len(all_stages)))

        settings = f"budget={budget}, every={every}" if by == "criterion" else f"steps={steps}, start={start}"
        name = f"freezing(by={by}, {settings}, stages={all_stages})"
        return Method(mask=mask, within=all_stages.cut, structural=all_stages.is_cut, name=name)

    return Method(build=build, name="freezing")


def longest_prefix(norms: list[float], budget: float) -> int:
    """Return how many of the first stages can stop so that ‖G‖ / ‖G of the others‖ ≤ budget; the last one cannot."""
    whole = math.hypot(*norms)
    prefixes = (k for k in reversed(range(1, len(norms))) if whole <= budget * math.hypot(*norms[k:]))
    return next(prefixes, 0)
