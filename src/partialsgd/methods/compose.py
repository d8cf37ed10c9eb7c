"""p = p₁ ⊙ p₂, δx = the one that there is: two methods at once, where that has a meaning.

A method of levels and one that perturbs: each level is perturbed by its own gradient. Two perturbations of numbers,
two corrections or two kinds of branches have no order in which they would be one step, and are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, final

from partialsgd import randomness
from partialsgd.perturbations import Perturbation
from partialsgd.rules import (
    Branch,
    BranchesRule,
    Context,
    MaskRule,
    Method,
    NeedsGradient,
    PerturbRule,
    Remembered,
    WithinRule,
)

_PLAIN = Method()
_ONE_ONLY = {
    "branches": "take their own branches",
    "perturb": "perturb",
    "correct": "correct the gradient",
    "project": "project",
    "forget": "drop optimizer state",
}
_RULES = ("mask", "perturb", "scale", "correct", "project", "within", "forget")


def compose(first: Method, second: Method) -> Method:
    """Two methods at once: masks are intersected, and each level of the one is perturbed as the other says.

    alternating × sam: at each level the worst point near it; alternating × top_k: the largest gradients of the level;
    freezing × sam, block_coordinate × compressed_gradient, and so on.
    """
    for rule, does in _ONE_ONLY.items():
        if _has(first, rule) and _has(second, rule):
            raise ValueError(f"{first.name} and {second.name} both {does}, and a step can do that once only")
    if first.guard is not None or second.guard is not None:
        raise ValueError("guard the composition, not a part of it: guarded(compose(…), …)")
    name = f"compose({first.name}, {second.name})"
    if not first.is_plain and not second.is_plain:
        second = _apart(second)
    outer, inner = (second, first) if second.branches is not None else (first, second)
    parts: dict[str, Any] = {rule: getattr(_owner(first, second, rule), rule) for rule in _ONE_ONLY}
    if outer.branches is None:
        parts |= {"mask": _both(first.mask, second.mask), "perturb": _by_own_mask(_owner(first, second, "perturb"))}
    else:
        parts |= {"branches": _branches(outer, inner), "perturb": _PLAIN.perturb}
    projecting = _owner(first, second, "project")
    return Method(
        **parts | {"project": _by_own_mask(projecting, projecting.project)},
        scale=lambda context: first.scale(context) * second.scale(context),
        within=_inside_both(first, second),
        combine=outer.combine,
        structural=first.structural or second.structural,
        name=name,
    )


def _branches(outer: Method, inner: Method) -> BranchesRule:
    """The branches of the one, each masked and perturbed by the other as well."""

    def branches(context: Context) -> Sequence[Branch]:
        found = outer.branches_at(context)
        if len(found) > 1 and _has(inner, "correct"):
            raise ValueError(f"{inner.name} corrects one gradient, and {outer.name} takes {len(found)} in a step")
        return [_joined(branch, inner, outer.name) for branch in found]

    return branches


def _joined(branch: Branch, inner: Method, outer: str) -> Branch:
    perturb = _by_own_mask(inner)

    def both(context: Context) -> Perturbation:
        level = branch.perturb(context)
        if not _has(inner, "perturb"):
            return level
        if level.touches:
            raise ValueError(
                f"{inner.name} and {outer} both perturb the numbers of x, and a step can do that once only"
            )
        within = perturb(context)
        return level if within.is_nowhere else Perturbation(within.touches, within.move, level.at)

    return replace(branch, mask=_both(branch.mask, inner.mask), perturb=both)


def _both(a: MaskRule, b: MaskRule) -> MaskRule:
    if a is _PLAIN.mask or b is _PLAIN.mask:
        return b if a is _PLAIN.mask else a
    return lambda context: a(context) & b(context)


def _by_own_mask(method: Method, rule: PerturbRule | None = None) -> PerturbRule:
    """A rule as the method has it by itself: it may look at its own mask, not at the intersection."""
    rule = method.perturb if rule is None else rule
    if rule in (_PLAIN.perturb, _PLAIN.project) or not _has(method, "mask"):
        return rule
    return lambda context: rule(replace(context, _mask=method.mask(context)))


def _inside_both(first: Method, second: Method) -> WithinRule:
    methods = [method for method in (first, second) if _has(method, "within")]
    if not methods:
        return _PLAIN.within

    def within(context: Context) -> AbstractContextManager[object]:
        found = [_within(method, context) for method in methods]
        return nullcontext() if all(isinstance(one, nullcontext) for one in found) else _all(found)

    return within


def _within(method: Method, context: Context) -> AbstractContextManager[object]:
    """By its own mask, which may be known before the pass where the intersection is not."""
    try:
        own = method.mask(context) if _has(method, "mask") else context._mask
    except NeedsGradient:
        own = None
    try:
        return method.within(replace(context, _mask=own))
    except NeedsGradient:
        return nullcontext()


@contextmanager
def _all(managers: Sequence[AbstractContextManager[object]]) -> Iterator[None]:
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield


def _apart(method: Method) -> Method:
    """The same method with draws and a memory of its own, so that it neither repeats nor overwrites the other's."""

    def own(context: Context) -> Context:
        return replace(context, seed=randomness.key(context.seed, "second"), memory=_Own(context.memory))

    def seen(rule: Any) -> Any:
        return lambda context, *given: rule(own(context), *given)

    rules = {rule: seen(getattr(method, rule)) for rule in _RULES if _has(method, rule)}
    if method.branches is not None:
        found = method.branches
        rules["branches"] = lambda context: [
            replace(branch, mask=seen(branch.mask), perturb=seen(branch.perturb)) for branch in found(own(context))
        ]
    return replace(method, **rules)


@final
class _Own(MutableMapping[str, Remembered]):
    """A part of the memory, under names that nobody else uses."""

    def __init__(self, memory: MutableMapping[str, Remembered]) -> None:
        self._memory = memory

    def __getitem__(self, key: str) -> Remembered:
        return self._memory[f"second.{key}"]

    def __setitem__(self, key: str, value: Remembered) -> None:
        self._memory[f"second.{key}"] = value

    def __delitem__(self, key: str) -> None:
        del self._memory[f"second.{key}"]

    def __iter__(self) -> Iterator[str]:
        return (key.removeprefix("second.") for key in self._memory if key.startswith("second."))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _has(method: Method, rule: str) -> bool:
    return getattr(method, rule) is not getattr(_PLAIN, rule)


def _owner(first: Method, second: Method, rule: str) -> Method:
    return second if _has(second, rule) else first
