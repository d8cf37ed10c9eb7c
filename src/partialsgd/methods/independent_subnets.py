"""p = one block of hidden units, δx = −x at the others: independent subnet training (Yuan et al. 2022; Section 3.3).

The workers' steps follow each other, p_{1,1}, p_{2,1}, …, p_{k,1}, p_{1,2}, …, in one process. The blocks are disjoint
and do not cover the network: between two hidden layers only the diagonal blocks belong to a worker (erratum E13).
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import nn

from partialsgd import masks, perturbations
from partialsgd.masks import Mask
from partialsgd.meters.criteria import latest, times_measured
from partialsgd.meters.criteria_meter import CriteriaMeter
from partialsgd.method import Branch, Context, Method, nowhere
from partialsgd.methods._shared import neurons
from partialsgd.methods._shared.neurons import Chosen, Units
from partialsgd.methods._shared.settings import require_count, require_one_of
from partialsgd.nested.specs import Hidden, chains_of
from partialsgd.parameters import Parameters
from partialsgd.perturbations import Perturbation

Shared = Literal["hold", "average"]
Repartition = Literal["rounds", "criterion"]
_NUMBER, _BEGAN, _AT, _SEEN = "round", "round.began", "round.at", "round.seen."


def independent_subnets(
    workers: int = 2,
    every: int = 20,
    *,
    shared: Shared = "hold",
    hidden: Hidden | None = None,
    repartition: Repartition = "rounds",
    bound: float | None = None,
    measure_every: int | None = None,
) -> Method:
    """Independent subnets: disjoint blocks of hidden units, each trained as a network by itself.

    A round gives each worker `every` steps; the next one splits the hidden units anew. Parameters that belong to no
    hidden unit (the bias of the outputs, embeddings) are used by all workers: `shared="hold"` does not train them,
    `"average"` gives each worker a copy for the round and x their mean at its end. `hidden` names the hidden layers
    as for `Width` where structure does not tell them. `step.level` is the worker, `"worker 0"` and so on.

    `repartition="criterion"` ends a round before its `every` steps if the gradients of the subnets do not point where
    that of the whole network does: c_align, measured at every `measure_every`-th step of each worker (5), is over
    `bound` (2).
    """
    require_one_of("shared", shared, Shared)
    require_one_of("repartition", repartition, Repartition)
    require_count("workers", workers)
    require_count("every", every)
    measures = repartition == "criterion"
    for name, number in (("bound", bound), ("measure_every", measure_every)):
        if number is not None and not measures:
            raise ValueError(f"{name}={number} belongs to repartition='criterion', and this has {repartition!r}")
    bound, measure_every = 2.0 if bound is None else bound, 5 if measure_every is None else measure_every
    require_count("measure_every", measure_every)
    if not bound >= 1:
        raise ValueError(f"bound must be at least 1, because c_align is never smaller; got {bound}")
    if measures and measure_every > every:
        raise ValueError(f"measure_every={measure_every} leaves rounds unmeasured: a worker has at most {every} steps")
    chains = chains_of(hidden)
    levels = tuple(f"worker {i}" for i in range(workers))
    rounds = Rounds(levels, every, bound if measures else None)
    settings = f"workers={workers}, every={every}, shared={shared}, hidden={chains or None}"
    if measures:
        settings += f", repartition=criterion, bound={bound}, measure_every={measure_every}"

    def build(model: nn.Module) -> Method:
        hidden_layers = neurons.hidden_units(model, hidden, caller="independent_subnets")
        for units in hidden_layers:
            if (count := units.count) < workers:
                raise ValueError(f"{units.layers[0]!r} has {count} units and cannot be split among {workers} workers")
        split = _Split(hidden_layers, levels, rounds, trains_shared=shared == "average")
        return Method(
            branches=split.branches,
            within=split.keep_statistics,
            meter=CriteriaMeter(every=measure_every, groups={}, alerts=None) if measures else None,
            project=split.exchange if shared == "average" and workers > 1 else nowhere,
            name=f"independent_subnets({settings})",
        )

    return Method(build=build, name=f"independent_subnets({settings})")


@final
@dataclass(frozen=True)
class _Split:
    """The rules of one model, whose hidden units are split anew among the workers in each round."""

    hidden: tuple[Units, ...]
    levels: tuple[str, ...]
    rounds: Rounds
    trains_shared: bool

    def branches(self, context: Context) -> list[Branch]:
        if context.level is None:
            self.rounds.remember(context)
        elif context.level not in self.levels:
            return []
        return [Branch(self.mask, self.perturb, self.levels[self.worker(context)])]

    def worker(self, context: Context) -> int:
        return context.t % len(self.levels) if context.level is None else self.levels.index(context.level)

    def block(self, context: Context) -> Chosen:
        """Select the worker's units in this round."""
        number, worker = self.rounds.of(context)[0], self.worker(context)
        keys = [context.key(units.name, t=number) for units in self.hidden]
        owners = neurons.random_owners(self.hidden, keys, len(self.levels))
        return [(units, owner == worker) for units, owner in zip(self.hidden, owners, strict=True)]

    def mask(self, context: Context) -> Mask:
        return neurons.mask_of(context.parameters, self.block(context), rest=self.trains_shared)

    def perturb(self, context: Context) -> Perturbation:
        used_by_all = dict.fromkeys(self.shared(context.parameters), True)
        return perturbations.drop_outside(context.mask | masks.from_tensors(context.parameters, used_by_all))

    def keep_statistics(self, context: Context) -> AbstractContextManager[None]:
        return neurons.statistics_kept(context.parameters.model, self.block(context))

    def shared(self, parameters: Parameters) -> list[str]:
        """The parameters that belong to no hidden unit."""
        split = {place.parameter for units in self.hidden for place in units.places}
        return [name for name in parameters if name not in split]

    def exchange(self, context: Context) -> Perturbation:
        """Swap the worker's copy of the shared parameters for the next worker's; at the end of a round, for the mean.

        A worker that has no copy yet begins the round with the parameters as they are.
        """
        memory, worker = context.memory, self.worker(context)
        mine, following = self.levels[worker], self.levels[(worker + 1) % len(self.levels)]
        starts, ends = self.rounds.starts(context), self.rounds.ends(context)
        names = [name for name in self.shared(context.parameters) if context.parameters[name].requires_grad]
        for name in names:
            if new := [f"{level} {name}" for level in self.levels if starts or f"{level} {name}" not in memory]:
                memory.update(dict.fromkeys(new, context.parameters[name].detach().clone()))

        def move(parameters: Parameters) -> None:
            for name in names:
                x = parameters[name].detach()
                memory[f"{mine} {name}"] = x.clone()
                if ends:
                    copies = [torch.as_tensor(memory.pop(f"{level} {name}"), device=x.device) for level in self.levels]
                    x.add_(torch.stack([copy - x for copy in copies]).sum(0) / len(copies))  # exactly x if all are x
                else:
                    x.copy_(torch.as_tensor(memory[f"{following} {name}"]))

        return perturbations.function(names, move)


@final
@dataclass(frozen=True)
class Rounds:
    """In a round each worker has the same number of steps, `every` at most."""

    workers: tuple[str, ...]
    every: int
    bound: float | None = None
    """A round ends early if c_align, measured for each worker in this round, is over it; None: it never does."""

    def of(self, context: Context) -> tuple[int, int]:
        """Return the number of the round that step t is in, and the first step of that round."""
        if self.bound is None:
            number = context.t // self._length
            return number, number * self._length
        number, began, at = (int(context.memory.get(key, 0)) for key in (_NUMBER, _BEGAN, _AT))
        if at == context.t or not self._is_over(context, began, self.bound):
            return number, began
        return number + 1, context.t

    def remember(self, context: Context) -> None:
        """Save the round of a step before it is taken, so that what the step measures does not change it."""
        if self.bound is None or context.memory.get(_AT) == context.t:
            return
        number, began = self.of(context)
        context.memory.update({_NUMBER: number, _BEGAN: began, _AT: context.t})
        if began == context.t:
            context.memory.update({_SEEN + worker: times_measured(context.measured, worker) for worker in self.workers})

    def starts(self, context: Context) -> bool:
        return self.of(context)[1] == context.t

    def ends(self, context: Context) -> bool:
        """True if step t, which has been measured by now, is the last of its round."""
        return self.starts(replace(context, t=context.t + 1))

    @property
    def _length(self) -> int:
        return self.every * len(self.workers)

    def _is_over(self, context: Context, began: int, bound: float) -> bool:
        steps = context.t - began
        if steps <= 0 or steps % len(self.workers) != 0:
            return False
        before = {worker: int(context.memory.get(_SEEN + worker, 0)) for worker in self.workers}
        all_measured = all(times_measured(context.measured, worker) > count for worker, count in before.items())
        return steps >= self._length or (all_measured and not self._is_aligned(context, bound))

    def _is_aligned(self, context: Context, bound: float) -> bool:
        """True if the workers' mean cosine, the inverse of c_align, is at least 1 / bound; a NaN is not."""
        cosines = [latest(context.measured, worker, "cosine") for worker in self.workers]
        return sum(math.nan if cosine is None else cosine for cosine in cosines) * bound >= len(cosines)
