"""Contestants made with partialsgd; what they are compared with is in `baselines`."""

from __future__ import annotations

import partialsgd as ps
from benchmarks.baselines import Training
from benchmarks.harness import Contestant, Run, ready
from partialsgd.optimizers.param_groups import RefuseDirectStep


def with_method(training: Training, method: ps.Method, *, checked: bool = True) -> ps.PartialSGD:
    """On the very model and optimizer of the raw loop: a second copy would lie elsewhere in memory."""
    sgd = ps.PartialSGD(training.model, training.optimizer, method, nonfinite="raise" if checked else "ignore")
    hooks = training.optimizer._optimizer_step_pre_hooks
    for key in [key for key, hook in hooks.items() if isinstance(hook, RefuseDirectStep)]:
        del hooks[key]  # it would refuse the steps of the raw loop
    return sgd


def step(training: Training, method: ps.Method, *, checked: bool = True) -> Contestant:
    """A whole step, forward and backward included."""
    sgd = with_method(training, method, checked=checked)
    return ready(lambda: sgd.step(training.closure))


def update(training: Training, method: ps.Method, *, checked: bool = True) -> Contestant:
    """All that happens after backward: mask the gradient, look at it, step, let the gradient go."""
    sgd = with_method(training, method, checked=checked)

    def prepare() -> Run:
        passes = iter(sgd.gradients())
        with next(passes):
            training.closure()

        def run() -> None:
            next(passes, None)
            sgd.update()

        return run

    return prepare


def constant(mask: ps.Mask) -> ps.Method:
    """A method whose mask is the same at every step, so that choosing it costs nothing."""
    return ps.Method(mask=lambda context: mask)
