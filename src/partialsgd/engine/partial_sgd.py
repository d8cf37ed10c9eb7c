"""Algorithm 1, partial SGD, around any model, any torch optimizer and any training loop.

for t = 0, 1, 2, …
    choose a mask p_t and a perturbation δx_t
    x̃_t = x_t + δx_t
    g_t = a stochastic gradient of f at x̃_t
    x_{t+1} = x_t − γ_t · p_t ⊙ g_t            γ_t = α_t γ_base
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from partialsgd import masks, perturbations, vectors
from partialsgd._util.plain_copy import gathered_copy, remove_own_hooks
from partialsgd._util.undo import UndoStack, postpone_interrupts
from partialsgd.engine.arguments import check_arguments, require_seed
from partialsgd.engine.cached_outputs import cached_level
from partialsgd.engine.data_parallel import Agreement, SendsActivePart, claim_ddp, require_unused_search
from partialsgd.engine.gradient_pass import Closure, GradientPass, require_loss, takes_pass
from partialsgd.engine.gradients import GradientOracle
from partialsgd.engine.level_states import StateOf, check_state_of, exchange, require_one_level
from partialsgd.engine.masked_update import MaskedUpdate, Outside
from partialsgd.engine.measurement import Measurement
from partialsgd.engine.nonfinite import Nonfinite, NonfinitePolicy, accelerator, require_gradients
from partialsgd.engine.rules import forget, perturbation_of_level, project, under_guard
from partialsgd.engine.saved_state import check_state, placed, remembered_names
from partialsgd.engine.step import Step, StepInProgress
from partialsgd.method import Context, Meter, Method, Remembered
from partialsgd.optimizers.grad_scaler import scaler_of
from partialsgd.optimizers.param_groups import allow_direct_steps, refuse_direct_steps
from partialsgd.parameters import Parameters
from partialsgd.perturbations import NOWHERE, Perturbation


@final
class PartialSGD:
    """Algorithm 1 around one optimizer, or several that together hold each trainable parameter once.

    The closure runs forward and backward and returns the loss. It may run several times in one step on
    the same data, so it must not draw batches, count or step anything. `PartialSGD` owns `zero_grad`:
    gradients are None before a step and after it. With `state="per_level"` a parameter that several levels of a nested
    model share has optimizer state of its own for each of them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        method: Method = Method(),  # noqa: B008  # frozen: one plain method serves all
        *,
        seed: int = 0,
        outside: Outside = "hold",
        state: StateOf = "shared",
        clip_norm: float | None = None,
        nonfinite: Nonfinite | None = None,
        scaler: torch.amp.GradScaler | None = None,
        meter: Meter | None = None,
    ) -> None:
        optimizers = check_arguments(model, optimizer, method, clip_norm, scaler, meter)
        self.t = 0
        self.seed = require_seed(seed)
        self.method = method.bind(model)
        self.memory: dict[str, Remembered] = {}
        self.parameters = Parameters(model)
        self._meters = {who: m for who, m in (("method", self.method.meter), ("meter", meter)) if m is not None}
        self.measured: dict[str, dict[str, Remembered]] = {who: {} for who in self._meters}
        self._update = MaskedUpdate(self.parameters, optimizers, outside)
        self._state_of = check_state_of(state, outside)
        self._scaler = scaler_of(scaler, self._update.optimizers, self.parameters)
        self._clip_norm = clip_norm
        ddp = claim_ddp(model, self.parameters)
        self._sender = ddp if isinstance(ddp, SendsActivePart) else None
        self._agreement = Agreement(ddp, self.parameters)
        policy = nonfinite or ("raise" if self._scaler is None else "skip")
        losses_are_local = ddp is not None or self.parameters.is_sharded
        self._nonfinite = NonfinitePolicy(policy, losses_are_local=losses_are_local)
        self._all_ones = masks.everything(self.parameters)
        self._oracle = GradientOracle(
            model,
            self.parameters,
            self._scaler,
            self._nonfinite,
            self._update.check,
            ddp,
            self._all_ones,
            masks_elements=outside == "decay" or clip_norm is not None,
        )
        self._pending: StepInProgress | None = None
        self._undo = UndoStack()
        self._is_perturbed = False
        if self.method.structural:
            require_unused_search(model)
        refuse_direct_steps(self, self._update.optimizers)

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """The optimizers, without the wrappers of accelerate and Lightning."""
        return self._update.optimizers

    @property
    def repeats_batch(self) -> bool:
        """True if the next step must have the batch of the last one, whose outputs teach it (`distill="cached"`)."""
        return self.method.branches_at(self._context())[0].repeats

    def step(self, closure: Closure = None) -> Step:  # type: ignore[assignment]  # so that our error says what to do
        """One iteration of Algorithm 1. A closure that takes an argument is given the pass it runs in."""
        run: Any = closure
        wants_pass = takes_pass(closure)
        passes = self._oracle.passes(self._begin(by_closure=True))
        try:
            for g in passes:  # lines 2 and 3: p_t and δx_t are chosen
                with g:  # line 4: x is x̃_t inside
                    g.loss = require_loss(run(g) if wants_pass else run())  # line 5: g_t
            return self.update()  # line 6: x_{t+1}
        except BaseException:
            passes.close()
            self.zero_grad()  # x is x again, even if an interrupt has skipped the end of a `with` block
            raise

    def gradients(self, *, once: bool = False) -> Iterator[GradientPass]:
        """Lines 2 to 5, for loops that own their backward: run it `with g:` for each g, then call `update()`.

        Most steps need one gradient; some methods and meters need several, on the same data. `with g:` may be entered
        again for each micro-batch, whose gradients are added up. For micro-batches from a stream, which can be read
        only once, pass `once=True`: a step that needs a second gradient then raises before its first pass.
        """
        return self._oracle.passes(self._begin(once=once))

    def update(self) -> Step:
        """Line 6: x_{t+1} = x_t − γ_t p_t ⊙ g_t."""
        step = self._pending
        if step is None or not step.complete:
            raise RuntimeError("update() has no gradient to apply: run every pass of sgd.gradients() first")
        try:
            postpone_interrupts(self._undo)
            self._undo.append(partial(self._end, step))
            skipped = self._apply(step)
            self._undo.run()
        except BaseException:
            self._undo.run()  # again, in case an interrupt came before it had run
            raise
        result = step.result(skipped, self._update.lr)
        if not skipped and step.measurement is not None:
            result.log_alerts()
        return result

    @contextmanager
    def perturbed(self, level: str | None = None) -> Iterator[Perturbation]:
        """Set x to x̃_t inside the block, to evaluate or save the network that the next step trains."""
        self._nonfinite.resolve()
        self._require_none_pending()
        if self._pending is not None:
            raise RuntimeError("a step was begun and not updated: finish it, or call zero_grad() to drop it")
        perturbation = perturbation_of_level(self.method, self._context(level), self._all_ones)
        try:
            self._is_perturbed = True
            with perturbations.perturbed(self.parameters, perturbation):
                yield perturbation
        finally:
            self._is_perturbed = False

    def extract(self, level: str | None = None) -> nn.Module:
        """A copy of the model at x̃_t, without the hooks of this package: pruned weights are zero in it.

        Of a sharded model every rank gets a whole copy, so all of them must call it."""
        with self.perturbed(level) as perturbation:
            if perturbation.is_structural:
                raise ValueError("a level of a nested model is extracted from that model: nested.extract(level)")
            extracted = gathered_copy(self.parameters.model)
        remove_own_hooks(extracted)
        return extracted

    def zero_grad(self) -> None:
        """Drop the gradients of a step that was not updated; x is x again if it was perturbed for one of them."""
        if self._undo:
            self._undo.run()
        self._drop_gradients()

    def direct_steps(self) -> AbstractContextManager[None]:
        """Allow `optimizer.step()` inside the block: for training without this `PartialSGD` for a while, and for
        functions that step the optimizer themselves, such as those of `torch.distributed.checkpoint`."""
        return allow_direct_steps()

    def state_dict(self) -> dict[str, Any]:
        """Everything a run needs to continue, beside the state of the model, the optimizer and torch's generators."""
        self._nonfinite.resolve()
        state = self._state()
        return {**state, "remembers": remembered_names(state)}

    def _state(self) -> dict[str, Any]:
        return {
            "method": self.method.name,
            "parameters": {name: list(p.shape) for name, p in self.parameters.items()},
            "t": self.t,
            "seed": self.seed,
            "skips": self._nonfinite.skips,
            "memory": dict(self.memory),
            "measured": {who: dict(memory) for who, memory in self.measured.items()},
            "outside": self._update.outside,
            "state": self._state_of,
            "left_out": self._update.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a run. A state of another method or model raises and changes nothing."""
        check_state(state, self._state())
        self.zero_grad()
        self._nonfinite.forget()
        self._agreement.renew()
        self._update.load_state_dict(state["left_out"])
        self.t, self.seed, self._nonfinite.skips = state["t"], require_seed(state["seed"]), state["skips"]
        self.memory = placed(self.parameters, state["memory"])
        measured = state.get("measured", {})
        self.measured = {who: placed(self.parameters, measured.get(who, {})) for who in self.measured}

    def _context(self, level: str | None = None) -> Context:
        measured = dict(self.measured.get("method", {}))
        memory = dict(self.memory)
        cached = cached_level(memory) if memory else None
        return Context(self.t, self.seed, self.parameters, memory, level=level, measured=measured, cached_level=cached)

    def _begin(self, *, by_closure: bool = False, once: bool = False) -> StepInProgress:
        """Begin a new step."""
        self._require_none_pending()
        if self._agreement.is_due:
            self._agreement.check(self.t, self.seed, self.method.name)
        self.zero_grad()
        self._update.groups.refresh()
        method, context, measurement = self.method, self._context(), None
        if self._meters:
            memories = {who: dict(memory) for who, memory in self.measured.items()}
            # One memory for the method's meter and the rules, which read what the meter writes.
            context = replace(context, measured=memories.get("method", context.measured))
            measurement = Measurement(self._meters, memories, self._update.sgd_step_size)
        branches = method.branches_at(context)
        if method.guard is not None:
            method, branches, judge = under_guard(method, branches, context)
            if judge is not None:
                measurement = measurement or Measurement({}, {}, self._update.sgd_step_size)
                measurement.guard = judge
        step = StepInProgress(
            method, branches, context, self._undo, self._drop, self._all_ones, measurement, by_closure, once
        )
        if self._state_of == "per_level":
            require_one_level(step)
        self._pending = step
        return step

    def _drop(self, step: StepInProgress) -> None:
        """Drop this step, unless another one was begun since."""
        step.dropped = True
        if self._pending is step:
            self.zero_grad()

    def _drop_gradients(self) -> None:
        if self._pending is not None:
            self._pending.dropped = True
        self._pending = None
        if self.parameters.is_sharded:
            self.parameters.reshard()
        if self._scaler is not None:
            self._scaler.forget()
        if self._sender is not None:
            self._sender.end_step(moved=False)
        for parameter in self.parameters.values():
            parameter.grad = None

    def _apply(self, step: StepInProgress) -> bool:
        """Check, clip and update; all that may raise comes first. Returns True if the step must be skipped."""
        if self._nonfinite.is_unread:
            self._nonfinite.resolve()
        gradients = require_gradients(step, self.parameters)
        norm = None if self._clip_norm is None else vectors.total_norm(gradients)
        projection, forgotten = project(step.method, step.context), forget(step.method, step.context)
        if forgotten is not None:
            self._update.check_forget(forgotten)
        # On a CPU the answer is known at once, and ranks that share parameters must agree on it.
        is_elsewhere = bool(gradients) and not gradients[0].is_cpu and not self.parameters.is_sharded
        finite = self._watch(step) if is_elsewhere and projection is NOWHERE and forgotten is None else None
        is_checked = self._scaler is not None
        if finite is None and self._nonfinite.check(step, self.parameters, norm, gradient_is_checked=is_checked):
            return True
        if norm is not None and self._clip_norm is not None:
            vectors.clip(self.parameters, self._clip_norm, norm)
        if projection is not NOWHERE:
            self._undo.append(partial(self._project, projection))
        if self._state_of == "per_level":
            exchange(self.parameters, self._update, step, self._undo)
        self._update.apply(step.mask, step.scale, self._undo, forgotten, finite)
        return False

    def _watch(self, step: StepInProgress) -> Tensor | None:
        """Check on the accelerator whether the step is finite, if the host need not know it at once."""
        device = accelerator(p.grad for p in self.parameters.values() if p.grad is not None)
        may_wait = self._nonfinite.may_wait and self._scaler is None and not step.overflow
        may_wait = may_wait and self._state_of == "shared"
        if device is None or not may_wait or not self._update.decides_on_device:
            return None
        return self._nonfinite.watch(step, self.parameters, device, self._take_back(step))

    def _project(self, projection: Perturbation) -> None:
        if self._update.stepped == len(self._update.optimizers):
            perturbations.apply(self.parameters, projection.move)

    def _take_back(self, step: StepInProgress) -> Callable[[], None]:
        """Return a function that undoes the bookkeeping of a step that, as is known one step later, moved nothing."""
        t, memory, measured, sender = self.t, self.memory, self.measured, self._sender
        unsent = None if sender is None else sender.unsent
        forget_step = self._update.forget_step(step.mask)

        def take_back() -> None:
            self.t, self.memory, self.measured = t, memory, measured
            if sender is not None and unsent is not None:
                sender.unsent = unsent
            forget_step()
            self._drop_gradients()  # those of a step that was begun since

        return take_back

    def _end(self, step: StepInProgress) -> None:
        """Count the step if x has moved, and drop its gradients."""
        if self._update.stepped == len(self._update.optimizers):
            self.t, self.memory = step.context.t + 1, dict(step.context.memory)
            if step.measurement is not None:
                self.measured = step.measurement.memories
            if self._sender is not None:
                self._sender.end_step(moved=True)
        try:
            if self._scaler is not None:
                self._scaler.update()
        finally:
            self._drop_gradients()
            self._update.stepped = 0

    def _require_none_pending(self) -> None:
        if self._is_perturbed:
            raise RuntimeError(
                "inside perturbed() x is x̃: leave its `with` block before a step, another perturbed() or extract()"
            )
        if self._pending is not None:
            self._pending.require_droppable()
