"""p = one block of hidden units, δx = −x at the others: independent subnet training (Yuan et al. 2022; Section 3.3).

The workers' steps follow each other, p_{1,1}, p_{2,1}, …, p_{k,1}, p_{1,2}, …, in one process. The blocks are disjoint
and do not cover the network: between two hidden layers only the diagonal blocks belong to a worker (erratum E13).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from partialsgd import masks, perturbations, randomness
from partialsgd.masks import Mask
from partialsgd.methods import neurons
from partialsgd.methods.neurons import Chosen
from partialsgd.methods.settings import require_count
from partialsgd.names import Parameters
from partialsgd.nested.specs import Hidden, chains_of
from partialsgd.perturbations import Perturbation
from partialsgd.rules import Branch, Context, Method, nowhere

Shared = Literal["hold", "average"]


def independent_subnets(
    model: nn.Module, workers: int = 2, every: int = 20, *, shared: Shared = "hold", hidden: Hidden | None = None
) -> Method:
    """Independent subnets: disjoint blocks of hidden units, each trained as a network by itself.

    A round gives each worker `every` steps; the next one splits the hidden units anew. Parameters that belong to no
    hidden unit (the bias of the outputs, embeddings) are used by all workers: `shared="hold"` does not train them,
    `"average"` gives each worker a copy for the round and x their mean at its end. `hidden` names the hidden layers
    as for `Width` where structure does not tell them. `step.level` is the worker, `"worker 0"` and so on.
    """
    if shared not in get_args(Shared):
        raise ValueError(f"shared must be one of {', '.join(get_args(Shared))}; got {shared!r}")
    require_count("workers", workers)
    require_count("every", every)
    found = neurons.hidden_units(model, hidden, caller="independent_subnets")
    for units in found:
        if units.count < workers:
            raise ValueError(f"{units.layers[0]!r} has {units.count} units and cannot be split among {workers} workers")
    levels = tuple(f"worker {i}" for i in range(workers))
    inside = {place.parameter for units in found for place in units.places}
    length = workers * every

    def is_known(context: Context) -> bool:
        return context.level is None or context.level in levels

    def worker(context: Context) -> int:
        return context.t % workers if context.level is None else levels.index(context.level)

    def block(context: Context) -> Chosen:
        """The worker's units in this round."""
        keys = [context.key(units.name, t=context.t // length) for units in found]
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
        starts, ends = context.t % length == 0, (context.t + 1) % length == 0
        names = [name for name, p in context.parameters.items() if name not in inside and p.requires_grad]
        return _exchange(context, names, levels, turn, starts=starts, ends=ends)

    settings = f"workers={workers}, every={every}, shared={shared}, hidden={chains_of(hidden) or None}"
    return Method(
        branches=lambda context: [Branch(mask, perturb, levels[worker(context)])] if is_known(context) else [],
        within=within,
        project=exchange if shared == "average" and workers > 1 else nowhere,
        name=f"independent_subnets({settings})",
    )


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
