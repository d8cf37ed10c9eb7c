"""Parameters of a model, each once, by name or by pattern (x)."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import nn

from partialsgd._util import shards
from partialsgd._util.bitwise_select import Scratch

T = TypeVar("T")

values_of = operator.methodcaller("values")

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
SHARE = "_share"
"""The prefix of modules that hold a share of a nested layer's parameters; parameter names leave such modules out."""


class Wrapper(nn.Module):
    """A module of this package around the user's own one."""

    module: nn.Module


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DataParallel, DistributedDataParallel, torch.compile and our own wrappers."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel, Wrapper)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model.get_submodule("_orig_mod")
        else:
            return model


class Parameters(dict[str, nn.Parameter]):
    """The parameters by name, read-only. A tied parameter is listed under its first name and found under each."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = unwrap(model)
        self.fsdp_roots = shards.fsdp_roots(self.model)
        """The outermost modules that `fully_shard` was applied to."""
        self.reshard()
        self.first_names: dict[str, str] = {}
        """The first name of each name; they differ for a tied parameter."""
        self._owner: dict[str, nn.Module] = {}
        self.scratch = Scratch()
        self.cache: dict[Hashable, Any] = {}
        """Values that are the same at every step; see `once`."""
        dicts = [d for module in self.model.modules() for d in (module._modules, module._parameters)]
        self.filled, self.empty = [d for d in dicts if d], [d for d in dicts if not d]
        """The dicts `_modules` and `_parameters` of every module, to notice parameters that are added or replaced."""
        self.contents = list(chain.from_iterable(map(values_of, self.filled)))
        """The values of `filled` at the start."""
        first_name: dict[nn.Parameter, str] = {}
        for path, module in self.model.named_modules(remove_duplicate=False):
            for leaf, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                name = ".".join((*_without_wrappers(path), leaf))
                canonical = first_name.setdefault(parameter, name)
                self.first_names[name] = canonical
                self.setdefault(canonical, parameter)
                self._owner.setdefault(canonical, module)
        self.is_sharded = any(map(shards.is_sharded, self.values()))
        """True if ranks hold parts of parameters."""

    def reshard(self) -> None:
        """Make `fully_shard` drop the whole parameters that it holds, and what is left of a pass that raised.

        The next pass gathers them again; otherwise it could run with numbers from before a change of the parts.
        """
        for root in self.fsdp_roots:
            shards.reset(root)

    def require_unchanged(self) -> None:
        """Raise if a parameter of the model was added, removed or replaced; modules without parameters may be."""
        now = Parameters(self.model)
        if change := self._change(now):
            raise RuntimeError(
                f"{change}, after PartialSGD was built, so that it would never be trained; build the "
                "optimizer and PartialSGD anew, and load weights by load_state_dict(...) without assign=True"
            )
        self.filled, self.empty, self.contents = now.filled, now.empty, now.contents

    def _change(self, now: Parameters) -> str | None:
        for name in (*now, *self):
            if name not in self or name not in now:
                return f"the parameter {name!r} was {'removed' if name in self else 'added'}"
            if now[name] is not self[name]:
                return f"the parameter {name!r} was replaced"
        return None

    def __missing__(self, name: str) -> nn.Parameter:
        return self[self.canonical(name)]

    def __contains__(self, name: object) -> bool:
        return name in self.first_names

    def get(self, name: str, default: Any = None, /) -> Any:
        return super().get(self.first_names.get(name, name), default)

    def canonical(self, name: str) -> str:
        """The first name of the parameter that `name` names."""
        try:
            return self.first_names[name]
        except KeyError:
            raise KeyError(f"no parameter is named {name!r}; {closest(name, self.first_names)}") from None

    def owner(self, name: str) -> nn.Module:
        """The module that holds the parameter under its first name."""
        return self._owner[self.canonical(name)]

    def aliases(self, name: str) -> tuple[str, ...]:
        """All names of a parameter: more than one when it is tied."""
        canonical = self.canonical(name)
        return tuple(other for other, first in self.first_names.items() if first == canonical)

    def match(self, patterns: Sequence[str]) -> tuple[str, ...]:
        """The first names of all parameters that a pattern covers. A pattern that covers none raises.

        A pattern (`*`, `?`, `[…]`) matches the full name of a parameter or module or any dotted
        suffix of it, and a module's pattern covers the parameters inside it.
        """
        key = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        return self.once(("match", key), lambda: self._match(key))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Cache a value that is the same at every step: `make()` runs for the first caller with this key."""
        if key not in self.cache:
            self.cache[key] = make()
        value: T = self.cache[key]
        return value

    def _match(self, patterns: tuple[str, ...]) -> tuple[str, ...]:
        covered: set[str] = set()
        for pattern in patterns:
            names = {canonical for name, canonical in self.first_names.items() if matches(name, pattern)}
            if not names:
                hint = closest(pattern, self.first_names)
                raise ValueError(f"pattern {pattern!r} matches no parameter or module; {hint}")
            covered |= names
        return tuple(name for name in self if name in covered)


def _without_wrappers(path: str) -> Iterator[str]:
    return (part for part in path.split(".") if part and part not in _WRAPPERS and not part.startswith(SHARE))


def parameters_of(model: nn.Module | Parameters) -> Parameters:
    return model if isinstance(model, Parameters) else Parameters(model)


def require_strided(name: str, gradient: torch.Tensor) -> None:
    if gradient.layout is not torch.strided:
        raise NotImplementedError(
            f"the gradient of {name!r} is sparse ({gradient.layout}); partial SGD needs dense gradients: "
            "build the layer with sparse=False"
        )


def matches(name: str, pattern: str) -> bool:
    """True if the pattern matches the name, the name of a module around it, or a dotted suffix of these."""
    return bool(name) and any(fnmatchcase(suffix, pattern) for suffix in _suffixes_of_prefixes(name))


def _suffixes_of_prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        for start in range(end):
            yield ".".join(parts[start:end])


def closest(wanted: str, names: Iterable[str]) -> str:
    """A hint for an error message: the names, module names or dotted suffixes of these that are most like `wanted`."""
    candidates = sorted({part for name in names if name for part in _suffixes_of_prefixes(name)})
    # Numbered layers differ by one digit only: three names are enough to see the scheme.
    close = difflib.get_close_matches(wanted.strip("*."), candidates, n=3, cutoff=0.4)
    if close:
        return f"the closest names are {', '.join(map(repr, close))}"
    return f"names are like {max(candidates, key=len, default='')!r}"
