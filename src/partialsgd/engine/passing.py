"""x̃ ↦ ∇f(x̃): one pass after the other, by the user's loop or over losses of our own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from partialsgd import vectors
from partialsgd.distributed.wrappers import gradients_are_views
from partialsgd.engine.gradient_pass import Pass
from partialsgd.engine.step import StepInProgress
from partialsgd.method import Branch, Losses
from partialsgd.optimizers.grad_scaler import Scaler
from partialsgd.parameters import Parameters
from partialsgd.perturbations import Perturbation, perturbed
from partialsgd.vectors import Vector


@final
@dataclass(frozen=True)
class Passing:
    """Takes gradients: into `.grad`, or out of it to be looked at."""

    given: nn.Module
    parameters: Parameters
    scaler: Scaler

    def run(
        self,
        step: StepInProgress,
        branch: Branch,
        perturbation: Perturbation,
        *,
        last: bool = False,
        counts: bool,
        within: AbstractContextManager[object] | None = None,
    ) -> Generator[Pass, None, None]:
        """One pass by the user's loop, which leaves its gradient in `.grad`."""
        teacher = branch.teacher or (lambda: step.teacher)
        g = Pass(
            self.parameters, perturbation, step.abort, level=branch.level, last=last, within=within, teacher=teacher
        )
        step.current = g
        del perturbation  # the gradient in it must not outlive its use: backward needs the memory
        yield g
        if not g.ran:
            raise RuntimeError("a gradient was left out: run forward and backward inside `with g:` for each g")
        step.backwards += 1
        if counts:
            step.passes.append(branch.level)
            step.note(branch, g)

    def look(
        self,
        step: StepInProgress,
        branch: Branch,
        perturbation: Perturbation,
        *,
        counts: bool = False,
        within: AbstractContextManager[object] | None = None,
    ) -> Generator[Pass, None, Vector]:
        """A gradient to look at, not to apply."""
        yield from self.run(step, branch, perturbation, counts=counts, within=within)
        return self.taken()

    def over(
        self,
        step: StepInProgress,
        losses: Losses,
        perturbation: Perturbation,
        within: AbstractContextManager[object] | None = None,
    ) -> Vector:
        """The mean gradient of losses of our own."""
        with perturbed(self.parameters, perturbation, within):
            for loss in losses:
                torch.autograd.backward(_checked(loss()))
        step.backwards += len(losses)
        gradient = vectors.take(self.parameters, clone=gradients_are_views(self.given))
        torch._foreach_div_(list(gradient.values()), len(losses))
        return gradient

    def taken(self) -> Vector:
        """What lies in `.grad`, moved out of it and unscaled."""
        gradient = vectors.take(self.parameters, clone=gradients_are_views(self.given))
        self.scaler.unscale(gradient)
        return gradient

    def here(self) -> Vector:
        return Vector(vectors.current(self.parameters))

    def copied(self) -> Vector:
        found: dict[str, Tensor] = vectors.current(self.parameters)
        return Vector({name: g.clone() for name, g in found.items()})


def _checked(loss: object) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise ValueError(
            f"loss(batch) must return the loss as one number that depends on the model, without backward; got {loss!r}"
        )
    return loss
