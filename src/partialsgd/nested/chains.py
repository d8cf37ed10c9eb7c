"""Hidden layers that the user names by patterns: which layer makes units for which."""

from __future__ import annotations

import re
from collections.abc import Sequence

from partialsgd.nested.groups import Group, Producer
from partialsgd.nested.sites import Site


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
        if (made := site.form(name).outputs) != units and (name != makers[0] or units % made):
            raise ValueError(f"{name!r} makes {made} units and {taker!r} takes {units}")
    return Group(site.form(makers[0]).outputs, tuple(Producer(name) for name in makers), (taker,))


def _places(site: Site, pattern: str) -> dict[tuple[str, ...], str]:
    """Each module that matches, by what stands before the pattern and for its wildcards."""
    wild = re.sub(r"\\?\*", "(.*)", re.escape(pattern)).replace(r"\?", "(.)")
    form = re.compile(rf"(?:(.*)\.)?{wild}")
    found = {}
    for name in site.match([pattern]):
        hit = form.fullmatch(name)
        if hit:
            found[tuple(part or "" for part in hit.groups())] = name
    return found
