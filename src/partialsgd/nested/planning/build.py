"""From specs to nested modules: the layers that each spec matches at each level, and the modules that replace them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from torch import nn

from partialsgd.nested.layers.axes import Axis
from partialsgd.nested.layers.batch_norm import Norms, SeparateBatchNorm, SharedBatchNorm, batch_norms
from partialsgd.nested.layers.depth import ShortenedBlocks, ShortenedModuleList, ShortenedSequential, block_indices
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.layers.low_rank import LowRankLayer
from partialsgd.nested.layers.narrow import NarrowLayer
from partialsgd.nested.layers.sums import SumLayer, require_same_signature
from partialsgd.nested.planning.chains import hidden_groups
from partialsgd.nested.planning.channels import channel_groups
from partialsgd.nested.planning.groups import Cut, UnitGroup, require_disjoint
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.planning.transformers import feed_forward_groups, query_key_groups
from partialsgd.nested.specs import Depth, LayerSum, Levels, LowRank, Width, as_patterns, as_tuple, chains_of
from partialsgd.parameters import matches

S = TypeVar("S", LowRank, Width, Depth, LayerSum)


def fill_plan(plan: NestPlan, levels: Levels, norms: Norms) -> None:
    """Plan the replacements that the specs ask for; the model is not changed."""
    _plan_low_rank(plan, _of_type(LowRank, levels))
    _plan_width(plan, _of_type(Width, levels))
    _plan_depth(plan, _of_type(Depth, levels))
    _plan_sums(plan, _of_type(LayerSum, levels))
    _plan_norms(plan, norms)


def find_hidden_groups(plan: NestPlan, chains: Sequence[tuple[str, ...]]) -> list[UnitGroup]:
    """Return the hidden units that the patterns name; without patterns, all that can be found automatically."""
    return hidden_groups(plan, chains) if chains else feed_forward_groups(plan) or channel_groups(plan)


def _of_type(spec_type: type[S], levels: Levels) -> list[tuple[str, S]]:
    return [(level, spec) for level, specs in levels.items() for spec in specs if isinstance(spec, spec_type)]


def _plan_low_rank(plan: NestPlan, specs: Sequence[tuple[str, LowRank]]) -> None:
    ranks: dict[str, dict[str, int]] = {}
    first_spec: dict[str, LowRank] = {}
    for level, spec in specs:
        for name in _low_rank_layers(plan, spec):
            ratio = next((r for p, r in spec.ratios.items() if matches(name, p)), spec.ratio)
            if level in ranks.setdefault(name, {}):
                raise ValueError(f"{name!r} is matched by two LowRank specs at level {level!r}")
            ranks[name][level] = max(1, round(as_tuple(ratio)[0] * plan.linear_map(name).full_rank))
            if (init := first_spec.setdefault(name, spec).init) != spec.init:
                raise ValueError(f"{name!r} has init={init!r} in one LowRank spec and {spec.init!r} in another")
    for name, by_level in ranks.items():
        linear = plan.linear_map(name)
        _require_growing(plan, name, by_level, linear.full_rank + 1)
        init, layer = first_spec[name].init, plan.modules[name]
        plan.replace(name, LowRankLayer(layer, linear, by_level, plan.switch, init=init, key=plan.key(name)))


def _low_rank_layers(plan: NestPlan, spec: LowRank) -> list[str]:
    excluded = set(plan.match(as_patterns(spec.exclude)))
    linear_maps = {name: linear_map_of(module) for name, module in plan.modules.items()}
    nestable = [name for name, linear in linear_maps.items() if isinstance(linear, LinearMap)]
    if spec.where is None:
        skipped = {name: reason for name in nestable if (reason := plan.why_not_nestable(name)) is not None}
        if len(nestable) > 1:
            skipped.setdefault(nestable[-1], "it is the output layer, whose rank would limit the outputs; use `where`")
        chosen = [name for name in nestable if name not in skipped]
    else:
        matched, skipped = plan.match(as_patterns(spec.where)), {}
        chosen = [name for name in matched if name in nestable]
        for pattern in as_patterns(spec.where):
            if not any(matches(name, pattern) for name in nestable):
                name = next(name for name in matched if matches(name, pattern))
                raise ValueError(f"{name!r} cannot be nested: {linear_maps[name]}")
    plan.skipped |= skipped | {name: "excluded" for name in chosen if name in excluded}
    chosen = [name for name in chosen if name not in excluded]
    if not chosen:
        raise ValueError(f"LowRank has no layer left in {type(plan.model).__name__}; change `where` or `exclude`")
    for pattern in spec.ratios:
        plan.match([pattern])
        if not any(matches(name, pattern) for name in chosen):
            raise ValueError(f"the pattern {pattern!r} of ratios matches no layer that LowRank nests")
    return chosen


def _plan_width(plan: NestPlan, specs: Sequence[tuple[str, Width]]) -> None:
    cuts: dict[str, Cut] = {}
    for level, spec in specs:
        for group in _width_groups(plan, spec):
            cut = cuts.setdefault(group.name, Cut(group, {}, spec.order))
            if cut.group != group or level in cut.sizes or cut.order != spec.order:
                raise ValueError(f"{group.name!r} is matched by two Width specs that do not agree")
            cut.sizes[level] = max(1, round(as_tuple(spec.ratio)[0] * group.units))
    for name, cut in cuts.items():
        _require_growing(plan, name, cut.sizes, cut.group.units)
    require_disjoint([cut.group for cut in cuts.values()])
    rows = {p.name: (cut, cut.producer_axis(plan, p)) for cut in cuts.values() for p in cut.group.producers}
    columns = {name: cut.consumer_axis(plan, name) for cut in cuts.values() for name in cut.group.consumers}
    for name in dict.fromkeys([*rows, *columns]):
        linear = plan.linear_map(name)
        row_axis = rows[name][1] if name in rows else Axis(linear.outputs)
        column_axis = columns.get(name, Axis(linear.inputs))
        pads = name in rows and rows[name][0].group.pads
        plan.replace(name, NarrowLayer(plan.modules[name], linear, row_axis, column_axis, plan.switch, pads=pads))
    plan.norm_axes |= {name: cut.norm_axis(plan) for cut in cuts.values() for name in cut.group.norms}


def _width_groups(plan: NestPlan, spec: Width) -> list[UnitGroup]:
    groups = find_hidden_groups(plan, chains_of(spec.hidden))
    if spec.query_key:
        groups = [*groups, *query_key_groups(plan)]
    excluded = set(plan.match(as_patterns(spec.exclude)))
    chosen = [group for group in groups if not excluded & set(group.members)]
    for group in groups:
        if group not in chosen:
            plan.skipped |= {name: "its hidden units belong to an excluded layer too" for name in group.members}
    if not chosen:
        raise ValueError(f"Width has no hidden layer left in {type(plan.model).__name__}; change `exclude`")
    return chosen


def _plan_depth(plan: NestPlan, specs: Sequence[tuple[str, Depth]]) -> None:
    indices: dict[str, dict[str, tuple[int, ...]]] = {}
    for level, spec in specs:
        for name in _block_lists(plan, spec):
            total = len(plan.modules[name]._modules)
            keep = spec.count(total)
            if keep > total:
                raise ValueError(f"{name!r} has {total} blocks and cannot keep {keep}")
            if level in indices.setdefault(name, {}):
                raise ValueError(f"{name!r} is matched by two Depth specs at level {level!r}")
            indices[name][level] = block_indices(total, keep, even=spec.pick == "even")
    for name, by_level in indices.items():
        _require_growing_blocks(plan, name, by_level)
        blocks = plan.modules[name]
        shortened = ShortenedModuleList if isinstance(blocks, nn.ModuleList) else ShortenedSequential
        plan.require_no_hooks(name)
        plan.replace(name, shortened(blocks, by_level, plan.switch))


def _block_lists(plan: NestPlan, spec: Depth) -> list[str]:
    names = []
    for pattern in as_patterns(spec.layers):
        # A pattern also matches everything inside the list, which is left out here.
        matched = [n for n in plan.match([pattern]) if not matches(n.rpartition(".")[0], pattern)]
        lists = [n for n in matched if type(plan.modules[n]) in (nn.ModuleList, nn.Sequential)]
        if not lists:
            class_name = type(plan.modules[matched[0]]).__name__
            raise ValueError(
                f"{matched[0]!r} is a {class_name}; Depth needs an nn.ModuleList or nn.Sequential of blocks"
            )
        names += lists
    return names


def _plan_sums(plan: NestPlan, specs: Sequence[tuple[str, LayerSum]]) -> None:
    core_levels: dict[str, list[str]] = {}
    first_spec: dict[str, LayerSum] = {}
    for level, spec in specs:
        matched = plan.match(as_patterns(spec.where))
        for name in [n for n in matched if n.rpartition(".")[0] not in matched]:  # not the modules inside a match
            core_levels.setdefault(name, []).append(level)
            if first_spec.setdefault(name, spec) != spec:
                raise ValueError(f"{name!r} is matched by two LayerSum specs")
    for name, spec in first_spec.items():
        _require_growing(plan, name, dict.fromkeys(core_levels[name], 1), 2)
        if (reason := plan.why_not_replaceable(name)) is not None:
            raise ValueError(f"{name!r} cannot be nested: {reason}")
        old = plan.modules[name]
        new = spec.make(old)
        if not isinstance(new, nn.Module):
            raise TypeError(f"make returned {new!r} for {name!r}; it must return a module")
        require_same_signature(old, new, name)
        new.train(old.training)
        plan.replace(name, SumLayer(old, new, spec.core, core_levels[name], plan.switch))


def _plan_norms(plan: NestPlan, norms: Norms) -> None:
    for name, norm in batch_norms(plan.model):
        axis = plan.norm_axes.get(name)
        if norms == "separate" or axis is not None:
            plan.require_no_hooks(name)
        if norms == "shared" and axis is not None:
            plan.replace(name, SharedBatchNorm(norm, axis, plan.switch))
        elif norms == "separate":
            levels = [level for level in plan.switch.levels if _runs_at(plan, name, level)]
            plan.replace(name, SeparateBatchNorm(norm, axis or Axis(norm.num_features), levels, plan.switch))


def _runs_at(plan: NestPlan, name: str, level: str) -> bool:
    """True if the level has the block that contains the module."""
    for path, module in plan.replacements.items():
        if isinstance(module, ShortenedBlocks) and name.startswith(f"{path}."):
            block = name.removeprefix(f"{path}.").partition(".")[0]
            if module.names.index(block) not in module.indices[level]:
                return False
    return True


def _require_growing(plan: NestPlan, name: str, sizes: Mapping[str, int], full: int) -> None:
    """Refuse levels of which one is smaller than the one before it."""
    before, level_before = 0, ""
    for level in plan.switch.levels:
        size = sizes.get(level, full)
        if size < before:
            raise ValueError(
                f"levels must go from the smallest to the largest, and {name!r} has {before} at {level_before!r} and "
                f"then {size} at {level!r}: order the levels"
            )
        before, level_before = size, level


def _require_growing_blocks(plan: NestPlan, name: str, indices: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse levels of which one lacks a block of the one before it."""
    full = tuple(range(len(plan.modules[name]._modules)))
    before: tuple[int, ...] = ()
    for level in plan.switch.levels:
        blocks = indices.get(level, full)
        if not set(before) <= set(blocks):
            raise ValueError(
                f"each level must contain the one before it, and {name!r} has blocks {list(before)} and then, at "
                f"{level!r}, {list(blocks)}: order the levels, and for even spacing choose numbers whose blocks nest"
            )
        before = blocks
