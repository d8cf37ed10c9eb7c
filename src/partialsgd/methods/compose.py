"""p = p₁ ⊙ p₂, δx = the one that there is: two methods at once, where that has a meaning.

A method of levels and one that perturbs: each level is perturbed by its own gradient. A mask that is known before the
gradient and one that is chosen by it: it is chosen among what the first lets move. Two perturbations of numbers, two
corrections or two kinds of branches have no order in which they would be one step, and are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from torch import Tensor

from partialsgd.masks import Mask
from partialsgd.method import Branch, Context, CorrectRule, MaskRule, Method, NeedsGradient, PerturbRule, WithinRule
from partialsgd.methods._shared.parts import bind_parts, has, with_own_memory
from partialsgd.methods._shared.settings import require_method
from partialsgd.perturbations import Perturbation
from partialsgd.vectors import Vector

_PLAIN = Method()
_ONE_ONLY = {
    "branches": "take their own branches",
    "perturb": "perturb",
    "correct": "correct the gradient",
    "project": "project",
    "forget": "drop optimizer state",
    "meter": "measure",
}


def compose(first: Method, second: Method) -> Method:
    """Two methods at once: masks are intersected, and each level of the one is perturbed as the other says.

    alternating × sam: at each level the worst point near it; alternating × top_k: the largest gradients of the level;
    freezing × sam, block_coordinate × compressed_gradient, and so on.
    """
    require_method("first", first)
    require_method("second", second)
    return bind_parts(_compose, first, second, name=f"compose({first.name}, {second.name})")


def _compose(first: Method, second: Method) -> Method:
    _refuse(first, second)
    name = f"compose({first.name}, {second.name})"
    if first.is_plain or second.is_plain:
        return replace(second if first.is_plain else first, name=name)
    second = with_own_memory(second, f"part {first.name.count('compose(') + 2}", reseed=True)
    outer, inner = (second, first) if second.branches is not None else (first, second)
    rules: dict[str, Any] = {rule: getattr(_owner(first, second, rule), rule) for rule in _ONE_ONLY}
    if outer.branches is None:
        rules["mask"] = _both(first.mask, second.mask)
        rules["perturb"] = _by_own_mask(_owner(first, second, "perturb"), "perturb")
    else:
        rules |= {"branches": lambda context: _branches(context, outer, inner), "perturb": _PLAIN.perturb}
    rules["project"] = _by_own_mask(_owner(first, second, "project"), "project")
    if has(first, "scale") or has(second, "scale"):
        rules["scale"] = lambda context: first.scale(context) * second.scale(context)
    if has(first, "correct") or has(second, "correct"):
        rules["correct"] = _correct(first, second)
    return Method(
        **rules,
        within=_within(first, second),
        combine=outer.combine,
        structural=first.structural or second.structural,
        name=name,
    )


def _refuse(first: Method, second: Method) -> None:
    for rule, does in _ONE_ONLY.items():
        if has(first, rule) and has(second, rule):
            raise ValueError(f"{first.name} and {second.name} both {does}, and a step can do that once only")
    for outer, inner in ((first, second), (second, first)):
        if outer.branches is not None and not outer.structural and has(inner, "perturb"):
            raise ValueError(
                f"{outer.name} and {inner.name} both perturb the numbers of x, and a step can do that once only; the "
                "levels of a nested network (nest) are another structure, and can be perturbed"
            )
    if first.guard is not None or second.guard is not None:
        raise ValueError("guard the composition, not a part of it: guarded(compose(…), …)")


def _branches(context: Context, outer: Method, inner: Method) -> Sequence[Branch]:
    """The branches of the one, each masked and perturbed by the other as well."""
    found = outer.branches_at(context)
    for rule, does in (("correct", "corrects"), ("meter", "measures")):
        if len(found) > 1 and has(inner, rule):
            raise ValueError(f"{inner.name} {does} one gradient, and {outer.name} takes {len(found)} in a step")
    return [_joined(branch, inner) for branch in found]


def _joined(branch: Branch, inner: Method) -> Branch:
    perturb = _by_own_mask(inner, "perturb")

    def both(context: Context) -> Perturbation:
        level = branch.perturb(context.with_mask(branch.mask(context)))
        numbers = perturb(context)
        return level if numbers.is_nowhere else Perturbation(numbers.touches, numbers.move, level.at, level.inside)

    return replace(branch, mask=_both(branch.mask, inner.mask), perturb=both)


def _both(a: MaskRule, b: MaskRule) -> MaskRule:
    """p₁ ⊙ p₂; one that looks at the gradient sees of it what the other lets move, if that is known without it."""
    if a is _PLAIN.mask or b is _PLAIN.mask:
        return b if a is _PLAIN.mask else a

    def mask(context: Context) -> Mask:
        return a(_seen(context, _known(b, context))) & b(_seen(context, _known(a, context)))

    return mask


def _correct(first: Method, second: Method) -> CorrectRule:
    """The gradient that is remembered is what the other mask lets move, whether or not the rest was computed."""
    owner = _owner(first, second, "correct")
    other = first if owner is second else second

    def correct(context: Context, gradient: Vector) -> Vector:
        known = _known(_mask_of(other, context), context)
        return owner.correct(context, gradient if known is None else _masked(gradient, known))

    return correct


def _by_own_mask(method: Method, rule: str) -> PerturbRule:
    """A rule as the method has it by itself: it may look at its own mask, not at the intersection."""
    own: PerturbRule = getattr(method, rule)
    if not has(method, rule) or not has(method, "mask"):
        return own
    return lambda context: own(context.with_mask(method.mask(context)))


def _within(first: Method, second: Method) -> WithinRule:
    """One inside the other, each by its own mask: that may be known before the pass where the intersection is not."""
    methods = [method for method in (first, second) if has(method, "within")]
    if not methods:
        return _PLAIN.within

    def entered(method: Method, context: Context) -> AbstractContextManager[object]:
        try:
            own = _known(method.mask, context) if has(method, "mask") else context.mask if context.has_mask else None
            return method.within(context.with_mask(own))
        except NeedsGradient:
            return nullcontext()

    def within(context: Context) -> AbstractContextManager[object]:
        found = [entered(method, context) for method in methods]
        return nullcontext() if all(isinstance(one, nullcontext) for one in found) else _all(found)

    return within


@contextmanager
def _all(managers: Sequence[AbstractContextManager[object]]) -> Iterator[None]:
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield


def _mask_of(method: Method, context: Context) -> MaskRule:
    """The method's mask rule, or that of its branch of this level."""
    return method.mask if method.branches is None else method.branches_at(context)[0].mask


def _known(rule: MaskRule, context: Context) -> Mask | None:
    """A mask that can be told without the gradient."""
    try:
        return rule(context.with_mask(None).with_gradient(None))
    except NeedsGradient:
        return None


def _seen(context: Context, mask: Mask | None) -> Context:
    if mask is None or not context.has_gradient:
        return context
    return context.with_gradient(_masked(context.gradient, mask))


def _masked(gradient: Vector, mask: Mask) -> Vector:
    entries = {name: (g, mask[name]) for name, g in gradient.items() if mask[name] is not False}
    return Vector({name: g * m if isinstance(m, Tensor) else g for name, (g, m) in entries.items()})


def _owner(first: Method, second: Method, rule: str) -> Method:
    return second if has(second, rule) else first
