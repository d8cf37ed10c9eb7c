"""p = 1, δx = 0 in dense phases; p = m, δx = −(1 − m) ⊙ x and then x ← m ⊙ x in sparse ones: AC/DC (Peste et al. 2021).

Setting x to m ⊙ x for good is a projection, which stands outside Algorithm 1 (Section 2). m is chosen when a sparse
phase begins. Until it ends nothing outside m moves, so there is nothing to drop or to project at its later steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from partialsgd import masks, perturbations
from partialsgd.masks import Mask
from partialsgd.method import Context, Method
from partialsgd.methods._shared.pruning import Pruning, Scope, Unit, chosen_at, drop, forget_choice, require_sparsity
from partialsgd.methods._shared.settings import as_patterns, require_count
from partialsgd.perturbations import Perturbation


def ac_dc(
    sparsity: float = 0.9,
    *,
    warmup: int = 1000,
    sparse: int = 500,
    dense: int = 500,
    until: int | None = None,
    reset: bool = True,
    scope: Scope = "global",
    unit: Unit = "weights",
    where: Sequence[str] | None = None,
) -> Method:
    """AC/DC: phases that prune the network for good and train the rest, and phases that train all of it.

    `warmup` dense steps, then `sparse` sparse and `dense` dense ones by turns. From step `until` on the network is
    sparse to the end; a turn that would not be over by then is not begun, and the last dense phase lasts longer.
    Without `until` the run may end in a dense phase.
    In a dense phase the pruned weights start again from zero; `reset=True` resets the optimizer's state before it.
    The pruned weights are chosen as in `dynamic_pruning`, when a sparse phase begins.
    """
    require_sparsity(sparsity)
    require_count("sparse", sparse)
    require_count("dense", dense)
    require_count("warmup", warmup, least=0)
    if until is not None:
        require_count("until", until, least=warmup)
    pruning = Pruning(scope, unit, as_patterns(where))
    phases = f"warmup={warmup}, sparse={sparse}, dense={dense}, until={until}, reset={reset}"
    name = f"ac_dc(sparsity={sparsity}, {phases}, scope={scope}, unit={unit}, where={pruning.where})"
    if sparsity == 0:
        return Method(name=name)

    def phase(context: Context) -> Phase:
        return phase_at(context.t, warmup, sparse, dense, until)

    def mask(context: Context) -> Mask:
        is_sparse, began = phase(context)
        if not is_sparse:
            forget_choice(context)
            return masks.everything(context.parameters)
        return chosen_at(context, began, lambda: pruning.keep(context.parameters, sparsity))

    def prune(context: Context) -> Perturbation:
        begins = phase(context) == Phase(is_sparse=True, began=context.t)
        return drop(context.mask) if begins else perturbations.nowhere()

    def forget(context: Context) -> Mask:
        restores = phase(context) == Phase(is_sparse=False, began=context.t) and context.t > 0
        return masks.everything(context.parameters) if reset and restores else masks.nothing(context.parameters)

    return Method(mask=mask, perturb=prune, project=prune, forget=forget, name=name)


class Phase(NamedTuple):
    is_sparse: bool
    began: int


def phase_at(t: int, warmup: int, sparse: int, dense: int, until: int | None) -> Phase:
    """Return the phase of step t. A turn is a sparse phase and the dense one after it; it ends before `until`."""
    if until is not None and t >= until:
        return Phase(True, until)
    turn = (t - warmup) // (sparse + dense)
    if until is not None:
        turn = min(turn, (until - warmup) // (sparse + dense) - 1)
    if turn < 0:
        return Phase(False, 0)
    begins = warmup + turn * (sparse + dense)
    return Phase(True, begins) if t < begins + sparse else Phase(False, begins + sparse)
