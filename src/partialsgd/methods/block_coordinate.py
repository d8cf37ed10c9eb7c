"""p = some blocks of layers, others after m steps, δx = 0: block-coordinate descent (BAdam: Luo et al. 2024)."""

from __future__ import annotations

from typing import Literal

from torch import nn

from partialsgd import masks
from partialsgd.masks import Mask
from partialsgd.method import Context, Method, nothing
from partialsgd.methods._shared.settings import require_count, require_one_of
from partialsgd.methods._shared.stages import StageNames, Stages

Order = Literal["cyclic", "random"]


def block_coordinate(
    active: int = 1,
    *,
    every: int = 50,
    order: Order = "cyclic",
    free: bool = False,
    blocks: StageNames | None = None,
    cut: bool = True,
) -> Method:
    """Block-coordinate: a few blocks of layers move for some steps, then the next ones.

    `active` blocks at a time, `every` steps each. `order="random"` goes through the blocks in a new order each time,
    so that none is left out. `free=True` drops the optimizer's state of blocks that stop, which saves its memory and
    lets them begin anew; otherwise it is held.
    """
    require_count("active", active)
    require_count("every", every)
    require_one_of("order", order, Order)

    def build(model: nn.Module) -> Method:
        stages = Stages(model, blocks, cut=cut, method="block_coordinate")
        name = f"block_coordinate(active={active}, every={every}, order={order}, free={free}, blocks={stages})"
        if active >= len(stages):
            return Method(name=name)

        def mask(context: Context) -> Mask:
            return stages.mask(context, _chosen(context, len(stages), active, context.t // every, order))

        def forget(context: Context) -> Mask:
            return ~mask(context) if context.t % every == 0 else masks.nothing(context.parameters)

        rule = forget if free else nothing
        return Method(mask=mask, within=stages.cut, forget=rule, structural=stages.is_cut, name=name)

    return Method(build=build, name="block_coordinate")


def _chosen(context: Context, blocks: int, active: int, turn: int, order: Order) -> list[int]:
    if order == "cyclic":
        return [(turn * active + k) % blocks for k in range(active)]
    turns = -(-blocks // active)  # until each block had one
    cycle, place = divmod(turn, turns)
    shuffled = sorted(range(blocks), key=lambda block: context.key(f"block {block}", t=cycle))
    return [shuffled[(place * active + k) % blocks] for k in range(active)]
