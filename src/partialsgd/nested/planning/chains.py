"""Hidden layers that the user names by patterns: which layer makes units for which."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch.nn.modules.batchnorm import _BatchNorm

from partialsgd.nested.layers.kinds import Form, form_of
from partialsgd.nested.planning.groups import Group, Producer
from partialsgd.nested.planning.nest_plan import NestPlan

_WILD = r"(\*|\?|\[[^\]]+\])"


def hidden_groups(site: NestPlan, chains: Sequence[tuple[str, ...]]) -> list[Group]:
    """One group for each place where all patterns of a chain match: what `*` stands for must be the same in all."""
    groups = []
    for chain in chains:
        places = [_places(site, pattern) for pattern in chain]
        for place, first in places[0].items():
            names = [first, *(other[place] for other in places[1:] if place in other)]
            if len(names) < len(chain):
                missing = next(p for p, other in zip(chain, places, strict=True) if place not in other)
                raise ValueError(f"{first!r} makes hidden units, and nothing that matches {missing!r} goes with it")
            groups.append(_group(site, names))
    return groups


def _group(site: NestPlan, names: Sequence[str]) -> Group:
    """A BatchNorm among the names is the norm over the units, the last of the others takes them."""
    norms = tuple(name for name in names if isinstance(site.modules[name], _BatchNorm))
    *makers, taker = [name for name in names if name not in norms] or [""]
    if not makers:
        raise ValueError(
            f"hidden names {', '.join(map(repr, names))}; it must name a layer that makes units and one that takes them"
        )
    taken, units = _form(site, taker).inputs, _form(site, makers[0]).outputs
    for name in makers:
        form = _form(site, name)
        is_flattened = form.kind == "conv2d" and taken % form.outputs == 0 and len(makers) == 1
        if form.outputs != taken and not is_flattened:
            raise ValueError(f"{name!r} makes {form.outputs} units and {taker!r} takes {taken}")
    for name in norms:
        if (features := site.modules[name].num_features) != units:
            raise ValueError(f"{makers[0]!r} makes {units} units and {name!r} normalises {features}")
    return Group(units, tuple(Producer(name) for name in makers), (taker,), norms)


def _form(site: NestPlan, name: str) -> Form:
    form = form_of(site.modules[name])
    if isinstance(form, str):
        raise ValueError(f"{name!r} makes and takes no hidden units: {form}; name other layers")
    return form


def _places(site: NestPlan, pattern: str) -> dict[tuple[str, ...], str]:
    """Each module that matches, by what stands before the pattern and for its wildcards."""
    form = re.compile(r"(?:(.*)\.)?" + "".join(_expression(part) for part in re.split(_WILD, pattern)))
    found = {}
    for name in site.match([pattern]):
        hit = form.fullmatch(name)
        if hit:
            found[tuple(part or "" for part in hit.groups())] = name
    return found


def _expression(part: str) -> str:
    if re.fullmatch(_WILD, part) is None:
        return re.escape(part)
    return {"*": "(.*)", "?": "(.)"}.get(part, f"({part.replace('[!', '[^')})")
