"""Algorithm 1, partial SGD, around any model, any torch optimizer and any training loop.

for t = 0, 1, 2, …
    choose a mask p_t and a perturbation δx_t
    x̃_t = x_t + δx_t
    g_t = a stochastic gradient of f at x̃_t
    x_{t+1} = x_t − γ_t · p_t ⊙ g_t            γ_t = α_t γ_base
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from partialsgd import perturbations, vectors
from partialsgd.distributed.wrappers import data_parallel, gradients_are_views, require_unused_search
from partialsgd.engine import step as steps
from partialsgd.engine.checks import checked, without_our_hooks
from partialsgd.engine.closures import Closure, require_loss, with_pass
from partialsgd.engine.gradient_pass import Pass
from partialsgd.engine.gradients import Oracle
from partialsgd.engine.masked_update import MaskedUpdate, Outside
from partialsgd.engine.nonfinite import Nonfinite, NonfinitePolicy
from partialsgd.engine.passing import Passing
from partialsgd.engine.rules import choose, forget, project
from partialsgd.engine.step import Step, StepInProgress
from partialsgd.method import Context, Meter, Method, Remembered, uncorrected
from partialsgd.optimizers.grad_scaler import Scaler, require_handed_over
from partialsgd.optimizers.third_party import Undo
from partialsgd.parameters import Parameters
from partialsgd.perturbations import Perturbation
from partialsgd.vectors import Vector


@final
class PartialSGD:
    """Algorithm 1 around one optimizer, or several that together hold each trainable parameter once.

    The closure runs forward and backward and returns the loss. It may run several times in one step on
    the same data, so it must not draw batches, count or step anything. `PartialSGD` owns `zero_grad`:
    gradients are None before a step and after it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        method: Method = Method(),  # noqa: B008  # frozen: one plain method serves all
        *,
        seed: int = 0,
        outside: Outside = "hold",
        clip_norm: float | None = None,
        nonfinite: Nonfinite | None = None,
        scaler: torch.amp.GradScaler | None = None,
        meter: Meter | None = None,
    ) -> None:
        optimizers = checked(model, optimizer, method, meter)
        method = method.bind(model)
        self.t = 0
        self.seed = seed
        self.method = method
        self.memory: dict[str, Remembered] = {}
        self.parameters = Parameters(model)
        self._update = MaskedUpdate(self.parameters, optimizers, outside)
        require_handed_over(optimizers, scaler)
        self._scaler = Scaler(scaler, self._update.optimizers)
        policy = nonfinite or ("skip" if self._scaler.enabled else "raise")
        self._watch = NonfinitePolicy(policy, clip_norm, losses_are_local=data_parallel(model) is not None)
        meters = {"method": method.meter, "meter": meter}
        known = {who: meter for who, meter in meters.items() if meter is not None}
        self.measured: dict[str, dict[str, Remembered]] = {who: {} for who in known}
        passing = Passing(model, self.parameters, self._scaler)
        self._oracle = Oracle(passing, self._update, self._watch, known)
        self._pending: StepInProgress | None = None
        self._is_shown = False
        alone = method.is_plain and len(optimizers) == 1 and meter is None and clip_norm is None
        if self._update.wants_closure and (not alone or self._scaler.enabled):
            raise NotImplementedError(
                "LBFGS takes its own gradients: only the plain method, alone, without a meter, a scaler or clip_norm"
            )
        if method.structural:
            require_unused_search(model)

    def step(self, closure: Closure) -> Step:
        """One iteration of Algorithm 1. A closure that takes an argument is given the pass it runs in."""
        if self._update.wants_closure:
            return self._step_by_closure(closure)
        run = with_pass(closure)
        self._require_none_pending()
        is_seen = self._update.outside == "decay" or self._watch.clips
        for g in self._passes(is_seen=is_seen):  # lines 2 and 3: p_t and δx_t are chosen
            with g:  # line 4: x is x̃_t inside
                g.loss = require_loss(run(g))  # line 5: g_t
        return self.update()  # line 6: x_{t+1}

    def gradients(self) -> Iterator[Pass]:
        """Lines 2 to 5, for loops that own their backward: run the body `with g:` for each g, then `update()`."""
        if self._update.wants_closure:
            raise NotImplementedError("LBFGS takes its own gradients: use sgd.step(closure)")
        self._require_none_pending()
        return self._passes()

    @contextmanager
    def gradient(self) -> Iterator[Pass]:
        """The same for a step that needs one gradient. Entered again before `update()`, it accumulates."""
        before = self._micro_batches_before()
        passes = self._passes()
        g = next(passes)
        if not g.last:
            self.zero_grad()
            raise RuntimeError(
                f"{self.method.name} (or its meter) needs more than one gradient at t = {self.t}: use "
                "sgd.step(closure), or `for g in sgd.gradients(): with g: …` and then sgd.update()"
            )
        with g:
            yield g
        next(passes, None)
        if self._pending is not None and before is not None:
            self._pending.accumulate(*before, self.parameters)

    def update(self) -> Step:
        """Line 6: x_{t+1} = x_t − γ_t p_t ⊙ g_t."""
        step = self._pending
        if step is None or not step.complete:
            raise RuntimeError("update() has no gradient to apply: run every pass of sgd.gradients() first")
        try:
            skipped = self._watch.stops(step, self.parameters, checked=self._scaler.enabled)
            if not skipped:
                projection, forgotten = project(step.method, step.context), forget(step.method, step.context)
                if forgotten is not None:
                    self._update.refuse_to_forget(forgotten)
                self._update.apply(step.mask, step.scale, forgotten)
                perturbations.apply(self.parameters, projection.move)
        finally:
            self._scaler.update()
            self.zero_grad()
        if not skipped:
            self.t += 1
            self.memory, self.measured = dict(step.context.memory), step.measured
        done = step.done(skipped, self._update.lr)
        if not skipped:
            steps.tell(done)
        return done

    @contextmanager
    def perturbed(self, level: str | None = None) -> Iterator[Perturbation]:
        """x is x̃_t inside: the network whose gradient the next step takes, or a level of it, to evaluate or save."""
        self._require_none_pending()
        context = self._context(level)
        found = enumerate(self.method.branches_at(context))
        number, branch = next(((n, b) for n, b in found if level in (None, b.level)), (0, None))
        if branch is None:
            raise ValueError(f"{self.method.name} has no level {level!r} at t = {self.t}")
        chosen = choose(self.method, branch, replace(context, branch=number, level=branch.level)).perturbation
        if chosen is None:
            raise RuntimeError(f"{self.method.name} perturbs by a gradient, and there is none without a batch")
        self._is_shown = True
        try:
            with perturbations.perturbed(self.parameters, chosen):
                yield chosen
        finally:
            self._is_shown = False

    def extract(self, level: str | None = None) -> nn.Module:
        """A copy of the model at x̃_t: what was pruned is zero in it."""
        with self.perturbed(level) as perturbation:
            if perturbation.is_structural:
                raise ValueError("a level of a nested network comes out of the network: nested.extract(level)")
            return without_our_hooks(copy.deepcopy(self.parameters.model))

    def zero_grad(self) -> None:
        """Drop the gradients of a step that was not updated."""
        self._pending = None
        self._scaler.forget()
        vectors.clear(self.parameters.values())

    def state_dict(self) -> dict[str, Any]:
        """All that a run needs to go on, beside the model's, the optimizer's and torch's own state."""
        return {
            "method": self.method.name,
            "parameters": {name: list(p.shape) for name, p in self.parameters.items()},
            "t": self.t,
            "seed": self.seed,
            "skips": self._watch.skips,
            "memory": dict(self.memory),
            "measured": {who: dict(memory) for who, memory in self.measured.items()},
            "outside": self._update.outside,
            "left_out": self._update.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a run; a state of another method or model is refused and changes nothing."""
        own = self.state_dict()
        if not isinstance(state, Mapping):
            raise TypeError(f"a state is what state_dict() returned, got {state!r}")
        if missing := own.keys() - state.keys() - {"measured"}:
            raise ValueError(f"this is not a state of PartialSGD: it lacks {', '.join(sorted(missing))}")
        for key in ("method", "outside"):
            if state[key] != own[key]:
                raise ValueError(f"the state was saved with {key}={state[key]!r}, and this has {key}={own[key]!r}")
        for name in own["parameters"].keys() | state["parameters"].keys():
            theirs, ours = state["parameters"].get(name), own["parameters"].get(name)
            if theirs != ours:
                raise ValueError(f"the state is of another model: {name!r} has shape {theirs} there, {ours} here")
        self.zero_grad()
        self._update.load_state_dict(state["left_out"])
        self.t, self.seed, self._watch.skips = state["t"], state["seed"], state["skips"]
        self.memory = dict(state["memory"])
        self.measured = {who: dict(state.get("measured", {}).get(who, {})) for who in self.measured}

    def _context(self, level: str | None = None) -> Context:
        measured = dict(self.measured.get("method", {}))
        return Context(self.t, self.seed, self.parameters, dict(self.memory), level=level, measured=measured)

    def _passes(self, *, is_seen: bool = True) -> Iterator[Pass]:
        self._update.places.refresh()
        context = self._context()
        measured = {who: dict(memory) for who, memory in self.measured.items()}
        if "method" in measured:
            context = replace(context, measured=measured["method"])  # one memory: rules read what its meter writes
        step = self._pending = steps.begin(self.method, context, measured, self.zero_grad)
        try:
            for number, branch in enumerate(step.branches):
                yield from self._oracle.branch(step, number, branch)
                if step.overflow:
                    break
            self._oracle.finish(step, is_seen=is_seen)
        except Exception:
            self.zero_grad()
            raise

    def _micro_batches_before(self) -> tuple[StepInProgress, Vector] | None:
        """What `gradient()` adds to when it is entered again. Masks and noise depend on t alone: they stay."""
        self._require_idle()
        before = self._pending
        if before is None or not before.complete:
            self.zero_grad()
            return None
        if before.by_gradient or any(before.looks) or before.method.correct is not uncorrected:
            raise RuntimeError(
                f"{self.method.name} (or its meter) looks at the whole gradient: run all micro-batches inside one "
                "`with sgd.gradient():`, or in the closure of sgd.step"
            )
        # Moved out, so that a body which zeroes gradients, or forgets backward, is found out as in a single one.
        return before, vectors.take(self.parameters, clone=gradients_are_views(self._oracle.passing.given))

    def _require_none_pending(self) -> None:
        self._require_idle()
        if self._pending is not None and self._pending.complete:
            raise RuntimeError("the last gradient was not applied: call update() first, or zero_grad() to drop it")
        self.zero_grad()

    def _require_idle(self) -> None:
        if self._is_shown:
            raise RuntimeError("a step moves x, and inside of perturbed() x is x̃: take steps outside of it")
        if self._pending is not None and self._pending.current is not None and self._pending.current.running:
            raise RuntimeError("a gradient is being taken already: leave its `with` block first")

    def _step_by_closure(self, closure: Closure) -> Step:
        """LBFGS evaluates the closure as often as it likes, so only the first gradient can be looked at."""
        run, losses = with_pass(closure), list[Any]()

        def evaluate() -> Any:
            self.zero_grad()
            for g in self._passes():
                with g:
                    losses.append(require_loss(run(g)))
            return losses[-1]

        undo = Undo(self.parameters, self._update.optimizers)
        try:
            evaluate()
            step = self._pending
            assert step is not None  # evaluate() has just made it
            step.all_losses = step.losses = [(None, torch.as_tensor(losses[0]).detach())]
            skipped = self._watch.stops(step, self.parameters, checked=False)
            if not skipped:
                first = [losses[0]]
                self._update.optimizers[0].step(lambda: first.pop() if first else evaluate())
                self.t += 1
        except BaseException:
            undo.roll_back()
            raise
        finally:
            self.zero_grad()
        step.backwards = len(losses)
        return step.done(skipped, self._update.lr)
