"""`GradientPass`: forward and backward by the user's code, with x perturbed for exactly that long (x̃_t ↦ g_t)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from inspect import Parameter, signature
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partialsgd import vectors
from partialsgd.engine import cached_outputs
from partialsgd.engine.cached_outputs import Batch, CachedOutputs
from partialsgd.engine.data_parallel import GradientsToSend, SendsActivePart, running_pass
from partialsgd.parameters import Parameters
from partialsgd.perturbations import NOWHERE, Displacement, Perturbation, displace
from partialsgd.vectors import Vector

if TYPE_CHECKING:
    from partialsgd.engine.step import StepInProgress

MakeContext = Callable[[], AbstractContextManager[object]]


class _SeveralOutputs:
    """Stands for the outputs of more than one micro-batch, which cannot teach a smaller level."""


@final
class GradientPass:
    """One gradient of a step. Run forward and backward inside `with g:`, where x is x̃; outside x is exactly x.

    Entered again before the loop over `sgd.gradients()` goes on, it adds the gradient of a further micro-batch.
    """

    def __init__(
        self,
        parameters: Parameters,
        perturbation: Perturbation,
        step: StepInProgress,
        *,
        level: str | None,
        last: bool,
        clones: bool,
        keeps_parts: bool,
        teacher: Callable[[], Any],
        caches: bool = False,
        repeated: Sequence[CachedOutputs] | None = None,
        within: MakeContext | None = None,
        on_move: Callable[[Displacement], None] | None = None,
        sender: SendsActivePart | None = None,
        sends: GradientsToSend = GradientsToSend(),  # noqa: B008  # frozen
    ) -> None:
        self.level = level
        """The level that this pass runs, or None without levels. A pass for a meter at x runs the full level."""
        self.last = last
        """True if the step needs no further gradient after this one."""
        self.loss: Tensor | float | None = None
        """Assign the loss here to have it checked and returned in `Step`; `step(closure)` does."""
        self.adds_in_place = False
        """Set it to True to let a pass that is entered again add to `.grad`, as torch does: under `no_sync` of
        DistributedDataParallel only what stands in `.grad` is reduced with the last micro-batch. It takes no memory
        for a second gradient, and only the first micro-batch is checked to have called backward."""
        self.running = False
        self.parts: list[Vector] | None = [] if keeps_parts else None
        """The gradient of each micro-batch, if a rule reads them one by one."""
        self._losses: list[Tensor | float | None] = []
        self._outputs: Any = None
        self._outputs_set = 0
        self._entered = 0
        self._failed = False
        self._parameters = parameters
        self._perturbation: Perturbation | None = perturbation
        self._within = within
        self._on_move = on_move
        self._step = step
        self._clones = clones
        self._teacher = teacher
        self._caches, self._repeated = caches, repeated
        self._batches: list[Batch] = []
        self._cached: list[Any] = []
        self._sender = sender
        self._sends = sends
        self._earlier: Vector | None = None

    @property
    def teacher(self) -> Any:
        """The outputs of the largest level for this batch, detached, if the method distills; else None.

        With `distill="cached"` they are those of the step before, if that trained a larger level.
        """
        if self._repeated is not None:
            if not self._batches:
                raise RuntimeError("assign g.batch before you read g.teacher: its outputs are those of one batch only")
            return self._repeated[len(self._batches) - 1].outputs
        outputs = self._teacher()
        if isinstance(outputs, _SeveralOutputs):
            raise RuntimeError(
                "the largest level assigned g.outputs several times, once for each micro-batch, so the teacher of "
                "this micro-batch is not known; distill with one batch in the closure"
            )
        return outputs

    @property
    def outputs(self) -> Any:
        """Assign the outputs here, once, to find them in `teacher` at the smaller levels."""
        return self._outputs

    @outputs.setter
    def outputs(self, outputs: Any) -> None:
        self._outputs = outputs
        self._outputs_set += 1
        if self._caches:
            self._cached.append(outputs)

    @property
    def batch(self) -> Batch | None:
        """Assign the batch here, or a number or text that names it, if the method has `distill="cached"`: a smaller
        level must have the batch of the step before it, and raises if it is another one."""
        return self._batches[-1] if self._batches else None

    @batch.setter
    def batch(self, batch: Batch) -> None:
        if self._repeated is not None:
            cached_outputs.require_same(self._repeated, len(self._batches), batch)
        self._batches.append(cached_outputs.copied(batch) if self._caches else batch)

    def __enter__(self) -> GradientPass:
        if self._step.dropped:
            self._step.refuse_dropped()
        perturbation = self._perturbation
        if perturbation is None or self.running:
            raise RuntimeError("this gradient was taken already; take the next one from sgd.gradients()")
        if self._step.by_closure:
            self._perturbation = None  # it may hold the gradient at x, whose memory the pass at x̃ needs
        try:
            if self._entered:
                is_unsynced = self._sender is not None and self._sender.is_unsynced  # the last one averages their sum
                if not (self.adds_in_place or is_unsynced):
                    # Moved out, so that a body that zeroes gradients, or forgets backward, is noticed each time.
                    self._earlier = vectors.take(self._parameters, clone=self._clones)
                self._losses.append(self.loss)
                self.loss = None
            if self._sender is not None:
                self._step.undo.enter(self._sender.sending(self._sends))
            if perturbation is not NOWHERE or self._within is not None:
                within = None if self._within is None else self._within()
                on_move, self._on_move = self._on_move, None
                displace(self._parameters, perturbation, self._step.undo, within, on_move)
                del perturbation
            self.running = True
            running_pass.set(self._parameters)
        except BaseException:
            self._fail()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._step.undo:
                self._step.undo.run(kind, error, trace)
            self.running = False
            running_pass.set(None)
            if kind is None and all(p.grad is None for p in self._parameters.values()):
                raise RuntimeError(
                    "no parameter received a gradient: call loss.backward() inside the closure or `with` block, "
                    "on a loss that depends on the model's parameters"
                )
        except BaseException:
            self._fail()
            raise
        if kind is not None:
            self._fail()
            return
        self._entered += 1
        if self.parts is not None:
            self._require_synced("a rule reads the gradients of the micro-batches one by one")
            gradient = vectors.current(self._parameters)
            self.parts.append(Vector({name: g.clone() for name, g in gradient.items()}))
        if self._earlier is not None:
            vectors.add(self._earlier, vectors.current(self._parameters), 1.0)
            vectors.put(self._parameters, self._earlier)
            self._earlier = None

    def finish(self) -> tuple[list[Tensor | None], Any]:
        """End the pass. Returns the loss of each micro-batch, and the outputs as smaller levels may use them."""
        if self._step.dropped:
            self._step.refuse_dropped()
        if self._failed or not self._entered:
            raise RuntimeError("a gradient was left out: run forward and backward inside `with g:` for each g")
        self._require_synced("the last micro-batch of the pass ran under no_sync() too")
        self._perturbation = None
        losses = [None if loss is None else torch.as_tensor(loss).detach() for loss in (*self._losses, self.loss)]
        if self._outputs_set != 1:
            return losses, _SeveralOutputs() if self._outputs_set else None
        return losses, tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, self._outputs)

    def cached(self) -> list[CachedOutputs]:
        """The batches and outputs of this pass that the next step may use. Raises if the closure left one out."""
        if self._repeated is not None and len(self._batches) != len(self._repeated):
            raise RuntimeError(
                f"the step before had {len(self._repeated)} micro-batches, and g.batch was assigned "
                f"{len(self._batches)} times at this one, which repeats them; assign it once for each"
            )
        if not self._caches:
            return []
        if not self._batches or len(self._batches) != len(self._cached):
            raise RuntimeError(
                f"g.batch was assigned {len(self._batches)} times and g.outputs {len(self._cached)} times: with "
                'distill="cached" the closure must assign both, once for each micro-batch; under the Trainer or '
                "Lightning use distill=True"
            )
        for outputs in self._cached:
            if not isinstance(outputs, Tensor):
                raise TypeError(
                    f'with distill="cached" g.outputs must be the tensor that teaches, such as the logits; got '
                    f"{type(outputs).__name__}"
                )
        return [
            CachedOutputs(*pair) for pair in zip(self._batches, (x.detach().clone() for x in self._cached), strict=True)
        ]

    def _require_synced(self, reason: str) -> None:
        if self._sender is not None and self._sender.is_unsynced:
            self._step.drop()
            raise RuntimeError(f"gradients are not averaged over the processes: {reason}; run it outside no_sync()")

    def _fail(self) -> None:
        """An exception inside the block drops the whole step."""
        self._failed, self._perturbation, self.running = True, None, False
        running_pass.set(None)
        self._step.drop()


Closure: TypeAlias = Callable[[], Tensor | float] | Callable[[GradientPass], Tensor | float]
"""The user's forward and backward, as a function that returns the loss."""

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def takes_pass(closure: Closure) -> bool:
    """True if the closure has one required argument, the pass that it runs in."""
    if isinstance(closure, FunctionType):  # the quick way: every step asks
        required = closure.__code__.co_argcount - len(closure.__defaults__ or ())
    elif callable(closure):
        parameters = signature(closure).parameters.values()
        required = sum(p.kind in _POSITIONAL and p.default is p.empty for p in parameters)
    else:
        raise TypeError(
            f"step() takes a closure, a function that runs forward and backward and returns the loss; got {closure!r}. "
            "If your loop calls backward itself, use `for g in sgd.gradients():` and `sgd.update()`"
        )
    if required > 1:
        raise TypeError(f"the closure takes {required} arguments; it may take one, the pass it runs in, or none")
    return required == 1


def require_loss(loss: Any) -> Tensor | float:
    """The loss that a closure returned, detached; raise if it is not one number."""
    if loss is None:
        raise TypeError("the closure returned no loss: end it with `return loss`")
    if isinstance(loss, Tensor) and loss.numel() != 1:
        raise TypeError(f"the closure returned a tensor of shape {tuple(loss.shape)}; return the loss, one number")
    return loss.detach() if isinstance(loss, Tensor) else loss
