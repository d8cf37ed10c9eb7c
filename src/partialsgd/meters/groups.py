"""Layers in groups: a numbered block of the network is one, or what patterns say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from partialsgd.parameters import Parameters


def grouped(parameters: Parameters, groups: Mapping[str, Sequence[str]] | None) -> Callable[[str], str | None]:
    """The group of a parameter's name; None for what is in no group."""
    if groups is None:
        return block_of
    named = tuple((group, (found,) if isinstance(found, str) else tuple(found)) for group, found in groups.items())
    return parameters.once(("groups", named), lambda: _by_patterns(parameters, named)).get


def block_of(name: str) -> str:
    """`encoder.layers.3` of `encoder.layers.3.fc1.weight`; without a number, the module that holds the parameter."""
    parts = name.split(".")
    number = next((k for k, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return ".".join(parts[: number + 1]) or name


def _by_patterns(parameters: Parameters, named: Sequence[tuple[str, tuple[str, ...]]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for group, patterns in named:
        for name in parameters.match(patterns):
            if name in found:
                raise ValueError(f"{name!r} is in two groups, {found[name]!r} and {group!r}; groups must not overlap")
            found[name] = group
    return found
