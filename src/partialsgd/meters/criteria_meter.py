"""`CriteriaMeter` measures the paper's criteria at every n-th step of each level or mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from partialsgd._util import shards
from partialsgd._util.randomness import key
from partialsgd.masks import Mask
from partialsgd.meters.alerts import Alerts, is_whole
from partialsgd.meters.criteria import Criteria, Summary, add_to_summary, read_criteria, summaries
from partialsgd.method import Branch, Context, GradientPair, GradientRequest, Losses, Method, Remembered
from partialsgd.nested.branches import branch_of
from partialsgd.nested.nested import unwrap_nested
from partialsgd.parameters import Parameters
from partialsgd.vectors import Vector, add_up, inner

if TYPE_CHECKING:
    from partialsgd.engine.partial_sgd import PartialSGD

MAX_MASKS = 32
"""The number of whole-tensor masks that are counted separately. Beyond it all further masks are counted as one."""
MODEL = "model"
"""The name under which a model without levels is measured."""
_PREVIOUS, _PRODUCTS = "before/", "consecutive/products"


@final
@dataclass(frozen=True)
class CriteriaMeter:
    """The `meter` of `PartialSGD` that sets `step.criteria` at every `every`-th step of each level.

    Each level is counted separately, and so is each mask of whole tensors that recurs. `probe` is a method, or a level
    of a nested model, whose mask and perturbation are measured instead of the trained ones. `groups` maps group names
    to parameter patterns; by default each numbered block is a group, and `groups={}` turns groups off.

    Both gradients are taken on the step's batch, which inflates their cosine (erratum E21). With `batches` (a list, or
    a function of t that returns one) and `loss(batch)`, both are means over these batches instead. `independent=True`
    takes G over the first half of them and G̃ over the second. `consecutive=True` also compares the mini-batch gradients
    of consecutive steps, and keeps one gradient in memory for it. `alerts=None` turns the warnings off.
    """

    every: int = 50
    probe: Method | str | None = None
    _: KW_ONLY
    groups: Mapping[str, Sequence[str]] | None = None
    batches: Sequence[Any] | Callable[[int], Sequence[Any]] | None = None
    loss: Callable[[Any], Tensor] | None = None
    independent: bool = False
    consecutive: bool = False
    alerts: Alerts | None = Alerts()  # noqa: RUF009  # frozen: one serves all

    def __post_init__(self) -> None:
        if not is_whole(self.every) or self.every < 1:
            raise ValueError(f"every must be an integer of at least 1, got {self.every!r}")
        if not isinstance(self.probe, Method | str | None):
            raise TypeError(f"probe must be a Method or the name of a level, got {self.probe!r}")
        if not isinstance(self.alerts, Alerts | None):
            raise TypeError(f"alerts must be ps.Alerts(…), or None for no warnings; got {self.alerts!r}")
        if not isinstance(self.groups, Mapping | None):
            raise TypeError(f'groups must map names to patterns, like {{"ends": ["0", "5"]}}; got {self.groups!r}')
        if (self.loss is None) != (self.batches is None):
            raise ValueError("batches and loss must be given together: loss(batch) returns the loss of one batch")
        if self.independent and self.batches is None:
            raise ValueError("independent=True needs several batches, and a step has one; pass batches and loss")

    def requests(self, context: Context, trained: Branch) -> Sequence[GradientRequest]:
        """Request a pair of gradients at every n-th step of the level, and the trained gradient if `consecutive`."""
        requested = [GradientRequest(trained, trained_only=True)] if self.consecutive and context.branch == 0 else []
        _register_mask(context)
        if not context.count_and_check_due(f"criteria.{measured_name(context, context.memory)}", self.every):
            return requested
        if self.probe is None:
            return [*requested, GradientRequest(trained, self._losses(context.t))]
        if context.branch > 0:
            return requested  # a probe is measured once a step
        losses = self._losses(context.t)
        return [*requested, *(GradientRequest(branch, losses) for branch in _probe_branches(context, self.probe))]

    def measure(self, pair: GradientPair) -> Criteria | None:
        """Compute the criteria, add them to the summary and check the alerts."""
        memory: MutableMapping[str, Any] = pair.context.memory
        if pair.request.trained_only:
            _compare_with_previous(memory, pair.context.mask, pair.at_perturbed)
            return None
        # Workers and blocks train one network with one loss; only the levels of a nested model have a loss each.
        has_own_loss = self.alerts is not None and self.probe is None and pair.request.branch.whole is not None
        loss = pair.loss if has_own_loss else None
        products = memory.get(_PRODUCTS, torch.zeros(0, 3))
        others = [*([] if loss is None else [loss]), *products.flatten().unbind()]
        measured, numbers = read_criteria(pair, _group_of(pair.context.parameters, self.groups), others)
        if self.probe is not None:
            measured = replace(measured, probe=_probe_name(self.probe, pair.context.parameters))
        if len(products):
            consecutive, cosine = _inner_and_cosine(numbers[-products.numel() :])
            measured = replace(measured, consecutive=consecutive, consecutive_cosine=cosine)
        name = self._name(pair.context)
        if math.isfinite(measured.whole):  # if the pass at x overflowed, its numbers mean nothing
            add_to_summary(memory, name, measured)
        if self.alerts is None:
            return measured
        alerts = self.alerts.check(memory, name, measured, None if loss is None else numbers[0], pair.step_size)
        return replace(measured, alerts=alerts) if alerts else measured

    def summary(self, sgd: PartialSGD) -> dict[str, Summary]:
        """Return the mean, the maximum and the share of negative alignments of each mask over the run so far."""
        if "meter" not in sgd.measured:
            raise ValueError("this PartialSGD has no meter; build it with PartialSGD(…, meter=meter)")
        return summaries(sgd.measured["meter"])

    def _name(self, context: Context) -> str:
        """Return the name under which a measurement is summarised."""
        if self.probe is None:
            return measured_name(context, context.memory)
        name = _probe_name(self.probe, context.parameters)
        return f"{name}, {context.level}" if context.level and isinstance(self.probe, Method) else name

    def _losses(self, t: int) -> tuple[Losses, Losses] | None:
        """Return the losses over which the two gradients are taken; None for the step's own batch."""
        if self.batches is None or self.loss is None:
            return None
        batches = self.batches(t) if callable(self.batches) else self.batches
        losses = [partial(self.loss, batch) for batch in batches]
        if len(losses) < 1 + self.independent:
            raise ValueError(f"batches gave {len(losses)} at t = {t}; at least {1 + self.independent} are needed")
        half = len(losses) // 2
        return (losses[:half], losses[half:]) if self.independent else (losses, losses)


def measured_name(context: Context, memory: Mapping[str, Remembered]) -> str:
    """Return the name under which the context's mask is measured: its level, its own name if it recurs, or "model"."""
    if context.level is not None:
        return context.level
    name = _mask_name(context.mask if context.has_mask else None)
    return MODEL if name is None or f"mask.{name}" not in memory else name


def block_of(name: str) -> str:
    """Return `encoder.layers.3` for `encoder.layers.3.fc1.weight`; without a number, the parameter's module."""
    parts = name.split(".")
    number = next((k for k, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return ".".join(parts[: number + 1]) or name


def _group_of(parameters: Parameters, groups: Mapping[str, Sequence[str]] | None) -> dict[str, str]:
    """Return the group of each parameter that is in one."""
    if groups is None:
        return parameters.once("blocks", lambda: {name: block_of(name) for name in parameters})
    patterns = {group: (p,) if isinstance(p, str) else tuple(p) for group, p in groups.items()}

    def by_patterns() -> dict[str, str]:
        group_of: dict[str, str] = {}
        for group in patterns:
            for name in parameters.match(patterns[group]):
                if (other := group_of.setdefault(name, group)) != group:
                    raise ValueError(f"{name!r} is in two groups, {other!r} and {group!r}; groups must not overlap")
        return group_of

    return parameters.once(("groups", *patterns.items()), by_patterns)


def _probe_branches(context: Context, probe: Method | str) -> Sequence[Branch]:
    """Return the branches of a probe; its rules remember nothing from one measurement to the next."""
    parameters = context.parameters
    if isinstance(probe, Method):
        fresh = replace(context, level=None, memory={}, measured={}).with_mask(None)
        return _bound(probe, parameters).branches_at(fresh)
    return (parameters.once(("probe", probe), lambda: branch_of(unwrap_nested(parameters.model), probe)),)


def _bound(probe: Method, parameters: Parameters) -> Method:
    return parameters.once(("probe", id(probe)), lambda: probe.bind(parameters.model))


def _probe_name(probe: Method | str, parameters: Parameters) -> str:
    return probe if isinstance(probe, str) else _bound(probe, parameters).name


def _register_mask(context: Context) -> None:
    """Give a new mask of whole tensors a count of its own, because it may recur, up to `MAX_MASKS` of them."""
    name = _mask_name(context.mask if context.has_mask else None)
    count = context.memory.get("masks", 0)
    assert isinstance(count, int)
    if context.level is None and name is not None and f"mask.{name}" not in context.memory and count < MAX_MASKS:
        context.memory.update({"masks": count + 1, f"mask.{name}": 1})


def _mask_name(mask: Mask | None) -> str | None:
    if mask is None or mask.partial or mask.is_everything:
        return None
    inside = [name for name, entry in mask.entries.items() if entry]
    return f"{inside[0] if inside else 'nothing'} … {len(inside)} ({key(*inside) % 2**32:08x})"


@torch.no_grad()
def _compare_with_previous(memory: MutableMapping[str, Any], mask: Mask, gradient: Vector) -> None:
    """Store this step's masked gradient, and its inner products with the previous step's, which stay on the device."""
    before = {name: memory.pop(f"{_PREVIOUS}{name}") for name in mask if f"{_PREVIOUS}{name}" in memory}
    now = {name: _masked(mask, name, g) for name, g in gradient.items() if mask[name] is not False}
    memory.update({f"{_PREVIOUS}{name}": g for name, g in now.items()})
    names = [name for name in mask if name in now or name in before]
    if before:
        zero = torch.zeros((), dtype=torch.float64)
        pairs = [(a.get(name), b.get(name)) for name in names for a, b in ((now, before), (now, now), (before, before))]
        products = [zero if a is None or b is None else _product(a, b) for a, b in pairs]
        device = next(product.device for product in products if product is not zero)
        table = torch.stack([product.to(device) for product in products]).view(-1, 3)
        memory[_PRODUCTS] = add_up(table, [mask.parameters[name] for name in names])


def _inner_and_cosine(products: Sequence[float]) -> tuple[float, float]:
    """Add up ⟨g, g′⟩, ‖g‖² and ‖g′‖² of the parameters, and return ⟨g, g′⟩ and the cosine."""
    inner_product, *squares = (sum(products[kind::3]) for kind in range(3))
    lengths = math.prod(math.sqrt(square) for square in squares)
    return inner_product, inner_product / lengths if lengths > 0 else math.nan


def _product(a: Tensor, b: Tensor) -> Tensor:
    a, b = shards.locals_of((a, b))
    return inner(a, b.to(a.device))


def _masked(mask: Mask, name: str, gradient: Tensor) -> Tensor:
    entry = mask[name]
    return gradient * entry if isinstance(entry, Tensor) else gradient.clone()
