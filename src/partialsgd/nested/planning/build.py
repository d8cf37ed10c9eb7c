"""From specs to nested modules: what each spec claims at each level, and the module that takes its place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from torch import nn

from partialsgd.nested.layers.axes import whole
from partialsgd.nested.layers.batch_norm import Norms, SeparateNorm, SharedNorm, batch_norms
from partialsgd.nested.layers.depth import Shortened, ShortList, ShortSequential, spread
from partialsgd.nested.layers.kinds import Form, form_of
from partialsgd.nested.layers.low_rank import LowRankLayer
from partialsgd.nested.layers.narrow import NarrowLayer
from partialsgd.nested.layers.sums import SumLayer, require_same_signature
from partialsgd.nested.levels import Levels, require_growing
from partialsgd.nested.planning.chains import hidden_groups
from partialsgd.nested.planning.channels import channel_groups
from partialsgd.nested.planning.groups import Cut, Group, require_apart
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.planning.transformers import feed_forward, query_key
from partialsgd.nested.specs import Depth, LayerSum, LowRank, Width, as_patterns, as_tuple
from partialsgd.parameters import matches

Kind = TypeVar("Kind", LowRank, Width, Depth, LayerSum)


def plan(site: NestPlan, levels: Levels, norms: Norms) -> None:
    """Fill the site; the model is as it was."""
    _plan_low_rank(site, _of(LowRank, levels))
    _plan_width(site, _of(Width, levels))
    _plan_depth(site, _of(Depth, levels))
    _plan_sums(site, _of(LayerSum, levels))
    _plan_norms(site, norms)


def _of(kind: type[Kind], levels: Levels) -> dict[str, list[Kind]]:
    return {level: [one for one in specs if isinstance(one, kind)] for level, specs in levels.items()}


def _plan_low_rank(site: NestPlan, specs: Mapping[str, Sequence[LowRank]]) -> None:
    ranks: dict[str, dict[str, int]] = {}
    inits: dict[str, LowRank] = {}
    for level, given in specs.items():
        for spec in given:
            for name in _low_rank_layers(site, spec):
                form = site.form(name)
                ratio = next((r for p, r in spec.ratios.items() if matches(name, p)), spec.ratio)
                least = min(form.outputs, form.inputs * math.prod(form.kernel))
                if level in ranks.setdefault(name, {}):
                    raise ValueError(f"{name!r} is claimed by two LowRank specs at level {level!r}")
                ranks[name][level] = max(1, round(as_tuple(ratio)[0] * least))
                if inits.setdefault(name, spec).init != spec.init:
                    raise ValueError(f"{name!r} is to start in two ways, {inits[name].init!r} and {spec.init!r}")
    for name, sizes in ranks.items():
        form = site.form(name)
        require_growing(name, sizes, min(form.outputs, form.inputs * math.prod(form.kernel)) + 1, site.switch.levels)
        layer = LowRankLayer(site.modules[name], form, sizes, site.switch, init=inits[name].init, key=site.key(name))
        site.claim(name, "LowRank", layer)


def _low_rank_layers(site: NestPlan, spec: LowRank) -> list[str]:
    excluded = set(site.match(as_patterns(spec.exclude)))
    forms = {name: form_of(module) for name, module in site.modules.items()}
    nestable = [name for name, form in forms.items() if isinstance(form, Form)]
    if spec.where is None:
        skipped = {name: why for name in nestable if (why := site.refusal(name)) is not None}
        if len(nestable) > 1:
            skipped.setdefault(
                nestable[-1], "the output layer, whose rank bounds what the network can say; `where` can name it"
            )
        chosen = [name for name in nestable if name not in skipped]
    else:
        covered, skipped = site.match(as_patterns(spec.where)), {}
        chosen = [name for name in covered if name in nestable]
        for pattern in as_patterns(spec.where):
            if not any(matches(name, pattern) for name in nestable):
                name = next(name for name in covered if matches(name, pattern))
                raise ValueError(f"{name!r} cannot be nested: {forms[name]}")
    site.skipped |= skipped | {name: "excluded" for name in chosen if name in excluded}
    chosen = [name for name in chosen if name not in excluded]
    if not chosen:
        raise ValueError(f"LowRank has no layer left in {type(site.model).__name__}")
    for pattern in spec.ratios:
        site.match([pattern])
        if not any(matches(name, pattern) for name in chosen):
            raise ValueError(f"ratios names {pattern!r}, and no layer of `where` is called so")
    return chosen


def _plan_width(site: NestPlan, specs: Mapping[str, Sequence[Width]]) -> None:
    cuts: dict[str, Cut] = {}
    for level, given in specs.items():
        for spec in given:
            for group in _groups(site, spec):
                cut = cuts.setdefault(group.name, Cut(group, {}, spec.order))
                if cut.group != group or level in cut.sizes or cut.order != spec.order:
                    raise ValueError(f"{group.name!r} is claimed by two Width specs that do not agree")
                cut.sizes[level] = max(1, round(as_tuple(spec.ratio)[0] * group.units))
    for name, cut in cuts.items():
        require_growing(name, cut.sizes, cut.group.units, site.switch.levels)
    _narrow(site, list(cuts.values()))


def hidden_layers(site: NestPlan, chains: Sequence[tuple[str, ...]]) -> list[Group]:
    """The hidden units of the layers that the patterns name, or of all that structure tells."""
    return hidden_groups(site, chains) if chains else feed_forward(site) or channel_groups(site)


def _groups(site: NestPlan, spec: Width) -> list[Group]:
    groups = hidden_layers(site, spec.chains)
    if spec.query_key:
        groups = [*groups, *query_key(site)]
    excluded = set(site.match(as_patterns(spec.exclude)))
    left = [group for group in groups if not excluded & set(group.members)]
    for group in groups:
        if group not in left:
            site.skipped |= {name: "its hidden units go with an excluded layer" for name in group.members}
    if not left:
        raise ValueError(f"Width has no hidden layer left in {type(site.model).__name__}")
    return left


def _narrow(site: NestPlan, cuts: Sequence[Cut]) -> None:
    require_apart([cut.group for cut in cuts])
    rows = {p.name: (cut, cut.producer_axis(site, p)) for cut in cuts for p in cut.group.producers}
    columns = {name: cut.consumer_axis(site, name) for cut in cuts for name in cut.group.consumers}
    for name in dict.fromkeys([*rows, *columns]):
        form = site.form(name)
        out = rows[name][1] if name in rows else whole(form.outputs)
        pads = name in rows and rows[name][0].group.pads
        layer = NarrowLayer(
            site.modules[name], form, out, columns.get(name, whole(form.inputs)), site.switch, pads=pads
        )
        site.claim(name, "Width", layer)
    site.narrowed |= {name: cut.norm_axis(site) for cut in cuts for name in cut.group.norms}


def _plan_depth(site: NestPlan, specs: Mapping[str, Sequence[Depth]]) -> None:
    kept: dict[str, dict[str, tuple[int, ...]]] = {}
    for level, given in specs.items():
        for spec in given:
            for name in _lists(site, spec):
                total = len(site.modules[name]._modules)
                keep = spec.count(total)
                if keep > total:
                    raise ValueError(f"{name!r} has {total} blocks and cannot keep {keep}")
                if level in kept.setdefault(name, {}):
                    raise ValueError(f"{name!r} is claimed by two Depth specs at level {level!r}")
                kept[name][level] = spread(total, keep, even=spec.pick == "even")
    for name, sets in kept.items():
        _require_chain(site, name, sets)
        blocks = site.modules[name]
        kind: type[Shortened] = ShortList if isinstance(blocks, nn.ModuleList) else ShortSequential
        site.require_no_hooks(name)
        site.claim(name, "Depth", kind(blocks, sets, site.switch))


def _lists(site: NestPlan, spec: Depth) -> list[str]:
    found = []
    for pattern in as_patterns(spec.layers):
        # The list itself, not all that lies inside it.
        covered = [n for n in site.match([pattern]) if not matches(n.rpartition(".")[0], pattern)]
        lists = [n for n in covered if type(site.modules[n]) in (nn.ModuleList, nn.Sequential)]
        if not lists:
            kind = type(site.modules[covered[0]]).__name__
            raise ValueError(f"{covered[0]!r} is a {kind}; Depth needs an nn.ModuleList or nn.Sequential of blocks")
        found += lists
    return found


def _require_chain(site: NestPlan, name: str, sets: Mapping[str, tuple[int, ...]]) -> None:
    everything = tuple(range(len(site.modules[name]._modules)))
    before: tuple[int, ...] = ()
    for level in site.switch.levels:
        now = sets.get(level, everything)
        if not set(before) <= set(now):
            raise ValueError(
                f"levels form a chain, and {name!r} has blocks {list(before)} and then, at {level!r}, {list(now)}: "
                "order the levels, and with even spacing choose numbers whose blocks contain each other"
            )
        before = now


def _plan_sums(site: NestPlan, specs: Mapping[str, Sequence[LayerSum]]) -> None:
    small: dict[str, list[str]] = {}
    claims: dict[str, LayerSum] = {}
    for level, given in specs.items():
        for spec in given:
            covered = site.match(as_patterns(spec.where))
            for name in [n for n in covered if n.rpartition(".")[0] not in covered]:  # not what lies inside
                small.setdefault(name, []).append(level)
                if claims.setdefault(name, spec) != spec:
                    raise ValueError(f"{name!r} is claimed by two LayerSum specs")
    for name, spec in claims.items():
        require_growing(name, dict.fromkeys(small[name], 1), 2, site.switch.levels)
        if (why := site.entanglement(name)) is not None:
            raise ValueError(f"{name!r} cannot be nested: {why}")
        old = site.modules[name]
        new = spec.make(old)
        if not isinstance(new, nn.Module):
            raise TypeError(f"make returned {new!r} for {name!r}; it must return a module")
        require_same_signature(old, new, name)
        new.train(old.training)
        site.claim(name, "LayerSum", SumLayer(old, new, spec.core, small[name], site.switch))


def _plan_norms(site: NestPlan, norms: Norms) -> None:
    for name, norm in batch_norms(site.model):
        axis = site.narrowed.get(name)
        if norms == "separate" or axis is not None:
            site.require_no_hooks(name)
        if norms == "shared" and axis is not None:
            site.claim(name, "norms", SharedNorm(norm, axis, site.switch))
        elif norms == "separate":
            levels = [level for level in site.switch.levels if _runs(site, name, level)]
            site.claim(name, "norms", SeparateNorm(norm, axis or whole(norm.num_features), levels, site.switch))


def _runs(site: NestPlan, name: str, level: str) -> bool:
    """Whether the level has the block that the layer lies in."""
    for place, module in site.replaced.items():
        if isinstance(module, Shortened) and name.startswith(f"{place}."):
            block = name.removeprefix(f"{place}.").partition(".")[0]
            if module.names.index(block) not in module.kept[level]:
                return False
    return True
