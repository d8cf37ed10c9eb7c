"""Algorithm 1 again, slow and obviously right: on plain tensors, with `torch.func`, for SGD without state.

It knows nothing of `PartialSGD`, of `.grad` or of optimizers: x̃ is a new set of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from partialsgd.masks import Mask
from partialsgd.method import Context, GradientPair, GradientRequest, Method, NeedsGradient
from partialsgd.parameters import Parameters
from partialsgd.perturbations import Perturbation
from partialsgd.vectors import Vector

State = dict[str, Tensor]
Loss = Callable[[Callable[..., Tensor]], Tensor]


def gradient(model: nn.Module, x: State, loss: Loss) -> State:
    """∇f at x, for the parameters that took part."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in x.items()}
    value = loss(lambda *args: functional_call(model, leaves, args, tie_weights=True))
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {name: g for name, g in zip(leaves, found, strict=True) if g is not None}


def perturbed(model: nn.Module, x: State, perturbation: Perturbation) -> State:
    """x̃ = x + δx, computed on a copy of the model's parameters."""
    if perturbation.is_structural:
        raise NotImplementedError("the reference is for numbers, not for structure")
    copies = Parameters(model)
    before = {name: p.detach().clone() for name, p in copies.items()}
    with torch.no_grad():
        for name, p in copies.items():
            p.copy_(x[name])
        perturbation.move(copies)
        moved = {name: p.detach().clone() for name, p in copies.items()}
        for name, p in copies.items():
            p.copy_(before[name])
    return moved


def element(mask: Mask, name: str, like: Tensor) -> Tensor:
    entry = mask[name]
    return entry if isinstance(entry, Tensor) else torch.full_like(like, entry, dtype=torch.bool)


def step(
    model: nn.Module, x: State, method: Method, t: int, seed: int, lr: float, loss: Loss, memory: dict | None = None
) -> State:
    """x_{t+1} = x_t − γ Σ_b w_b p_b ⊙ ∇f(x_t + δx_b), corrected and projected where a method does so."""
    memory = {} if memory is None else memory
    due = method.guard is not None and method.guard.count_and_check_due(Context(t, seed, Parameters(model), memory))
    if method.guard is not None and not due and memory.get("guard.refused."):
        return step(model, x, method.guard.fallback, t, seed, lr, loss, memory)
    total: State = {}
    at_x = union = None
    parameters = Parameters(model)
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(x[name])
    measured = memory.setdefault("measured", {})
    base = Context(t, seed, parameters, memory, measured=measured)
    alpha = None
    for number, branch in enumerate(method.branches_at(base)):
        mask = ask(branch.mask, base, number, branch.level, None, at_x)
        if mask is None:
            at_x = Vector(gradient(model, x, loss))
            mask = ask(branch.mask, base, number, branch.level, None, at_x)
        perturbation = ask(branch.perturb, base, number, branch.level, mask, at_x)
        if perturbation is None:
            at_x = Vector(gradient(model, x, loss))
            perturbation = ask(branch.perturb, base, number, branch.level, mask, at_x)
        moved = perturbed(model, x, perturbation)
        g = gradient(model, moved, loss)
        asked = replace(base, branch=number, level=branch.level).with_mask(mask)
        requests = [] if method.meter is None else method.meter.requests(replace(asked, memory=measured), branch)
        if requests or due:
            distance = math.sqrt(sum(float((moved[name] - x[name]).square().sum()) for name in x))
            at_x = Vector(gradient(model, x, loss))
            pair = GradientPair(GradientRequest(branch), asked, at_x, Vector(g), distance)
        for request in requests:
            method.meter.measure(replace(pair, request=request, context=replace(asked, memory=measured)))
        if due:
            memory["guard.refused."] = 0
            if method.guard.refuses(pair):
                memory["guard.refused."] = 1
                return step(model, x, method.guard.fallback, t, seed, lr, loss, memory)
        if method.branches is None:
            g = method.correct(base.with_mask(mask), Vector(g))
        for name, value in g.items():
            masked = branch.weight * element(mask, name, value) * value
            total[name] = total[name] + masked if name in total else masked
        union = mask if union is None else union | mask
        alpha = ask(method.scale, base, number, branch.level, mask, at_x) if alpha is None else alpha
    moved = {name: value - alpha * lr * total[name] if name in total else value for name, value in x.items()}
    level = method.branches_at(base)[0].level
    return perturbed(model, moved, method.project(replace(base, level=level).with_mask(union)))


def ask(rule, base: Context, number: int, level: str | None, mask: Mask | None, at_x: Vector | None):
    """A rule's answer; what it remembered on the way to asking for a gradient is forgotten."""
    memory = dict(base.memory)
    try:
        context = Context(base.t, base.seed, base.parameters, memory, number, level, base.measured)
        answer = rule(context.with_mask(mask).with_gradient(at_x))
    except NeedsGradient:
        return None
    base.memory.update(memory)
    return answer
