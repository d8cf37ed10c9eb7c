"""p = one stage after the other, δx = 0: greedy layer-wise training (Bengio et al. 2007; named in Section 1)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from partialsgd import masks
from partialsgd.masks import Mask
from partialsgd.method import Context, Method
from partialsgd.methods._shared.settings import as_patterns, require_count
from partialsgd.methods._shared.stages import StageNames, Stages
from partialsgd.parameters import Parameters


def layerwise(
    every: int = 100, *, always: Sequence[str] = (), stages: StageNames | None = None, cut: bool = True
) -> Method:
    """Layer-wise training: the first stage moves alone for some steps, then the second, to the last.

    Each stage has `every` steps, the last one all that follow. What `always` names, such as the head, moves with each.
    """
    require_count("every", every)
    patterns = as_patterns(always) or ()

    def build(model: nn.Module) -> Method:
        Parameters(model).match(patterns)  # a pattern that covers nothing raises here, before hooks are put on
        all_stages = Stages(model, stages, cut=cut, method="layerwise")

        def mask(context: Context) -> Mask:
            moving = all_stages.mask(context, [min(context.t // every, len(all_stages) - 1)])
            return moving | masks.only(context.parameters, patterns) if patterns else moving

        name = f"layerwise(every={every}, always={list(patterns)}, stages={all_stages})"
        return Method(mask=mask, within=all_stages.cut, structural=all_stages.is_cut, name=name)

    return Method(build=build, name="layerwise")
