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
from partialsgd.methods._shared.parts import PLAIN, bind_parts, has, with_own_memory
from partialsgd.methods._shared.settings import require_method
from partialsgd.perturbations import Perturbation
from partialsgd.vectors import Vector

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
        rules["mask"] = _intersection(first.mask, second.mask)
        rules["perturb"] = _by_own_mask(_owner(first, second, "perturb"), "perturb")
    else:
        rules |= {"branches": lambda context: _branches(context, outer, inner), "perturb": PLAIN.perturb}
        rules["mask"] = outer.mask  # it narrows the union of the branches' masks
    rules["project"] = _by_own_mask(_owner(first, second, "project"), "project")
    if has(first, "scale") or has(second, "scale"):
        rules["scale"] = lambda context: first.scale(context) * second.scale(context)
    if has(first, "correct") or has(second, "correct"):
        rules["correct"] = _correct(first, second)
    structural = first.structural or second.structural
    return Method(**rules, within=_within(first, second), combine=outer.combine, structural=structural, name=name)


def _owner(first: Method, second: Method, rule: str) -> Method:
    return second if has(second, rule) else first


def _refuse(first: Method, second: Method) -> None:
    for rule, does in _ONE_ONLY.items():
        if has(first, rule) and has(second, rule):
            raise ValueError(f"{first.name} and {second.name} both {does}, and a step can do that once only")
    for outer, inner in ((first, second), (second, first)):
        if outer.branches is not None and not outer.structural and has(inner, "perturb"):
            raise ValueError(
                f"{outer.name} and {inner.name} both perturb the numbers of x, and a step can do that once only; the "
                "levels of a nested model (ps.nest) are another structure, and can be perturbed"
            )
    if first.guard is not None or second.guard is not None:
        raise ValueError("guard the composition, not a part of it: guarded(compose(…), …)")


def _branches(context: Context, outer: Method, inner: Method) -> Sequence[Branch]:
    """Return the branches of the outer method, each masked and perturbed by the inner one as well."""
    branches = outer.branches_at(context)
    for rule, does in (("correct", "corrects"), ("meter", "measures")):
        if len(branches) > 1 and has(inner, rule):
            raise ValueError(f"{inner.name} {does} one gradient, and {outer.name} takes {len(branches)} in a step")
    return [_joined(branch, inner) for branch in branches]


def _joined(branch: Branch, inner: Method) -> Branch:
    inner_perturb = _by_own_mask(inner, "perturb")

    def perturb(context: Context) -> Perturbation:
        level = branch.perturb(context.with_mask(branch.mask(context)))
        numbers = inner_perturb(context)
        return level if numbers.is_nowhere else Perturbation(numbers.touches, numbers.move, level.at, level.inside)

    return replace(branch, mask=_intersection(branch.mask, inner.mask), perturb=perturb)


def _intersection(a: MaskRule, b: MaskRule) -> MaskRule:
    """Return p₁ ⊙ p₂. A mask that depends on the gradient sees only the part inside the other, if that is known."""
    if a is PLAIN.mask or b is PLAIN.mask:
        return b if a is PLAIN.mask else a

    def among(rule: MaskRule, context: Context) -> Context:
        mask = _known_before(rule, context)
        if mask is None or not context.has_gradient:
            return context
        return context.with_gradient(_masked(context.gradient, mask))

    return lambda context: a(among(b, context)) & b(among(a, context))


def _correct(first: Method, second: Method) -> CorrectRule:
    """Give `correct` only the gradient inside the other mask: its memory must not depend on how much was computed."""
    owner = _owner(first, second, "correct")
    other = first if owner is second else second

    def correct(context: Context, gradient: Vector) -> Vector:
        rule = other.mask if other.branches is None else other.branches_at(context)[0].mask
        mask = _known_before(rule, context)
        return owner.correct(context, gradient if mask is None else _masked(gradient, mask))

    return correct


def _by_own_mask(method: Method, name: str) -> PerturbRule:
    """Return a rule as the method has it by itself: it reads its own mask, not the intersection."""
    rule: PerturbRule = getattr(method, name)
    if not has(method, name) or not has(method, "mask"):
        return rule
    return lambda context: rule(context.with_mask(method.mask(context)))


def _within(first: Method, second: Method) -> WithinRule:
    """Enter both contexts. Each reads its own mask, which may be known before the pass when the product is not."""
    methods = [method for method in (first, second) if has(method, "within")]
    if not methods:
        return PLAIN.within

    def manager(method: Method, context: Context) -> AbstractContextManager[object]:
        try:
            own = context.with_mask(_known_before(method.mask, context)) if has(method, "mask") else context
            return method.within(own)
        except NeedsGradient:
            return nullcontext()

    def within(context: Context) -> AbstractContextManager[object]:
        managers = [manager(method, context) for method in methods]
        return nullcontext() if all(isinstance(one, nullcontext) for one in managers) else _all(managers)

    return within


@contextmanager
def _all(managers: Sequence[AbstractContextManager[object]]) -> Iterator[None]:
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield


def _known_before(rule: MaskRule, context: Context) -> Mask | None:
    """Return a mask that does not depend on the gradient, else None.

    A tensor that is all False is written as False, as the engine does: what is chosen among the rest must not depend on
    how the mask is stored, which differs between devices.
    """
    try:
        return rule(context.with_mask(None).with_gradient(None)).simplified()
    except NeedsGradient:
        return None


def _masked(gradient: Vector, mask: Mask) -> Vector:
    entries = {name: (g, mask[name]) for name, g in gradient.items() if mask[name] is not False}
    return Vector({name: g * m if isinstance(m, Tensor) else g for name, (g, m) in entries.items()})
