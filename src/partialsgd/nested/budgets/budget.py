"""`Budget` says what a level may cost, `FittedBudget` has the specs of levels that cost no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, final, get_args, overload

from partialsgd.nested.specs import Ratio, Spec, as_tuple
from partialsgd.nested.switch import FULL

if TYPE_CHECKING:
    from partialsgd.nested.nested import Nested

Kind: TypeAlias = Literal["parameters", "flops", "latency"]
Amount: TypeAlias = float | Sequence[float]


@final
@dataclass(frozen=True, kw_only=True)
class Budget:
    """A limit on one cost of a level: its parameters, or the FLOPs or latency of a forward pass on the example.

    A number up to 1 is a share of the whole network's, a larger one is an absolute number: parameters, FLOPs or
    milliseconds. Several give several levels, each inside the next. Latency is measured on the machine, and with the
    number of threads, that `fit_budget` runs with.
    """

    parameters: Amount | None = None
    flops: Amount | None = None
    latency: Amount | None = None

    def __post_init__(self) -> None:
        given = [kind for kind in get_args(Kind) if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a budget limits one of {', '.join(get_args(Kind))}, such as Budget(flops=1 / 4); got "
                f"{' and '.join(given) or 'none'}"
            )
        if not self.amounts:
            raise ValueError(f"the budget of {self.kind} is empty; give a number, or several")
        for amount in self.amounts:
            if isinstance(amount, (bool, str)) or not isinstance(amount, (int, float)) or not amount > 0:
                raise ValueError(f"{self.kind} must be a share of the whole network or a number, got {amount!r}")
        if list(self.amounts) != sorted(set(self.amounts)):
            raise ValueError(f"the budgets of several levels must grow, smallest first; got {self.amounts}")

    @property
    def kind(self) -> Kind:
        return next(kind for kind in cast("tuple[Kind, ...]", get_args(Kind)) if getattr(self, kind) is not None)

    @property
    def amounts(self) -> tuple[float, ...]:
        return as_tuple(cast(Ratio, getattr(self, self.kind)))


@final
@dataclass(frozen=True)
class Promise:
    """The cost that a level is expected to have."""

    level: str
    limit: float
    """The budget as an absolute number."""
    share: float
    """The budget as a share of the whole network's."""
    parameters: int
    flops: int
    latency: float | None
    """Seconds, where the budget is one of latency."""
    loss: float
    """The mean loss of the level on the batches, before any training."""
    sizes: Mapping[str, int]
    """The number of units, or the rank, by the name of the layer."""
    blocks: Mapping[str, int] = field(default_factory=dict)
    """The number of blocks, by the name of the list."""


@final
class FittedBudget(Sequence[Spec]):
    """The specs that `nest` takes, with what they promise."""

    def __init__(self, specs: Sequence[Spec], budget: Budget, promises: Sequence[Promise], full_loss: float) -> None:
        self.specs, self.budget, self.promises = tuple(specs), budget, tuple(promises)
        self.full_loss = full_loss
        """The mean loss of the whole network on the batches."""

    @overload
    def __getitem__(self, index: int) -> Spec: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Spec, ...]: ...
    def __getitem__(self, index: int | slice) -> Spec | tuple[Spec, ...]:
        return self.specs[index]

    def __len__(self) -> int:
        return len(self.specs)

    def __str__(self) -> str:
        head = ("level", "limit", "parameters", "FLOPs", "loss")
        rows = [
            (p.level, f"{p.limit:.3g}", f"{p.parameters:,}", f"{p.flops:.3g}", f"{p.loss:.4g}") for p in self.promises
        ]
        return _table([head, *rows, (FULL, "", "", "", f"{self.full_loss:.4g}")])

    def compare(self, nested: Nested, example: Any, *, repeats: int = 5) -> str:
        """Return what was promised beside what is measured on the nested model; print it."""
        rows = {row.level: row for row in nested.profile(example, repeats=repeats).rows}
        lines = [
            (
                "level",
                *(f"{who} {what}" for what in ("parameters", "FLOPs", "latency") for who in ("promised", "measured")),
            )
        ]
        for promise in self.promises:
            row = rows[promise.level]
            counts = (f"{promise.parameters:,}", f"{row.parameters:,}", f"{promise.flops:.4g}", f"{row.forward:.4g}")
            low, high = row.spread
            promised = "-" if promise.latency is None else f"{1e3 * promise.latency:.2f} ms"
            measured = f"{1e3 * row.latency:.2f} ms ({1e3 * low:.2f} to {1e3 * high:.2f})"
            lines.append((promise.level, *counts, promised, measured))
        return _table(lines)


def _table(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    columns = [f"{{:<{widths[0]}}}", *(f"{{:>{width}}}" for width in widths[1:])]
    return "\n".join("  ".join(columns).format(*line) for line in lines)
