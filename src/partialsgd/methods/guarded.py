"""p_t, δx_t where the criteria allow them, else another method's: by whether an assumption holds (Section 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

from partialsgd.meters.criteria import Criteria, criteria_of
from partialsgd.method import GradientPair, Guard, Method
from partialsgd.methods._shared.parts import bind_parts, has, with_own_memory
from partialsgd.methods._shared.settings import require_count, require_method
from partialsgd.methods.plain import plain

Criterion = Literal["c_norm", "c_sim", "c_align", "q"]


def guarded(
    method: Method,
    *,
    by: Criterion | Callable[[Criteria], float] = "c_align",
    bound: float = 2.0,
    fallback: Method | None = None,
    every: int = 10,
) -> Method:
    """Guarded: a method's steps are taken while a measured criterion is within its bound, else a fallback's.

    At every `every`-th step of each level the criterion is measured, which takes the gradient at x as well; if it is
    over `bound`, negative or not a number, that step and the level's next ones, to the next measurement, are those of
    the fallback (plain training). `by` names a criterion or is a function of the measured `Criteria`.
    """
    fallback = plain() if fallback is None else fallback
    require_method("method", method)
    require_method("fallback", fallback)
    if not callable(by) and by not in get_args(Criterion):
        raise ValueError(f"by must be one of {', '.join(get_args(Criterion))} or a function of Criteria; got {by!r}")
    if not bound > 0:
        raise ValueError(f"bound must be positive, got {bound}")
    require_count("every", every)
    of = by if isinstance(by, str) else getattr(by, "__name__", "function")

    def refuses(pair: GradientPair) -> bool:
        criteria = criteria_of(pair)
        value = by(criteria) if callable(by) else float(getattr(criteria, by))
        return not 0 <= value <= bound

    def guard(method: Method, fallback: Method) -> Method:
        _refuse(method, fallback)
        return replace(
            method,
            guard=Guard(every, refuses, with_own_memory(fallback, "fallback", reseed=False)),
            structural=method.structural or fallback.structural,
            name=f"guarded({method.name}, by={of}, bound={bound}, fallback={fallback.name}, every={every})",
        )

    return bind_parts(guard, method, fallback, name=f"guarded({method.name}, by={of})")


def _refuse(method: Method, fallback: Method) -> None:
    if method.guard is not None or fallback.guard is not None:
        raise ValueError("one guard is enough: neither the method nor the fallback may be guarded already")
    if fallback.meter is not None:
        raise ValueError(
            f"{fallback.name} has a meter, which as a fallback would see only some steps; use one without a meter"
        )
    for part in (method, fallback):
        if has(part, "project") or has(part, "forget"):
            raise ValueError(
                f"{part.name} acts at certain steps (it projects or drops state), and a guard may skip those"
            )
