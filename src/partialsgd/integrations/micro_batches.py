"""`MicroBatches`: the gradients of a step over micro-batches that arrive one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor

from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.engine.partial_sgd import PartialSGD

Run = Callable[[Any], Tensor]
"""Runs forward and backward for a micro-batch and returns the loss, detached."""


@final
class MicroBatches:
    """Runs each micro-batch when it arrives, if the step needs one gradient; if it needs several, all at the end.

    Only a step with several gradients holds its micro-batches in memory, because each gradient is over all of them.
    """

    def __init__(self, no_sync: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.gradient_pass: GradientPass | None = None
        """The pass that runs now, for a loss that asks for its level or its teacher."""
        self._no_sync = no_sync
        self._passes: Iterator[GradientPass] | None = None
        self._first: GradientPass | None = None
        self._held: list[Any] = []

    @property
    def is_first_pass(self) -> bool:
        """True if the pass that runs is the first one of its step."""
        return self.gradient_pass is self._first

    def add(self, sgd: PartialSGD, batch: Any, run: Run, *, last: bool) -> Tensor | None:
        """Take a micro-batch; the last one of a step leaves the gradient of the update in `.grad`.

        Returns the loss of what was run, or None if the batch has to wait. The loss of several passes is the first's.
        """
        try:
            if self._passes is None:
                self._passes = iter(sgd.gradients())
                self._first = next(self._passes)
                # A rule that reads the gradient of each micro-batch needs them apart.
                self._first.adds_in_place = self._first.parts is None
            assert self._first is not None
            if self._first.last and self._first.adds_in_place:
                loss = self._run(self._first, batch, run)
                if last:
                    self._finish()
                return loss
            self._held.append(batch)
            return self._run_held(run) if last else None
        except BaseException:
            self.drop(sgd)
            raise

    def drop(self, sgd: PartialSGD) -> None:
        """Forget a step that was begun, its gradients and its micro-batches."""
        self._passes, self._first, self._held, self.gradient_pass = None, None, [], None
        sgd.zero_grad()

    def _run(self, g: GradientPass, batch: Any, run: Run) -> Tensor:
        with g:
            self.gradient_pass = g
            loss = g.loss = run(batch)
            self.gradient_pass = None
        return loss

    def _run_held(self, run: Run) -> Tensor:
        """Run every pass of the step over all micro-batches."""
        assert self._passes is not None and self._first is not None
        losses, g = [], self._first
        while True:
            g.adds_in_place = g.parts is None
            of_pass = []
            for number, batch in enumerate(self._held, start=1):
                is_reduced = number == len(self._held) or not g.adds_in_place
                with nullcontext() if is_reduced else self._no_sync():
                    of_pass.append(self._run(g, batch, run))
            losses.append(torch.stack(of_pass).sum())
            following = next(self._passes, None)
            if following is None:
                break
            g = following
        self._passes, self._first, self._held = None, None, []
        return losses[0]

    def _finish(self) -> None:
        """Let the oracle mask the gradient."""
        assert self._passes is not None
        if next(self._passes, None) is not None:
            raise RuntimeError("a step that needed one gradient asks for another; this is a bug of partialsgd")
        self._passes = self._first = None
