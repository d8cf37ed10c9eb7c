"""‖G‖, ‖p ⊙ G‖, ‖p ⊙ G̃‖, ⟨p ⊙ G, p ⊙ G̃⟩, ‖δx‖ while training: the paper's criteria, at every n-th step of each mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from partialsgd._util.randomness import key
from partialsgd.masks import Mask
from partialsgd.meters import consecutive, summaries
from partialsgd.meters.alerts import Alerts
from partialsgd.meters.criteria import Criteria, criteria_of
from partialsgd.meters.groups import grouped
from partialsgd.meters.summaries import Summary
from partialsgd.method import Branch, Context, GradientPair, GradientRequest, Losses, Method, Remembered
from partialsgd.nested.branches import branch_of
from partialsgd.nested.nested import unwrap_nested
from partialsgd.parameters import Parameters

if TYPE_CHECKING:
    from partialsgd.engine.partial_sgd import PartialSGD

MASKS = 32
"""So many masks of whole tensors are counted apart; more than that are not a cycle, and are counted as one."""
WHOLE = "model"
"""What a network without levels is called where levels have names."""


@final
@dataclass(frozen=True)
class CriteriaMeter:
    """The `meter` of `PartialSGD`: `step.criteria` has the paper's criteria at every `every`-th step of each level.

    A level, or a mask of whole tensors that comes again, is counted by itself. `probe` is a method, or a level of a
    nested network, whose p and δx are measured instead of those that are trained. `groups` names groups of layers by
    patterns; by default each numbered block is one, and `groups={}` is none.

    Both gradients are of the step's batch, which inflates their cosine (erratum E21). With `batches` (a list, or a
    function of t that gives one) and `loss`, a function of a batch, both are means over these instead: more batches,
    or all the data. `independent=True` takes G over the first half of them and G̃ over the second. `consecutive=True`
    also compares the mini-batch gradients of consecutive steps, and keeps one for it.
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
        if not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every must be a whole number of at least 1, got {self.every!r}")
        if not isinstance(self.probe, Method | str | None):
            raise TypeError(f"probe must be a Method or the name of a level, got {self.probe!r}")
        if not isinstance(self.alerts, Alerts | None):
            raise TypeError(f"alerts must be ps.Alerts(…), or None for no warnings; got {self.alerts!r}")
        if not isinstance(self.groups, Mapping | None):
            raise TypeError(f'groups must map names to patterns, like {{"ends": ["0", "5"]}}; got {self.groups!r}')
        if (self.loss is None) != (self.batches is None):
            raise ValueError("batches and loss belong together: loss(batch) is the loss of one of the batches")
        if self.independent and self.batches is None:
            raise ValueError("independent=True needs batches to take: the step itself has one; give batches and loss")

    def requests(self, context: Context, trained: Branch) -> Sequence[GradientRequest]:
        """The pair of gradients of the level's every n-th step."""
        found = [GradientRequest(trained, trained_only=True)] if self.consecutive and context.branch == 0 else []
        register(context)
        if not context.count_and_check_due(f"criteria.{place_of(context, context.memory)}", self.every):
            return found
        if self.probe is not None and context.branch > 0:
            return found  # once a step
        over = self._over(context.t)
        branches = (trained,) if self.probe is None else self._probed(context, self.probe)
        return [*found, *(GradientRequest(branch, over) for branch in branches)]

    def measure(self, sight: GradientPair) -> Criteria | None:
        memory = sight.context.memory
        if sight.request.trained_only:
            consecutive.compare(memory, sight.context.mask, sight.at_perturbed)
            return None
        found = criteria_of(sight, grouped(sight.context.parameters, self.groups))
        if self.probe is not None:
            found = replace(found, probe=self._probe_name(sight.context.parameters))
        found = consecutive.told(found, memory)
        place = self._place(sight)
        if math.isfinite(found.whole):  # a pass that overflowed tells nothing
            summaries.note(memory, place, found)
        if self.alerts is None:
            return found
        trained_level = self.probe is None and sight.request.branch.whole is not None
        loss = sight.loss if trained_level else None  # workers and blocks share one network and its loss
        return replace(found, alerts=self.alerts.check(memory, place, found, loss, sight.step_size))

    def summary(self, sgd: PartialSGD) -> dict[str, Summary]:
        """Mean, maximum and share of negative alignments of each mask over the run so far."""
        if "meter" not in sgd.measured:
            raise ValueError("this run has no meter: PartialSGD(…, meter=meter)")
        return summaries.summaries(sgd.measured["meter"])

    def _place(self, sight: GradientPair) -> str:
        if self.probe is None:
            return place_of(sight.context, sight.context.memory)
        level = sight.context.level
        name = self._probe_name(sight.context.parameters)
        return f"{name}, {level}" if level and isinstance(self.probe, Method) else name

    def _over(self, t: int) -> tuple[Losses, Losses] | None:
        if self.batches is None or self.loss is None:
            return None
        batches = self.batches(t) if callable(self.batches) else self.batches
        losses = [partial(self.loss, batch) for batch in batches]
        if len(losses) < 1 + self.independent:
            raise ValueError(f"batches gave {len(losses)} at t = {t}; at least {1 + self.independent} are needed")
        half = len(losses) // 2
        return (losses[:half], losses[half:]) if self.independent else (losses, losses)

    def _probed(self, context: Context, probe: Method | str) -> Sequence[Branch]:
        parameters = context.parameters
        if isinstance(probe, Method):
            inside = replace(context, level=None, memory={}, measured={}).with_mask(None)
            return self._bound(probe, parameters).branches_at(inside)
        return (parameters.once(("probe", probe), lambda: branch_of(unwrap_nested(parameters.model), probe)),)

    def _bound(self, probe: Method, parameters: Parameters) -> Method:
        return parameters.once(("probe", id(probe)), lambda: probe.bind(parameters.model))

    def _probe_name(self, parameters: Parameters) -> str:
        return self._bound(self.probe, parameters).name if isinstance(self.probe, Method) else str(self.probe)


def place_of(context: Context, memory: Mapping[str, Remembered]) -> str:
    """The level, or the name of a mask of whole tensors that the meter knows; all other masks are one."""
    if context.level is not None:
        return context.level
    name = _named(context.mask if context.has_mask else None)
    return WHOLE if name is None or f"mask.{name}" not in memory else name


def register(context: Context) -> None:
    """A new mask of whole tensors may come again, and is counted by itself, unless there are too many of them."""
    name = _named(context.mask if context.has_mask else None)
    known = context.memory.get("masks", 0)
    assert isinstance(known, int)
    if context.level is None and name is not None and f"mask.{name}" not in context.memory and known < MASKS:
        context.memory.update({"masks": known + 1, f"mask.{name}": 1})


def _named(mask: Mask | None) -> str | None:
    if mask is None or mask.partial or mask.is_everything:
        return None
    inside = [name for name, entry in mask.items() if entry]
    return f"{inside[0] if inside else 'nothing'} … {len(inside)} ({key(*inside) % 2**32:08x})"
