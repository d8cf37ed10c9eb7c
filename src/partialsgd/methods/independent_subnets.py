"""p = one block of hidden units, δx = −x at the others: independent subnet training (Yuan et al. 2022; Section 3.3).

The workers' steps follow each other, p_{1,1}, p_{2,1}, …, p_{k,1}, p_{1,2}, …, in one process. The blocks are disjoint
and do not cover the network: between two hidden layers only the diagonal blocks belong to a worker (erratum E13).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from partialsgd import masks, perturbations
from partialsgd._util import randomness
from partialsgd.masks import Mask
from partialsgd.meters.meter import CriteriaMeter
from partialsgd.method import Branch, Context, Method, nowhere
from partialsgd.methods._shared import neurons
from partialsgd.methods._shared.neurons import Chosen
from partialsgd.methods._shared.rounds import Judge, Rounds, by_alignment, by_assumption
from partialsgd.methods._shared.settings import require_count
from partialsgd.nested.specs import Hidden, chains_of
from partialsgd.parameters import Parameters
from partialsgd.perturbations import Perturbation

Shared = Literal["hold", "average"]
Repartition = Literal["rounds", "criterion", "assumption"]

_log = logging.getLogger("partialsgd")


def independent_subnets(
    model: nn.Module,
    workers: int = 2,
    every: int = 20,
    *,
    shared: Shared = "hold",
    hidden: Hidden | None = None,
    repartition: Repartition = "rounds",
    bound: float | None = None,
    smoothness: float | None = None,
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
    `"assumption"` ends it if Assumption 3 does not hold, with L = `smoothness`, or what the run shows of L without it.
    """
    for name, value, kind in (("shared", shared, Shared), ("repartition", repartition, Repartition)):
        if value not in get_args(kind):
            raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}; got {value!r}")
    require_count("workers", workers)
    require_count("every", every)
    _refuse_strangers(repartition, bound=bound, smoothness=smoothness, measure_every=measure_every)
    bound, measure_every = 2.0 if bound is None else bound, 5 if measure_every is None else measure_every
    levels = tuple(f"worker {i}" for i in range(workers))
    rounds = Rounds(levels, every, _judge(levels, repartition, bound, smoothness))
    if repartition != "rounds":
        _require_measurable(every, measure_every)
    found = neurons.hidden_units(model, hidden, caller="independent_subnets")
    for units in found:
        if units.count < workers:
            raise ValueError(f"{units.layers[0]!r} has {units.count} units and cannot be split among {workers} workers")
    inside = {place.parameter for units in found for place in units.places}

    def worker(context: Context) -> int:
        return context.t % workers if context.level is None else levels.index(context.level)

    def block(context: Context) -> Chosen:
        """The worker's units in this round."""
        keys = [context.key(units.name, t=rounds.of(context)[0]) for units in found]
        owners = [_owners(key, units.count, workers) for key, units in zip(keys, found, strict=True)]
        return [(units, owner == worker(context)) for units, owner in zip(found, owners, strict=True)]

    def mask(context: Context) -> Mask:
        entries = neurons.attached(context.parameters, block(context))
        return masks.from_tensors(context.parameters, entries, rest=shared == "average")

    def perturb(context: Context) -> Perturbation:
        used = {name: True for name in context.parameters if name not in inside}
        return perturbations.drop_outside(context.mask | masks.from_tensors(context.parameters, used))

    def within(context: Context) -> AbstractContextManager[None]:
        return neurons.statistics_kept(context.parameters.model, block(context))

    def exchange(context: Context) -> Perturbation:
        turn = levels[worker(context)], levels[(worker(context) + 1) % workers]
        starts, ends = rounds.starts(context), rounds.ends(context)
        names = [name for name, p in context.parameters.items() if name not in inside and p.requires_grad]
        return _exchange(context, names, levels, turn, starts=starts, ends=ends)

    def branches(context: Context) -> list[Branch]:
        if context.level is None:
            rounds.remember(context)
        elif context.level not in levels:
            return []
        return [Branch(mask, perturb, levels[worker(context)])]

    settings = f"workers={workers}, every={every}, shared={shared}, hidden={chains_of(hidden) or None}"
    if repartition != "rounds":
        told = f"bound={bound}" if repartition == "criterion" else f"smoothness={smoothness}"
        settings += f", repartition={repartition}, {told}, measure_every={measure_every}"
    return Method(
        branches=branches,
        within=within,
        meter=None if repartition == "rounds" else CriteriaMeter(every=measure_every, groups={}, alerts=None),
        project=exchange if shared == "average" and workers > 1 else nowhere,
        name=f"independent_subnets({settings})",
    )


_BELONG = {"bound": ("criterion",), "smoothness": ("assumption",), "measure_every": ("criterion", "assumption")}


def _refuse_strangers(repartition: Repartition, **given: float | None) -> None:
    """An option that this repartition has no use for is a misunderstanding."""
    for name, value in given.items():
        if value is not None and repartition not in _BELONG[name]:
            whose = " or ".join(map(repr, _BELONG[name]))
            raise ValueError(f"{name}={value} belongs to repartition={whose}, and this has {repartition!r}")


def _judge(levels: Sequence[str], repartition: Repartition, bound: float, smoothness: float | None) -> Judge | None:
    """What ends a round; None: its number of steps."""
    if repartition == "rounds":
        return None
    if repartition == "criterion":
        if not bound >= 1:
            raise ValueError(f"bound must be at least 1, which c_align never is below; got {bound}")
        return by_alignment(levels, bound)
    if smoothness is not None and not smoothness > 0:
        raise ValueError(f"smoothness must be positive, got {smoothness}; leave it out to take what the run shows")
    _log.warning(
        "independent_subnets: Assumption 3 asks that all weights a worker drops be together smaller than its gradient "
        "over 2L, which almost no network has, and none near a stationary point; expect a new split after nearly every "
        "measurement, or take repartition='criterion'"
    )
    return by_assumption(levels, smoothness)


def _require_measurable(every: int, measure_every: int) -> None:
    require_count("measure_every", measure_every)
    if measure_every > every:
        raise ValueError(f"measure_every={measure_every} leaves rounds unmeasured: a worker has at most {every} steps")


def _owners(key: int, count: int, workers: int) -> Tensor:
    """The worker of each unit: a random split, as even as the numbers allow."""
    order = torch.randperm(count, generator=randomness.generator(key))
    return order % workers


def _exchange(
    context: Context, names: Sequence[str], levels: Sequence[str], turn: tuple[str, str], *, starts: bool, ends: bool
) -> Perturbation:
    """After a worker's step its copy of what is shared is put away and the next one's put in place; at last the mean.

    A worker that has no copy yet begins the round with what is in place.
    """
    memory, (mine, following) = context.memory, turn
    for name in names:
        if new := [f"{level} {name}" for level in levels if starts or f"{level} {name}" not in memory]:
            memory.update(dict.fromkeys(new, context.parameters[name].detach().clone()))

    def move(parameters: Parameters) -> None:
        for name in names:
            x = parameters[name].detach()
            memory[f"{mine} {name}"] = x.clone()
            if ends:
                copies = [torch.as_tensor(memory.pop(f"{level} {name}"), device=x.device) for level in levels]
                x.add_(torch.stack([copy - x for copy in copies]).sum(0) / len(levels))  # not moved, where all are x
            else:
                x.copy_(torch.as_tensor(memory[f"{following} {name}"]))

    return perturbations.function(names, move)
