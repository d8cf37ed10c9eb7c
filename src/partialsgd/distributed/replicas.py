"""Replicas that die and come back while the others go on, by torchft: `elastic`.

torchft's Manager finds out before each step which replicas take part, and gives one that is new the state of another.
A step counts only if the manager commits it: `should_commit()` is asked before the update, so t never runs ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from partialsgd.distributed.hooks import count, inside, put_inside
from partialsgd.engine.data_parallel import GradientsToSend, SendsActivePart
from partialsgd.engine.gradient_pass import Closure, require_loss, takes_pass
from partialsgd.engine.partial_sgd import PartialSGD
from partialsgd.engine.step import Step
from partialsgd.masks import Entry
from partialsgd.method import Method
from partialsgd.parameters import Parameters, Wrapper

if TYPE_CHECKING:
    from torchft import Manager

_BUCKET = 25 << 20
"""Bytes of gradients that are averaged together, as by DistributedDataParallel."""
_STATE = "partialsgd"
"""The key of this package's state among those of the manager."""


def elastic(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    method: Method = Method(),  # noqa: B008  # frozen: one plain method serves all
    *,
    manager: Manager,
    **options: Any,
) -> ElasticReplica:
    """Train one of several replicas of a model, which may die and come back while the others go on.

    `manager` is a `torchft.Manager` that was made with `use_async_quorum=False`, `load_state_dict=None` and
    `state_dict=None`; `options` are those of `PartialSGD`, which is made here. Train with `step(closure)`.
    """
    return ElasticReplica(model, optimizer, method, manager, options)


@final
class ElasticReplica:
    """One replica: its `PartialSGD`, and the manager that decides which steps count."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        method: Method,
        manager: Manager,
        options: Mapping[str, Any],
    ) -> None:
        if getattr(manager, "_use_async_quorum", True):
            raise ValueError(
                "the manager would load the state of another replica in the middle of a step, after its gradient was "
                "taken; make it with torchft.Manager(use_async_quorum=False, …)"
            )
        if isinstance(model, (nn.parallel.DistributedDataParallel, Wrapper)):
            raise TypeError(f"pass the model itself, not {type(model).__name__}: the manager averages the gradients")
        self._gradients = _ManagedGradients(model, manager)
        self.sgd = PartialSGD(self._gradients, optimizer, method, **options)
        self._model = self.sgd.parameters.model
        self._optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
        self._manager = manager
        manager.register_state_dict_fn(_STATE, self._load, self._state)

    @property
    def t(self) -> int:
        """The number of steps that were committed; the same on all replicas that take part."""
        return self.sgd.t

    @property
    def rank(self) -> int:
        """The number of this replica among those that take part in the step: inside the closure, to choose a batch."""
        rank = self._manager.participating_rank()
        if rank is None:
            raise RuntimeError("this replica takes no part in a step now: ask for its rank inside the closure")
        return int(rank)

    @property
    def size(self) -> int:
        """The number of replicas that take part in the step."""
        return int(self._manager.num_participants())

    @property
    def bytes_averaged(self) -> int:
        """Bytes of gradients that this replica has given to all-reduces: those inside the masks, and no others."""
        return self._gradients.bytes_averaged

    def step(self, closure: Closure) -> Step | None:
        """One iteration with the replicas that are there; None if it was not committed, and nothing has moved.

        A replica that is new, or that has missed a step, first takes model, optimizer and `sgd` from another one, so
        `t` may change before the closure runs.
        """
        run: Any = closure
        wants_pass = takes_pass(closure)
        self.sgd.zero_grad()
        self._manager.start_quorum()
        try:
            for g in self.sgd.gradients():
                with g:
                    g.loss = require_loss(run(g) if wants_pass else run())
        except _Failed:
            self.sgd.zero_grad()
        except BaseException:
            self.sgd.zero_grad()
            raise
        if self._manager.should_commit():
            return self.sgd.update()
        self.sgd.zero_grad()
        return None

    def _state(self) -> dict[str, Any]:
        optimizers = [optimizer.state_dict() for optimizer in self._optimizers]
        return {"model": self._model.state_dict(), "optimizers": optimizers, "sgd": self.sgd.state_dict()}

    def _load(self, state: dict[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.sgd.load_state_dict(state["sgd"])


class _Failed(Exception):
    """A replica died while gradients were averaged; the step is dropped."""


@final
class _ManagedGradients(SendsActivePart):
    """Averages the gradients of each pass over the replicas, so that all rules and meters see the same ones."""

    gradient_as_bucket_view = False
    is_unsynced = False

    def __init__(self, model: nn.Module, manager: Manager) -> None:
        super().__init__()
        self.module = model
        self.process_group = None
        self.unsent: Mapping[str, Tensor] = {}
        self.bytes_averaged = 0
        self.names = Parameters(model)
        self._manager = manager

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def sending(self, gradients: GradientsToSend) -> AbstractContextManager[None]:
        return self._averaged(gradients)

    def check_trained(self, weights: list[float], *, is_read: bool) -> None:
        pass

    def end_step(self, *, moved: bool) -> None:
        pass

    @contextmanager
    def _averaged(self, gradients: GradientsToSend) -> Iterator[None]:
        yield
        entries: list[tuple[Tensor, Entry]] = []
        for name, parameter in self.names.items():
            entry = True if gradients.mask is None else gradients.mask.entries[name]
            if entry is False:
                parameter.grad = None
            elif parameter.grad is not None:
                entries.append((parameter.grad, entry))
        for bucket in _buckets(entries):
            packed = torch.cat([inside(gradient, entry) for gradient, entry in bucket])
            self.bytes_averaged += packed.nbytes
            self._manager.allreduce(packed).wait()
            if self._manager.errored() is not None:
                raise _Failed
            parts = torch.split(packed, [count(gradient, entry) for gradient, entry in bucket])
            for (gradient, entry), part in zip(bucket, parts, strict=True):
                if isinstance(entry, Tensor):
                    gradient.zero_()
                put_inside(gradient, entry, part)


def _buckets(entries: Sequence[tuple[Tensor, Entry]]) -> Iterator[list[tuple[Tensor, Entry]]]:
    """Gradients of one dtype and device, up to the size of a bucket."""
    bucket: list[tuple[Tensor, Entry]] = []
    size = 0
    for gradient, entry in entries:
        is_alike = not bucket or (gradient.dtype, gradient.device) == (bucket[0][0].dtype, bucket[0][0].device)
        if bucket and (size + gradient.nbytes > _BUCKET or not is_alike):
            yield bucket
            bucket, size = [], 0
        bucket.append((gradient, entry))
        size += gradient.nbytes
    if bucket:
        yield bucket
