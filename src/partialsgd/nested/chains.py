"""Hidden layers that the user names by patterns: which layer makes units for which."""

from __future__ import annotations

import re
from collections.abc import Sequence

from partialsgd.nested.groups import Group, Producer
from partialsgd.nested.sites import Site

_WILD = r"(\*|\?|\[[^\]]+\])"


def hidden_groups(site: Site, chains: Sequence[tuple[str, ...]]) -> list[Group]:
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


def _group(site: Site, names: Sequence[str]) -> Group:
    *makers, taker = names
    units = site.form(taker).inputs
    for name in makers:
        form = site.form(name)
        is_flattened = form.kind == "conv2d" and units % form.outputs == 0 and len(makers) == 1
        if form.outputs != units and not is_flattened:
            raise ValueError(f"{name!r} makes {form.outputs} units and {taker!r} takes {units}")
    return Group(site.form(makers[0]).outputs, tuple(Producer(name) for name in makers), (taker,))


def _places(site: Site, pattern: str) -> dict[tuple[str, ...], str]:
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
