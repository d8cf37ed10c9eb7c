"""x: the parameters of a model, each once, by name or by pattern."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import nn

from partialsgd._util.scratch import Scratch

T = TypeVar("T")

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DataParallel, DistributedDataParallel and torch.compile."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model.get_submodule("_orig_mod")
        else:
            return model


class Parameters(Mapping[str, nn.Parameter]):
    """Each parameter under its first name; a tied parameter answers to all of its names."""

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrap(model)
        self._first: dict[str, nn.Parameter] = {}
        self._canonical: dict[str, str] = {}
        self._owner: dict[str, nn.Module] = {}
        self.scratch = Scratch()
        self._once: dict[Hashable, Any] = {}
        first_name: dict[nn.Parameter, str] = {}
        for path, module in self.model.named_modules(remove_duplicate=False):
            for leaf, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                name = _clean(f"{path}.{leaf}" if path else leaf)
                canonical = first_name.setdefault(parameter, name)
                self._canonical[name] = canonical
                self._first.setdefault(canonical, parameter)
                self._owner.setdefault(canonical, module)

    def __getitem__(self, name: str) -> nn.Parameter:
        return self._first[self.canonical(name)]

    def __contains__(self, name: object) -> bool:
        return name in self._canonical

    def __iter__(self) -> Iterator[str]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)

    def items(self) -> ItemsView[str, nn.Parameter]:
        return self._first.items()  # a dict's own views: every step goes over all parameters several times

    def values(self) -> ValuesView[nn.Parameter]:
        return self._first.values()

    def canonical(self, name: str) -> str:
        """The first name of the parameter that `name` names."""
        try:
            return self._canonical[name]
        except KeyError:
            raise KeyError(f"no parameter is named {name!r}; {closest(name, self._canonical)}") from None

    def owner(self, name: str) -> nn.Module:
        """The module that holds the parameter under its first name."""
        return self._owner[self.canonical(name)]

    def aliases(self, name: str) -> tuple[str, ...]:
        """All names of a parameter: more than one when it is tied."""
        canonical = self.canonical(name)
        return tuple(other for other, first in self._canonical.items() if first == canonical)

    def match(self, patterns: Sequence[str]) -> tuple[str, ...]:
        """The first names of all parameters that a pattern covers; every pattern must cover some.

        A pattern (`*`, `?`, `[…]`) matches the full name of a parameter or module or any dotted
        suffix of it, and a module's pattern covers the parameters inside it.
        """
        key = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        return self.once(("match", key), lambda: self._match_all(key))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is the same at every step is made at the first."""
        if key not in self._once:
            self._once[key] = make()
        made: T = self._once[key]
        return made

    def _match_all(self, patterns: tuple[str, ...]) -> tuple[str, ...]:
        found = [self._match(pattern) for pattern in patterns]
        return tuple(name for name in self._first if any(name in covered for covered in found))

    def _match(self, pattern: str) -> set[str]:
        covered = {canonical for name, canonical in self._canonical.items() if matches(name, pattern)}
        if not covered:
            raise ValueError(f"pattern {pattern!r} matches no parameter or module; {closest(pattern, self._canonical)}")
        return covered


def parameters_of(model: nn.Module | Parameters) -> Parameters:
    return model if isinstance(model, Parameters) else Parameters(model)


def require_strided(name: str, gradient: torch.Tensor) -> None:
    if gradient.layout is not torch.strided:
        raise NotImplementedError(
            f"the gradient of {name!r} is sparse ({gradient.layout}); partial SGD needs dense gradients: "
            "build the layer with sparse=False"
        )


def _clean(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def matches(name: str, pattern: str) -> bool:
    """Whether the pattern covers the name: it matches it, or a module around it, or a dotted suffix of these."""
    return bool(name) and any(fnmatchcase(suffix, pattern) for suffix in _suffixes_of_prefixes(name))


def _suffixes_of_prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        for start in range(end):
            yield ".".join(parts[start:end])


def closest(wanted: str, names: Iterable[str]) -> str:
    """What could have been meant: a name, a module around it, or a dotted suffix of these."""
    known = sorted({part for name in names if name for part in _suffixes_of_prefixes(name)})
    # Numbered layers differ by one digit only: what is named should help to see the scheme, not list it.
    close = difflib.get_close_matches(wanted.strip("*."), known, n=3, cutoff=0.4)
    if close:
        return f"the closest names are {', '.join(map(repr, close))}"
    return f"names are like {max(known, key=len, default='')!r}"
