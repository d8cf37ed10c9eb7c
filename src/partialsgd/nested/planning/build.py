"""From specs to nested modules: the layers that each spec matches at each level, and the modules that replace them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from partialsgd._util import randomness
from partialsgd.nested.layers.axes import Axis, AxisPart, axis_of
from partialsgd.nested.layers.batch_norm import Norms, SeparateBatchNorm, SharedBatchNorm, batch_norms
from partialsgd.nested.layers.depth import ShortenedBlocks, ShortenedModuleList, ShortenedSequential, block_indices
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.layers.low_rank import LowRankLayer
from partialsgd.nested.layers.narrow import NarrowLayer
from partialsgd.nested.layers.narrow_module import NarrowModule
from partialsgd.nested.layers.sums import SumLayer, require_same_signature
from partialsgd.nested.planning.dry_run import (
    example_of,
    find_units,
    read_elsewhere,
    require_groups,
    require_same_shapes,
)
from partialsgd.nested.planning.groups import Cut, UnitGroup, hidden_groups, require_disjoint
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.planning.proof import kind_of, refused_layers, refuted
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
    """Return the hidden units that the patterns name; without patterns, all that a run of the model shows."""
    if chains:
        return hidden_groups(plan, chains)
    units = find_units(plan)
    require_groups(plan, units)
    plan.skipped |= units.refused
    return units.feed_forward


def _of_type(spec_type: type[S], levels: Levels) -> list[tuple[str, S]]:
    return [(level, spec) for level, specs in levels.items() for spec in specs if isinstance(spec, spec_type)]


def _specs_by_layer(specs: Sequence[tuple[str, S]], find: Callable[[S], list[str]]) -> dict[str, dict[str, S]]:
    """Return for each layer that the specs match the spec of each level."""
    by_layer: dict[str, dict[str, S]] = {}
    for level, spec in specs:
        for name in find(spec):
            if level in by_layer.setdefault(name, {}):
                raise ValueError(f"{name!r} is matched by two {type(spec).__name__} specs at level {level!r}")
            by_layer[name][level] = spec
    return by_layer


def _plan_low_rank(plan: NestPlan, specs: Sequence[tuple[str, LowRank]]) -> None:
    for name, by_level in _specs_by_layer(specs, partial(low_rank_layers, plan)).items():
        linear, first = plan.linear_map(name), next(iter(by_level.values()))
        for option in ("init", "full"):
            values = dict.fromkeys(getattr(spec, option) for spec in by_level.values())
            if len(values) > 1:
                given = f" and {option}=".join(map(repr, values))
                raise ValueError(f"{name!r} has {option}={given}; all levels must have the same")
        ratios = {
            level: next((ratio for pattern, ratio in spec.ratios.items() if matches(name, pattern)), spec.ratio)
            for level, spec in by_level.items()
        }
        ranks = {level: max(1, round(as_tuple(ratio)[0] * linear.full_rank)) for level, ratio in ratios.items()}
        _require_growing(plan, name, {level: range(rank) for level, rank in ranks.items()}, linear.full_rank + 1)
        layer, key = plan.modules[name], randomness.key(plan.seed, "nest", name)
        plan.replace(name, LowRankLayer(layer, linear, ranks, plan.switch, init=first.init, full=first.full, key=key))


def low_rank_layers(plan: NestPlan, spec: LowRank) -> list[str]:
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
    skipped |= {name: "excluded" for name in chosen if name in excluded}
    chosen = [name for name in chosen if name not in excluded]
    independent = [name for name in chosen if plan.why_not_nestable(name) is None]  # others are refused by their reason
    for name, reader in read_elsewhere(plan, independent).items():
        reason = f"the code of {reader or 'the model'!r} reads its weight, which a layer of low rank does not have"
        if spec.where is not None:
            raise ValueError(f"{name!r} cannot be nested: {reason}; exclude it, or name other layers")
        skipped[name] = reason
    chosen = [name for name in chosen if name not in skipped]
    plan.skipped |= skipped
    if not chosen:
        raise ValueError(f"LowRank has no layer left in {type(plan.model).__name__}; change `where` or `exclude`")
    for pattern in spec.ratios:
        plan.match([pattern])
        if not any(matches(name, pattern) for name in chosen):
            raise ValueError(f"the pattern {pattern!r} of ratios matches no layer that LowRank nests")
    return chosen


def _plan_width(plan: NestPlan, specs: Sequence[tuple[str, Width]]) -> None:
    cuts: dict[str, Cut] = {}
    traced: dict[str, Cut] = {}
    for level, spec in specs:
        for group in width_groups(plan, spec):
            cut = cuts.setdefault(group.name, Cut(group, {}, spec.order))
            if cut.group != group or level in cut.sizes or cut.order != spec.order:
                raise ValueError(f"{group.name!r} is matched by two Width specs that do not agree")
            cut.sizes[level] = max(1, round(ratio_of(group, spec) * group.units))
            if spec.hidden is None and not group.pads:
                traced[group.name] = cut
    for name, cut in cuts.items():
        _require_growing(plan, name, {level: range(size) for level, size in cut.sizes.items()}, cut.group.units)
    require_disjoint([cut.group for cut in cuts.values()])
    for name in _refuted(plan, list(traced.values())):
        del cuts[name]
    _replace_widths(plan, list(cuts.values()))


def _refuted(plan: NestPlan, cuts: Sequence[Cut]) -> list[str]:
    """Return the groups that a run of the model shows but that cannot be cut; if none is left, raise."""
    if not cuts:
        return []
    call = example_of(plan, plan.model).drawn(None, torch.Generator().manual_seed(1))
    kinds = refuted(plan, cuts, call, _replace_widths)
    plan.skipped |= refused_layers(cuts, kinds)
    names = [cut.group.name for cut in cuts if kind_of(cut.group.name) in kinds]
    if len(names) == len(cuts):
        reason = next(iter(kinds.values()))
        raise ValueError(f"{plan.caller} cannot narrow {type(plan.model).__name__}: at {names[0]!r}, {reason}")
    remaining = [cut for cut in cuts if cut.group.name not in names]
    if names and (left := refuted(plan, remaining, call, _replace_widths)):
        raise ValueError(f"{plan.caller} cannot narrow {type(plan.model).__name__}: {next(iter(left.values()))}")
    return names


def _replace_widths(plan: NestPlan, cuts: Sequence[Cut]) -> None:
    """Plan the narrow layers for some cuts."""
    rows: dict[str, list[AxisPart]] = {}
    columns: dict[str, list[AxisPart]] = {}
    norms: dict[str, list[AxisPart]] = {}
    others: dict[str, dict[str, dict[int, list[AxisPart]]]] = {}
    for cut in cuts:
        for producer in cut.group.producers:
            rows.setdefault(producer.name, []).append(cut.producer_part(plan, producer))
        for part in cut.group.taken:
            columns.setdefault(part.module, []).append(cut.part(plan, part))
        for part in cut.group.normalised:
            norms.setdefault(part.module, []).append(cut.part(plan, part))
        for part in cut.group.others:
            own = others.setdefault(part.module, {}).setdefault(part.parameter.rpartition(".")[2], {})
            own.setdefault(part.dim, []).append(cut.part(plan, part))
    padded = {producer.name for cut in cuts if cut.group.pads for producer in cut.group.producers}
    for name in dict.fromkeys([*rows, *columns]):
        linear = plan.linear_map(name)
        axes = axis_of(rows.get(name, ()), linear.outputs), axis_of(columns.get(name, ()), linear.inputs)
        plan.replace(name, NarrowLayer(plan.modules[name], linear, *axes, plan.switch, pads=name in padded))
    for name, by_leaf in others.items():
        if (reason := plan.why_not_replaceable(name)) is not None:
            raise ValueError(f"{name!r} cannot be nested: {reason}; exclude it, or name other layers")
        shapes = {leaf: plan.modules[name].get_parameter(leaf).shape for leaf in by_leaf}
        axes_of_leaves = {
            leaf: {dim: axis_of(parts, shapes[leaf][dim]) for dim, parts in by_dim.items()}
            for leaf, by_dim in by_leaf.items()
        }
        plan.replace(name, NarrowModule(plan.modules[name], axes_of_leaves, plan.switch))
    for name, parts in norms.items():
        norm = plan.modules[name]
        assert isinstance(norm, _BatchNorm)
        plan.norm_axes[name] = axis_of(parts, norm.num_features)


def width_groups(plan: NestPlan, spec: Width) -> list[UnitGroup]:
    """Return the groups of units that a spec narrows; `ratios` names each of them by the layers that make its units."""
    groups = find_hidden_groups(plan, chains_of(spec.hidden))
    if spec.heads:
        groups = [*groups, *_head_groups(plan)]
    if spec.query_key:
        groups = [*groups, *_query_key_groups(plan)]
    excluded = set(plan.match(as_patterns(spec.exclude)))
    chosen = [group for group in groups if not excluded & set(group.members)]
    for group in groups:
        if group not in chosen:
            plan.skipped |= {name: "its hidden units belong to an excluded layer too" for name in group.members}
    if not chosen:
        raise ValueError(f"Width has no hidden layer left in {type(plan.model).__name__}; change `exclude`")
    for pattern in spec.ratios:
        plan.match([pattern])
        if not any(group.is_named_by(pattern) for group in chosen):
            raise ValueError(f"the pattern {pattern!r} of ratios matches no layer that makes hidden units")
    return chosen


def _head_groups(plan: NestPlan) -> list[UnitGroup]:
    units = find_units(plan)
    if not units.heads:
        attention = [f"{name!r}: {why}" for name, why in units.refused.items() if "ttention" in why or "attn" in name]
        raise ValueError(
            f"heads=True: {type(plan.model).__name__} has no attention heads that could be fewer"
            + (f" ({attention[0]})" if attention else "")
        )
    return units.heads


def _query_key_groups(plan: NestPlan) -> list[UnitGroup]:
    packed = [name for name, module in plan.modules.items() if isinstance(module, nn.MultiheadAttention)]
    if packed:
        raise ValueError(
            f"query_key=True: {packed[0]!r} is an nn.MultiheadAttention, whose query and key are packed in one tensor"
        )
    groups = find_units(plan).query_key
    if not groups:
        raise ValueError(f"query_key=True: {type(plan.model).__name__} has no attention of a known structure")
    return groups


def ratio_of(group: UnitGroup, spec: Width) -> float:
    """Return the share of a group's units that the one level of a spec has."""
    return as_tuple(next((r for pattern, r in spec.ratios.items() if group.is_named_by(pattern)), spec.ratio))[0]


def _plan_depth(plan: NestPlan, specs: Sequence[tuple[str, Depth]]) -> None:
    for name, by_level in _specs_by_layer(specs, partial(block_lists, plan)).items():
        blocks, indices = plan.modules[name], {}
        total = len(blocks._modules)
        for level, spec in by_level.items():
            if (keep := spec.count(total)) > total:
                raise ValueError(f"{name!r} has {total} blocks and cannot keep {keep}")
            indices[level] = block_indices(total, keep, spec.pick, name)
        _require_growing(plan, name, indices, total)
        plan.require_no_hooks(name)
        left_out = {i for own in indices.values() for i in set(range(total)) - set(own)}
        require_same_shapes(plan, [f"{name}.{child}" for i, child in enumerate(blocks._modules) if i in left_out])
        shortened = ShortenedModuleList if isinstance(blocks, nn.ModuleList) else ShortenedSequential
        plan.replace(name, shortened(blocks, indices, plan.switch))


def block_lists(plan: NestPlan, spec: Depth) -> list[str]:
    """Return the lists of blocks that a spec names."""
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
    for name, by_level in _specs_by_layer(specs, partial(_summed_layers, plan)).items():
        spec = next(iter(by_level.values()))
        if any(other != spec for other in by_level.values()):
            raise ValueError(f"{name!r} is matched by two LayerSum specs; all levels must have the same")
        _require_growing(plan, name, {level: range(1) for level in by_level}, 2)
        if (reason := plan.why_not_replaceable(name)) is not None:
            raise ValueError(f"{name!r} cannot be nested: {reason}")
        old = plan.modules[name]
        new = spec.make(old)
        if not isinstance(new, nn.Module):
            raise TypeError(f"make returned {new!r} for {name!r}; it must return a module")
        if {*old.modules(), *old.parameters()} & {*new.modules(), *new.parameters()}:
            raise ValueError(
                f"make returned a module that is {name!r} itself or shares modules or parameters with it, so that both "
                "terms of the sum would be trained as one; return a new module, or a copy by copy.deepcopy"
            )
        require_same_signature(old, new, name)
        new.train(old.training)
        plan.replace(name, SumLayer(old, new, spec.core, list(by_level), plan.switch))


def _summed_layers(plan: NestPlan, spec: LayerSum) -> list[str]:
    matched = plan.match(as_patterns(spec.where))
    return [name for name in matched if name.rpartition(".")[0] not in matched]  # not the modules inside a match


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


def _require_growing(plan: NestPlan, name: str, parts: Mapping[str, Collection[int]], full: int) -> None:
    """Refuse levels of which one lacks a rank, unit or block of the one before it."""
    before: Collection[int] = ()
    for level in plan.switch.levels:
        now = parts.get(level, range(full))
        if not set(before) <= set(now):
            shown = [list(part) if isinstance(part, tuple) else len(part) for part in (before, now)]
            raise ValueError(
                f"each level must contain the one before it, and {name!r} has {shown[0]} and then, at {level!r}, "
                f"{shown[1]}: order the levels, and for evenly spaced blocks choose numbers whose blocks nest"
            )
        before = now
