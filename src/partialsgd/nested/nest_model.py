"""`nest`: turn a model into a family of networks that share weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from partialsgd.nested.layers.arithmetic import exact
from partialsgd.nested.layers.base import NestedModule
from partialsgd.nested.layers.batch_norm import Norms
from partialsgd.nested.layers.sums import OutputSum
from partialsgd.nested.levels import resolve
from partialsgd.nested.nested import Nested
from partialsgd.nested.planning.build import plan
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.specs import Spec, require_choice
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
    """Take the model over, in place, and make it a family of nested networks.

    A spec with one ratio gives the levels `core` and `full`, with several the ratios and `full`; a list of specs
    is applied together. `levels={"small": [...], "medium": [...]}` names the levels, smallest first, and
    says what each has less than the whole network; `levels={}` is a family of one, the network alone. A model that
    contains an `OutputSum` needs no spec.
    `norms` gives each level its own BatchNorm or one to all; `seed` is for weights that are drawn.

    Either all is done or the model is as it was. The parameters are new ones: build the optimizer after it.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model comes first and must be an nn.Module, got {type(model).__name__}")
    if unwrap(model) is not model:
        raise ValueError("nest the model first, then wrap it in DistributedDataParallel or torch.compile")
    inside = [module for module in model.modules() if isinstance(module, (NestedModule, Nested))]
    if any(not isinstance(module, OutputSum) or module.switch.levels != (FULL,) for module in inside):
        raise ValueError("the model is nested already; nest it once, with `levels` for several sizes")
    if spec is None and levels is None and not inside:
        raise ValueError("say what is inside the network: nest(model, LowRank(1/32)), Width, Depth or LayerSum")
    require_choice("norms", norms, ("separate", "shared"))
    each = resolve(spec, levels)
    site = NestPlan(model, Switch((*each, FULL)), seed)
    with exact(model):
        plan(site, each, norms)
        site.require_registered()
    root = site.commit()
    return Nested(root, site.switch, each, norms, site.claimed, site.skipped)
