"""`nest`: turn a model into a nested model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from partialsgd.nested.layers.base import NestedModule, exact_arithmetic
from partialsgd.nested.layers.batch_norm import Norms
from partialsgd.nested.layers.sums import OutputSum
from partialsgd.nested.nested import Nested
from partialsgd.nested.planning.build import fill_plan
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.specs import Spec, require_choice, resolve_levels
from partialsgd.nested.switch import FULL, Switch
from partialsgd.parameters import unwrap


def nest(
    model: nn.Module,
    spec: Spec | Sequence[Spec] | None = None,
    *,
    levels: Mapping[str, Spec | Sequence[Spec]] | None = None,
    norms: Norms = "separate",
    seed: int = 0,
) -> Nested:
    """Turn the model, in place, into a nested model: networks of several sizes that share their weights.

    A spec with one ratio gives the levels `core` and `full`, one with several ratios gives a level for each ratio and
    `full`; a list of specs is applied together. `levels={"small": [...], "medium": [...]}` names the levels, smallest
    first, and lists what each has less of than the full network; `levels={}` gives `full` alone. A model that contains
    an `OutputSum` needs no spec. `norms="separate"` gives each level its own BatchNorm, `"shared"` one to all. `seed`
    decides the weights that are drawn.

    If it raises, the model is unchanged. The parameters are new: build the optimizer afterwards.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the first argument of nest must be an nn.Module, got {type(model).__name__}")
    if unwrap(model) is not model:
        raise ValueError("nest the model first, then wrap it in DistributedDataParallel or torch.compile")
    nested_modules = [module for module in model.modules() if isinstance(module, (NestedModule, Nested))]
    if any(not isinstance(module, OutputSum) or module.switch.levels != (FULL,) for module in nested_modules):
        raise ValueError("the model is nested already; nest it once, with `levels` for several sizes")
    if spec is None and levels is None and not nested_modules:
        raise ValueError("nest needs a spec, as in nest(model, LowRank(1/32)): LowRank, Width, Depth or LayerSum")
    require_choice("norms", norms, ("separate", "shared"))
    level_specs = resolve_levels(spec, levels)
    plan = NestPlan(model, Switch((*level_specs, FULL)), seed)
    with exact_arithmetic(model):
        fill_plan(plan, level_specs, norms)
        plan.require_registered()
    root = plan.carry_out()
    return Nested(root, plan.switch, level_specs, norms, plan.nested_by, plan.skipped)
