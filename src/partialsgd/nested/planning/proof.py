"""Proof that groups of units can be cut: the narrow network computes what the masked network computes.

It runs on random inputs, with random numbers in the place of parameters that are zero, and compares outputs and
gradients; the model is left as it was.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from partialsgd._util.snapshots import Buffers, Modes, RandomState
from partialsgd.nested.example_inputs import Call, is_close, tensors_of
from partialsgd.nested.layers import fast_paths
from partialsgd.nested.layers.base import level_parameters
from partialsgd.nested.layers.batch_norm import SeparateBatchNorm
from partialsgd.nested.layers.narrow import NarrowLayer
from partialsgd.nested.layers.narrow_module import NarrowModule
from partialsgd.nested.planning.groups import Cut
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.switch import FULL

_ROUNDING = 1e-5  # of a bias of keys the gradient is zero: softmax does not see it
_DIFFERENCES = (
    "the whole network would compute something else",
    "the narrow network computes something else than the masked one",
    "the narrow network has another gradient than the masked one",
)
_TOLERANCE = 1e-3  # some layers compute in single precision whatever the dtype, and sums have another order


def kind_of(name: str) -> str:
    """Return the name with `*` for the numbers of blocks: layers of one kind are proven together."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def refuted(plan: NestPlan, cuts: Sequence[Cut], call: Call, replace: Any) -> dict[str, str]:
    """Return the kinds of groups that cannot be cut, each with what happened; `replace(plan, cuts)` plans the cuts."""
    failure = _failure_of_all(plan, cuts, call, replace)
    if failure in _DIFFERENCES and (exact := _in_double(plan, call)) is not None:
        # In single precision a gradient jumps where a sum in another order ends on the other side of a ReLU.
        again = _failure_of_all(exact[0], cuts, exact[1], replace)
        if again is None or again in _DIFFERENCES:
            (plan, call), failure = exact, again
    if failure is None:
        return {}
    kinds: dict[str, list[Cut]] = {}
    for cut in cuts:
        kinds.setdefault(kind_of(cut.group.name), []).append(cut)
    if len(kinds) == 1:
        return dict.fromkeys(kinds, failure)
    with _prepared(plan.model):
        expected = _outputs(plan.model, call)
        alone = {kind: _failure(plan, own, call, replace, expected) for kind, own in kinds.items()}
    return {kind: reason for kind, reason in alone.items() if reason} or dict.fromkeys(kinds, failure)


def _failure_of_all(plan: NestPlan, cuts: Sequence[Cut], call: Call, replace: Any) -> str | None:
    with _prepared(plan.model):
        return _failure(plan, cuts, call, replace, _outputs(plan.model, call))


def _in_double(plan: NestPlan, call: Call) -> tuple[NestPlan, Call] | None:
    """Return the plan of a copy of the model in double precision, and the inputs; None if it is not another one."""
    if all(p.dtype is torch.float64 for p in plan.model.parameters() if p.is_floating_point()):
        return None
    try:
        model = copy.deepcopy(plan.model).double()
        args, kwargs = tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, call)
        _outputs(model, (args, kwargs))
    except Exception:  # whatever a model raises that cannot be copied, or computes in one precision only
        return None
    return NestPlan(model, plan.switch, plan.seed), (args, kwargs)


def _failure(plan: NestPlan, cuts: Sequence[Cut], call: Call, replace: Any, expected: list[Tensor]) -> str | None:
    """Cut the model, compare, and put everything back; return what is different, or None."""
    trial = NestPlan(plan.model, plan.switch, plan.seed)
    replace(trial, cuts)
    for name, axis in trial.norm_axes.items():
        norm = trial.modules[name]
        assert isinstance(norm, _BatchNorm)
        trial.replace(name, SeparateBatchNorm(norm, axis, plan.switch.levels, plan.switch))
    with trial.carried_out() as root:
        try:
            if not _are_close(expected, _outputs(root, call)):
                return _DIFFERENCES[0]
            for level in dict.fromkeys(level for cut in cuts for level in cut.sizes):
                outputs, gradients = _narrow(root, plan, level, call)
                masked, masked_gradients = _masked(root, plan, level, call)
                if not _are_close(masked, outputs):
                    return _DIFFERENCES[1]
                if not _are_gradients_close(masked_gradients, gradients):
                    return _DIFFERENCES[2]
        except Exception as error:  # whatever the code of the model raises for tensors of another size
            message = re.sub(r"\s+", " ", str(error))
            return f"its code needs the full width ({type(error).__name__}: {message[:160]})"
    return None


def _narrow(root: nn.Module, plan: NestPlan, level: str, call: Call) -> tuple[list[Tensor], list[Tensor]]:
    with plan.switch.at(level):
        return _outputs_and_gradients(root, call, _shared(root, level))


def _masked(root: nn.Module, plan: NestPlan, level: str, call: Call) -> tuple[list[Tensor], list[Tensor]]:
    """Run the full network with zeros in all blocks that the level lacks."""
    used = set(level_parameters(root, level))
    layers = [m for m in root.modules() if isinstance(m, (NarrowLayer, NarrowModule))]
    outside = [p for layer in layers for p in layer.parameters(recurse=False) if p not in used]
    saved = [(p, p.detach().clone()) for p in outside]
    try:
        with torch.no_grad():
            for parameter in outside:
                parameter.zero_()
        with plan.switch.at(FULL):
            return _outputs_and_gradients(root, call, _shared(root, level))
    finally:
        with torch.no_grad():
            for parameter, values in saved:
                parameter.copy_(values)


def _shared(root: nn.Module, level: str) -> list[nn.Parameter]:
    """Return the parameters that a level shares with the full network: all but those of its own BatchNorms."""
    norms = [m for m in root.modules() if isinstance(m, SeparateBatchNorm)]
    own = {p for norm in norms for p in norm.parameters()}
    return [p for p in level_parameters(root, level) if p not in own]


def _outputs(model: nn.Module, call: Call) -> list[Tensor]:
    args, kwargs = call
    with torch.no_grad():
        return [y.detach() for y in tensors_of(model(*args, **kwargs))]


def _outputs_and_gradients(model: nn.Module, call: Call, over: list[nn.Parameter]) -> tuple[list[Tensor], list[Tensor]]:
    args, kwargs = call
    over = [p for p in over if p.requires_grad and p.is_floating_point()]
    with torch.enable_grad():
        outputs = list(tensors_of(model(*args, **kwargs)))
        terms = [
            (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view_as(y)).nan_to_num().sum()
            for y in outputs
            if y.requires_grad and y.numel()
        ]
        total = sum(terms[1:], start=terms[0]) if terms else None
        gradients = () if total is None or not over else torch.autograd.grad(total, over, allow_unused=True)
    return [y.detach() for y in outputs], [
        torch.zeros_like(p) if g is None else g for p, g in zip(over, gradients, strict=False)
    ]


def _are_gradients_close(a: list[Tensor], b: list[Tensor]) -> bool:
    """Compare each gradient at its own scale; one that is zero but for rounding, at the scale of the largest."""
    scale = max((float(x.abs().max()) for x in a if x.numel()), default=0.0)
    return len(a) == len(b) and all(
        x.shape == y.shape
        and (not x.numel() or float((x - y).abs().max()) <= _ROUNDING * scale or is_close(x, y, at_least=_TOLERANCE))
        for x, y in zip(a, b, strict=True)
    )


def _are_close(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(is_close(x, y, at_least=_TOLERANCE) for x, y in zip(a, b, strict=True))


@contextmanager
def _prepared(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, random numbers in the place of zeros, and everything as it was afterwards."""
    with ExitStack() as after:
        for snapshot in (RandomState(model), Buffers(model), Modes(model)):
            after.callback(snapshot.restore)
        after.enter_context(fast_paths.disabled())
        zeros = [p for p in model.parameters() if p.is_floating_point() and not bool(p.detach().any())]
        after.callback(_zero, zeros)
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in zeros:
                parameter.normal_(std=0.1)
        model.eval()
        yield


@torch.no_grad()
def _zero(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.zero_()


def refused_layers(cuts: Sequence[Cut], kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the layers of the groups of some kinds, each with the reason of its kind."""
    return {
        name: kinds[kind_of(c.group.name)] for c in cuts if kind_of(c.group.name) in kinds for name in c.group.members
    }
