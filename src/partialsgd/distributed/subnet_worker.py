"""Independent subnets on workers (Yuan et al. 2022): each rank trains a narrow network of its own between exchanges.

The model that the user passes becomes this rank's narrow network: the same modules and parameters, of smaller shapes.
Every coordinate of the whole network, and its optimizer state, has a home on one rank (`unit_shards`). At the end of a
round the ranks return their blocks to the homes, split the units anew, and collect the next blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from partialsgd import masks
from partialsgd._util import randomness
from partialsgd._util.snapshots import Snapshot, dropout_off
from partialsgd.distributed.coordinate_state import require_mergeable_state, state_of
from partialsgd.distributed.narrowing import layouts_of, replace_values, require_plain, set_sizes, statistics_of
from partialsgd.distributed.unit_shards import Blocks, Split, UnitExchange, select
from partialsgd.engine.arguments import check_arguments
from partialsgd.engine.gradient_pass import takes_pass
from partialsgd.engine.partial_sgd import PartialSGD
from partialsgd.engine.step import Step
from partialsgd.method import Branch, Method
from partialsgd.methods._shared import neurons
from partialsgd.methods.independent_subnets import Repartition, Shared
from partialsgd.methods.independent_subnets import independent_subnets as one_process
from partialsgd.nested.specs import Hidden
from partialsgd.optimizers import capabilities
from partialsgd.optimizers.param_groups import ParamGroups
from partialsgd.parameters import Parameters
from partialsgd.vectors import inner


def independent_subnets(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    every: int = 20,
    *,
    shared: Shared = "hold",
    hidden: Hidden | None = None,
    repartition: Repartition = "rounds",
    bound: float | None = None,
    measure_every: int | None = None,
    seed: int = 0,
    clip_norm: float | None = None,
    group: dist.ProcessGroup | None = None,
) -> IndependentSubnets:
    """Independent subnets, one on each rank: `every` steps without communication, then an exchange of the blocks.

    The settings are those of `methods.independent_subnets`, and with SGD the result is that of the method in one
    process, to rounding; with momentum, too, unless `shared="average"`. `model` and `optimizer` become those
    of this rank's narrow network; all ranks begin with the values of the first one. Train with `step(closure)`, and
    look at the whole network inside `whole()`.
    """
    return IndependentSubnets(
        model, optimizer, every, shared, hidden, repartition, bound, measure_every, seed, clip_norm, group
    )


@final
class IndependentSubnets:
    """One worker: its narrow network, its share of the whole one, and the exchange with the other workers."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        every: int,
        shared: Shared,
        hidden: Hidden | None,
        repartition: Repartition,
        bound: float | None,
        measure_every: int | None,
        seed: int,
        clip_norm: float | None,
        group: dist.ProcessGroup | None,
    ) -> None:
        if not dist.is_initialized():
            raise RuntimeError("independent_subnets needs a process group: call torch.distributed.init_process_group")
        self._exchange = UnitExchange(group or dist.group.WORLD)  # type: ignore[arg-type]  # initialized
        ranks = self._exchange.ranks
        method = one_process(
            ranks,
            every,
            shared=shared,
            hidden=hidden,
            repartition=repartition,
            bound=bound,
            measure_every=measure_every,
        )
        optimizers = check_arguments(model, optimizer, method, clip_norm, None, None)
        self._parameters = Parameters(model)
        self._model = self._parameters.model
        require_plain(model, self._parameters)
        self._hidden = neurons.hidden_units(model, hidden, caller="independent_subnets")
        bound_method = method.bind(model)  # refuses what the method refuses
        self._every, self._measure_every = every, measure_every or 5
        self._bound = (2.0 if bound is None else bound) if repartition == "criterion" else None
        self._settings = bound_method.name.partition(", ")[2]  # without the number of workers
        self._seed = seed
        self._groups = ParamGroups(self._parameters, optimizers)
        self._state = partial(state_of, self._parameters, self._groups)
        self._layouts = layouts_of(self._parameters, self._model, self._hidden)
        self._trains_shared = shared == "average"
        require_mergeable_state(self._parameters, self._groups)

        self._broadcast()
        self._round, self._steps, self._is_whole = 0, 0, False
        self._blocks = self._split()
        self._homes: dict[tuple[str, str], Tensor] = {}
        self._become_narrow()
        self._sgd = PartialSGD(model, optimizers, self._method(method.name), seed=seed, clip_norm=clip_norm)
        self._begin_round()

    @property
    def t(self) -> int:
        """The number of steps that this worker has made; all workers have made as many."""
        return self._sgd.t

    @property
    def round(self) -> int:
        return self._round

    @property
    def bytes_sent(self) -> int:
        """Payload bytes that this rank has sent to other ranks since it began to train."""
        return self._exchange.bytes_sent

    def step(self, closure: Callable[..., Any]) -> Step:
        """One step of this worker's network; the last one of a round ends with the exchange, on all ranks together."""
        if self._is_whole:
            raise RuntimeError("inside whole() the model is the whole network: leave its `with` block before a step")
        is_aligned = True
        if self._bound is not None and takes_pass(closure):
            raise TypeError("with repartition='criterion' the closure also measures: let it take no argument")
        if self._bound is not None and self.t % self._measure_every == 0:
            total = self._exchange.total(self._cosine(closure))
            is_aligned = total * self._bound >= self._exchange.ranks  # a NaN is not
        step = self._sgd.step(closure)
        self._steps += 1
        if self._steps == self._every or not is_aligned:
            self._end_round()
        return step

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Make model and optimizer those of the whole network inside the block, on all ranks: to evaluate, or to save.

        All ranks must enter it together. In the middle of a round the shared parameters are the mean of the workers'.
        """
        if self._is_whole:
            raise RuntimeError("whole() is already entered: leave its `with` block first")
        self._sgd.zero_grad()
        self._require_agreement()
        splits = self._splits()
        with torch.no_grad():
            self._exchange.to_homes(splits.values(), self._blocks)
            tensors = [(tensor, self._exchange.whole(splits[key])) for key, tensor in self._tensors().items()]
            tensors += self._means()
        narrow = [(tensor, tensor.data) for tensor, _ in tensors]
        try:
            self._is_whole = True
            replace_values(tensors)
            set_sizes(self._model, self._hidden)
            yield
        finally:
            for parameter in self._parameters.values():
                parameter.grad = None  # one of the whole network's shape
            replace_values(narrow)
            set_sizes(self._model, self._hidden)
            self._is_whole = False

    def state_dict(self) -> dict[str, Any]:
        """Everything a run needs to continue, beside model and optimizer, whose states are saved inside `whole()`."""
        if self._steps:
            raise RuntimeError(
                f"the round has had {self._steps} of {self._every} steps, and each rank holds what it has trained "
                "since; save when a round has ended, which is when `round` changes"
            )
        return {"settings": self._settings, "seed": self._seed, "t": self.t, "round": self._round}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a run whose whole model and optimizer were loaded before `independent_subnets` was called.

        The number of workers may be another one. All ranks must call it together, before the first step.
        """
        if self.t or self._steps:
            raise RuntimeError(f"this run has made {self.t} steps: load a state before the first one")
        for key, own in (("settings", self._settings), ("seed", self._seed)):
            if state[key] != own:
                raise ValueError(f"the state was saved with {key}={state[key]!r}, and this has {key}={own!r}")
        self._sgd.t, self._round = int(state["t"]), int(state["round"])
        self._blocks = self._split()
        self._begin_round()

    def _method(self, name: str) -> Method:
        """Every coordinate of the narrow network moves, except that `shared="hold"` holds what belongs to no unit."""
        held = {} if self._trains_shared else dict.fromkeys(self._shared, False)
        branch = Branch(
            lambda c: masks.from_tensors(c.parameters, held, rest=True), level=f"worker {self._exchange.rank}"
        )
        return Method(branches=lambda context: [branch], name=name)

    @property
    def _shared(self) -> list[str]:
        """The parameters that belong to no hidden unit."""
        return [name for name in self._parameters if name not in self._layouts]

    def _split(self) -> Blocks:
        """Every worker's units in this round, as `methods.independent_subnets` draws them."""
        first_names = self._parameters.first_names
        keys = [randomness.key(self._seed, self._round, 0, first_names[units.name]) for units in self._hidden]
        owners = neurons.random_owners(self._hidden, keys, self._exchange.ranks)
        return [[torch.nonzero(owner == worker)[:, 0] for owner in owners] for worker in range(self._exchange.ranks)]

    def _tensors(self) -> dict[tuple[str, str], Tensor]:
        """The tensors of this rank that are split by units: parameters, their optimizer state, and statistics."""
        tensors: dict[tuple[str, str], Tensor] = {}
        for name in self._layouts:
            if name in self._parameters:
                tensors[name, ""] = self._parameters[name]
                tensors |= {(name, key): state for key, state in self._state(name).items()}
            else:
                tensors[name, ""] = self._model.get_buffer(name)
        return tensors

    def _splits(self) -> dict[tuple[str, str], Split]:
        """The tensors that are split, with their shards; state that is new has the shard of state before a step."""
        splits = {}
        for (name, key), block in self._tensors().items():
            layout = self._layouts[name]
            if (name, key) not in self._homes:
                shape = list(layout.shape)
                _, shape[layout.home_dimension] = layout.home(self._exchange.rank, self._exchange.ranks)
                group = self._groups[name]
                initial = capabilities.initial_state(group.optimizer, group.options, key)
                self._homes[name, key] = torch.full(shape, initial, dtype=block.dtype, device=block.device)
            splits[name, key] = Split(layout, block.detach(), self._homes[name, key])
        return splits

    def _become_narrow(self) -> None:
        """Keep this rank's shard and this rank's block of every tensor, and let go of the rest."""
        exchange, replaced = self._exchange, []
        for (name, key), tensor in self._tensors().items():
            layout = self._layouts[name]
            start, length = layout.home(exchange.rank, exchange.ranks)
            whole = tensor.detach()
            self._homes[name, key] = whole.narrow(layout.home_dimension, start, length).clone()
            replaced.append((tensor, select(whole, layout.index(self._blocks[exchange.rank]))))
        for parameter in self._parameters.values():
            parameter.grad = None
        replace_values(replaced)
        set_sizes(self._model, self._hidden)

    def _begin_round(self) -> None:
        self._exchange.to_blocks(self._splits().values(), self._blocks)
        self._steps = 0
        self._bases = {key: tensor.detach().clone() for key, tensor in self._averaged().items()}
        self._versions = {name: buffer._version for name, buffer in self._model.named_buffers()}

    def _end_round(self) -> None:
        self._require_agreement()
        self._exchange.to_homes(self._splits().values(), self._blocks)
        with torch.no_grad():
            for tensor, mean in self._means():
                tensor.copy_(mean)
        self._round += 1
        self._blocks = self._split()
        self._begin_round()

    def _averaged(self) -> dict[tuple[str, str], Tensor]:
        """The tensors that workers change separately in a round: shared parameters that are trained, and statistics."""
        averaged = {(name, ""): buffer for name, buffer in statistics_of(self._model) if name not in self._layouts}
        if self._trains_shared:
            for name in self._shared:
                if self._parameters[name].requires_grad:
                    averaged[name, ""] = self._parameters[name]
                    averaged |= {(name, key): state for key, state in self._state(name).items()}
        return averaged

    def _means(self) -> list[tuple[Tensor, Tensor]]:
        averaged = self._averaged()
        bases = [self._bases.get(key, torch.zeros_like(tensor)) for key, tensor in averaged.items()]
        tensors = list(averaged.values())
        return list(zip(tensors, self._exchange.mean(tensors, bases), strict=True))

    def _cosine(self, closure: Callable[..., Any]) -> float:
        """The cosine between two gradients on this worker's batch: its part of the whole network's gradient, and the
        gradient of its own network.

        The two draw dropout masks of different shapes, so dropout is off. Nothing is left of either pass.
        """
        index = {n: layout.index(self._blocks[self._exchange.rank]) for n, layout in self._layouts.items()}
        snapshot = Snapshot(self._model)
        try:
            with dropout_off(self._model):
                with self.whole():
                    whole = self._gradient(closure)
                    for name in whole.keys() & index.keys():
                        whole[name] = select(whole[name], index[name])
                snapshot.restore()
                own = self._gradient(closure)
        finally:
            self._sgd.zero_grad()
            snapshot.restore()
        names = [n for n in own if n in whole and (self._trains_shared or n in self._layouts)]
        products = [float(sum(inner(a[n], b[n]) for n in names)) for a, b in ((whole, own), (whole, whole), (own, own))]
        norms = math.sqrt(products[1]) * math.sqrt(products[2])
        return products[0] / norms if norms > 0 else math.nan

    def _gradient(self, closure: Callable[..., Any]) -> dict[str, Tensor]:
        closure()
        gradient = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        for parameter in self._parameters.values():
            parameter.grad = None
        return gradient

    @torch.no_grad()
    def _broadcast(self) -> None:
        """Give all ranks the values of the first one."""
        tensors = [*self._parameters.values(), *self._model.buffers()]
        tensors += [state for name in self._parameters for state in self._state(name).values()]
        for tensor in tensors:
            dist.broadcast(tensor.detach(), group_src=0, group=self._exchange.group)

    def _require_agreement(self) -> None:
        """Raise on all ranks, before anything is sent, unless all have trained the same tensors equally often."""
        require_mergeable_state(self._parameters, self._groups)
        for name, buffer in self._model.named_buffers():
            is_known = (name, "") in self._bases or name in self._layouts
            if buffer.is_floating_point() and not is_known and buffer._version != self._versions.get(name):
                raise RuntimeError(
                    f"the buffer {name!r} changed while the workers trained apart, and it is not a statistic of a "
                    "BatchNorm, whose mean could be taken; keep such buffers out of the model"
                )
        entries = [" ".join(key) for key in (*self._tensors(), *self._averaged())]
        if not self._exchange.agree(randomness.key(self.t, self._round, *entries)):
            raise RuntimeError(
                f"the workers do not agree: this one has made {self.t} steps, and has optimizer state for "
                f"{len(entries)} tensors. Every worker must make the same number of steps, and each of its parameters "
                "that gets a gradient must get one on the other workers too"
            )
