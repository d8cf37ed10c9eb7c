"""‖G‖, ‖p ⊙ G‖, ‖p ⊙ G̃‖, ⟨p ⊙ G, p ⊙ G̃⟩, ‖δx‖ while training: the paper's criteria, at every n-th step of each mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from partialsgd.looks import Look, Losses, Sight
from partialsgd.masks import Mask
from partialsgd.meters import consecutive, summaries
from partialsgd.meters.alerts import Alerts
from partialsgd.meters.criteria import Criteria, criteria_of
from partialsgd.meters.groups import grouped
from partialsgd.meters.summaries import Summary
from partialsgd.nested.branches import branch_of
from partialsgd.nested.family import family_of
from partialsgd.randomness import key
from partialsgd.rules import Branch, Context, Method

if TYPE_CHECKING:
    from partialsgd.template import PartialSGD

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
        if (self.loss is None) != (self.batches is None):
            raise ValueError("batches and loss belong together: loss(batch) is the loss of one of the batches")
        if self.independent and self.batches is None:
            raise ValueError("independent=True needs batches to take: the step itself has one; give batches and loss")

    def looks(self, context: Context, trained: Branch) -> Sequence[Look]:
        """The pair of gradients of the level's every n-th step."""
        found = [Look(trained, alone=True)] if self.consecutive else []
        if not context.is_turn(f"criteria.{place_of(context)}", self.every):
            return found
        over = self._over(context.t)
        branches = (trained,) if self.probe is None else self._probed(context, self.probe)
        return [*found, *(Look(branch, over) for branch in branches)]

    def measure(self, sight: Sight) -> Criteria | None:
        memory = sight.context.memory
        if sight.look.alone:
            consecutive.compare(memory, sight.context.mask, sight.at_perturbed)
            return None
        found = criteria_of(sight, grouped(sight.context.parameters, self.groups))
        if self.probe is not None:
            found = replace(found, probe=self.probe if isinstance(self.probe, str) else self.probe.name)
        found = consecutive.told(found, memory)
        place = found.probe or place_of(sight.context)
        summaries.note(memory, place, found)
        if self.alerts is None:
            return found
        return replace(found, alerts=self.alerts.check(memory, place, found, sight.loss, sight.rate))

    def summary(self, sgd: PartialSGD) -> dict[str, Summary]:
        """Mean, maximum and share of negative alignments of each mask over the run so far."""
        return summaries.summaries(sgd.measured["meter"])

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
            return probe.branches_at(replace(context, level=None, memory={}, measured={}, _mask=None))
        return (parameters.once(("probe", probe), lambda: branch_of(family_of(parameters.model), probe)),)


def place_of(context: Context) -> str:
    """The level, or a name for a mask of whole tensors, which may come again; element masks are all one."""
    if context.level is not None:
        return context.level
    mask = context._mask
    return WHOLE if mask is None or mask.partial or mask.is_everything else _named(mask)


def _named(mask: Mask) -> str:
    inside = [name for name, entry in mask.items() if entry]
    return f"{inside[0] if inside else 'nothing'} and {len(inside) - 1} more ({key(*inside) % 0xFFFF:04x})"
