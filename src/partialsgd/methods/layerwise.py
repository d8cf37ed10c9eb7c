"""p = one stage after the other, δx = 0: greedy layer-wise training (Bengio et al. 2007; named in Section 1)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from partialsgd import masks
from partialsgd.masks import Mask
from partialsgd.method import Context, Method
from partialsgd.methods._shared.settings import as_patterns, require_count
from partialsgd.methods._shared.stages import Chain, Stages
from partialsgd.parameters import Parameters


def layerwise(
    every: int = 100,
    *,
    always: Sequence[str] = (),
    stages: Stages | None = None,
    cut: bool = True,
) -> Method:
    """Layer-wise training: the first stage moves alone for some steps, then the second, to the last.

    Each stage has `every` steps, the last one all that follow. What `always` names, such as the head, moves with each.
    """
    require_count("every", every)

    def build(model: nn.Module) -> Method:
        Parameters(model).match(always)  # a pattern that covers nothing raises here, before hooks are put on the model
        chain = Chain(model, stages, cut=cut, who="layerwise")

        def mask(context: Context) -> Mask:
            stage = min(context.t // every, len(chain) - 1)
            moving = chain.mask(context, [stage])
            return moving | masks.only(context.parameters, always) if always else moving

        return Method(
            mask=mask,
            within=chain.cut,
            structural=chain.is_cut,
            name=f"layerwise(every={every}, always={list(as_patterns(always))}, stages={chain})",
        )

    return Method(build=build, name="layerwise")
