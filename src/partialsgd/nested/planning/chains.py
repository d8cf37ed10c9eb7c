"""Hidden layers that the user names by patterns: which layers make units, and which layer takes them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch.nn.modules.batchnorm import _BatchNorm

from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.planning.groups import Producer, UnitGroup
from partialsgd.nested.planning.nest_plan import NestPlan

_WILDCARD = r"(\*|\?|\[[^\]]+\])"


def hidden_groups(plan: NestPlan, chains: Sequence[tuple[str, ...]]) -> list[UnitGroup]:
    """Return one group for each way in which all patterns of a chain match with the same text for `*`."""
    groups = []
    for chain in chains:
        names_by_text = [_names_by_wildcard_text(plan, pattern) for pattern in chain]
        for text, first in names_by_text[0].items():
            names = [first, *(names[text] for names in names_by_text[1:] if text in names)]
            if len(names) < len(chain):
                missing = next(p for p, names in zip(chain, names_by_text, strict=True) if text not in names)
                raise ValueError(f"hidden: {first!r} makes units, and no layer that matches {missing!r} goes with it")
            groups.append(_group(plan, names))
    return groups


def _group(plan: NestPlan, names: Sequence[str]) -> UnitGroup:
    """Return the group of layers of which the last takes the units; a BatchNorm among them normalises the units."""
    norms = tuple(name for name in names if isinstance(plan.modules[name], _BatchNorm))
    *makers, taker = [name for name in names if name not in norms] or [""]
    if not makers:
        raise ValueError(
            f"hidden names {', '.join(map(repr, names))}; it must name a layer that makes units and one that takes them"
        )
    taken, units = _linear_map(plan, taker).inputs, _linear_map(plan, makers[0]).outputs
    for name in makers:
        linear = _linear_map(plan, name)
        is_flattened = linear.kind == "conv2d" and taken % linear.outputs == 0 and len(makers) == 1
        if linear.outputs != taken and not is_flattened:
            raise ValueError(f"{name!r} makes {linear.outputs} units and {taker!r} takes {taken}")
    for name in norms:
        if (features := plan.modules[name].num_features) != units:
            raise ValueError(f"{makers[0]!r} makes {units} units and {name!r} normalises {features}")
    return UnitGroup(units, tuple(Producer(name) for name in makers), (taker,), norms)


def _linear_map(plan: NestPlan, name: str) -> LinearMap:
    linear = linear_map_of(plan.modules[name])
    if isinstance(linear, str):
        raise ValueError(f"hidden: {name!r} neither makes nor takes units: {linear}; name other layers")
    return linear


def _names_by_wildcard_text(plan: NestPlan, pattern: str) -> dict[tuple[str, ...], str]:
    """Return each matching module by the text before the pattern and the texts of its wildcards."""
    regex = re.compile(r"(?:(.*)\.)?" + "".join(_as_regex(part) for part in re.split(_WILDCARD, pattern)))
    names = ((regex.fullmatch(name), name) for name in plan.match([pattern]))
    return {tuple(text or "" for text in match.groups()): name for match, name in names if match}


def _as_regex(part: str) -> str:
    if re.fullmatch(_WILDCARD, part) is None:
        return re.escape(part)
    return {"*": "(.*)", "?": "(.)"}.get(part, f"({part.replace('[!', '[^')})")
