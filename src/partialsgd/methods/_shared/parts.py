"""A method as a part of another: bound with it, and with draws and a memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import replace
from typing import Any, final

from partialsgd._util import randomness
from partialsgd.method import Context, Method, Remembered

PLAIN = Method()
_RULES = ("mask", "perturb", "scale", "correct", "project", "within", "forget")


def has(method: Method, rule: str) -> bool:
    """True if the method has a rule other than that of plain training."""
    return getattr(method, rule) is not getattr(PLAIN, rule)


def bind_parts(combine: Callable[..., Method], *parts: Method, name: str) -> Method:
    """Combine the parts now, or, if one of them depends on the model, when they are bound to it."""
    if all(part.build is None for part in parts):
        models = [part.bound_to for part in parts if part.bound_to is not None]
        return replace(combine(*parts), bound_to=models[0] if models else None)
    return Method(build=lambda model: combine(*(part.bind(model) for part in parts)), name=name)


def with_own_memory(method: Method, name: str, *, reseed: bool) -> Method:
    """Return the method with its memory under `name`, and with `reseed` its draws by `name` too."""

    def own(context: Context) -> Context:
        seed = randomness.key(context.seed, name) if reseed else context.seed
        return replace(context, seed=seed, memory=_PrefixedMemory(context.memory, f"{name}."))

    def by_own(rule: Any) -> Any:
        return lambda context, *gradient: rule(own(context), *gradient)

    rules = {rule: by_own(getattr(method, rule)) for rule in _RULES if has(method, rule)}
    if (branches := method.branches) is not None:
        rules["branches"] = lambda context: [
            replace(b, mask=by_own(b.mask), perturb=by_own(b.perturb)) for b in branches(own(context))
        ]
    return replace(method, **rules)


@final
class _PrefixedMemory(MutableMapping[str, Remembered]):
    """The keys of a memory that begin with a prefix, without it."""

    def __init__(self, memory: MutableMapping[str, Remembered], prefix: str) -> None:
        self._memory = memory
        self._prefix = prefix

    def __getitem__(self, key: str) -> Remembered:
        return self._memory[self._prefix + key]

    def __setitem__(self, key: str, value: Remembered) -> None:
        self._memory[self._prefix + key] = value

    def __delitem__(self, key: str) -> None:
        del self._memory[self._prefix + key]

    def __iter__(self) -> Iterator[str]:
        return (key.removeprefix(self._prefix) for key in self._memory if key.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)
