"""One level as a network of its own: a plain module, checked against the family before it is handed out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from partialsgd.nested import native
from partialsgd.nested.examples import Call, Example, tensors_of
from partialsgd.nested.layers import NestedModule
from partialsgd.nested.norms import warn_if_never_updated
from partialsgd.nested.switch import Switch
from partialsgd.replay import Buffers, RandomState

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def extract(model: nn.Module, level: str) -> nn.Module:
    """A copy of the model in which every nested module is the plain one of the level. Ties stay ties."""
    memo: dict[int, Any] = {}
    # Innermost first: a list of blocks, or a sum, copies what lies inside it.
    for module in reversed([m for m in model.modules() if isinstance(m, NestedModule)]):
        memo[id(module)] = module.plain(level, memo)
    plain: nn.Module = copy.deepcopy(model, memo)
    for part in plain.modules():
        _avoid_fast_path(part)
    for key, hook in list(plain._forward_hooks.items()):
        if isinstance(getattr(hook, "__self__", None), Switch):
            del plain._forward_hooks[key]
    plain.train(model.training)
    native.adopt(plain)
    warn_if_never_updated(plain, level)
    return plain


def check(model: nn.Module, plain: nn.Module, level: str, example: Example, theirs: Callable[[Call], Call]) -> None:
    """Run both on fresh inputs: two batch sizes, training and evaluation, with and without gradients."""
    random, modes = RandomState(model), [(module, module.training) for module in model.modules()]
    buffers = Buffers(model), Buffers(plain)
    generator = torch.Generator().manual_seed(0)
    try:
        for rows in (2, 3):
            call = example.drawn(rows, generator)
            for training in (True, False):
                for with_grad in (True, False):
                    model.train(training)
                    plain.train(training)
                    with torch.set_grad_enabled(with_grad):
                        expected = _run(model, call, rows)
                        _compare(expected, _run(plain, theirs(call), rows), level, training)
                    for saved in buffers:
                        saved.restore()
    finally:
        random.restore()
        for module, mode in modes:
            module.training = mode
        plain.train(model.training)
        for saved in buffers:
            saved.restore()


def _run(network: nn.Module, call: Call, seed: int) -> list[Tensor]:
    """Both networks see the same noise: their dropout has the same shapes."""
    torch.manual_seed(seed)
    args, kwargs = call
    return list(tensors_of(network(*args, **kwargs)))


def _compare(expected: list[Tensor], got: list[Tensor], level: str, training: bool) -> None:
    mode = "training" if training else "evaluation"
    if len(expected) != len(got):
        raise RuntimeError(
            f"the extracted level {level!r} has {len(got)} outputs in {mode}, the family {len(expected)}"
        )
    for a, b in zip(expected, got, strict=True):
        tolerance = _TOLERANCE.get(a.dtype, 1e-4)
        scale = a.detach().abs().nan_to_num(posinf=0).max() if a.numel() else a.new_zeros(())
        if a.shape != b.shape or not torch.allclose(
            a, b, rtol=tolerance, atol=float(tolerance * scale), equal_nan=True
        ):
            apart = "shapes differ" if a.shape != b.shape else f"they differ by {float((a - b).detach().abs().max()):.2g}"
            raise RuntimeError(
                f"the extracted level {level!r} does not compute what the family computes in {mode} ({apart}), "
                "so it is not handed out; a layer between nested ones may depend on their width"
            )


def _avoid_fast_path(module: nn.Module) -> None:
    """torch's Transformer layers read their children's weights in evaluation; two small layers have no one weight."""
    if isinstance(module, nn.TransformerEncoderLayer):
        if any(type(layer) is not nn.Linear for layer in (module.linear1, module.linear2)):
            module.activation_relu_or_gelu = 0
    elif isinstance(module, nn.TransformerEncoder):
        for layer in module.layers:
            _avoid_fast_path(layer)
            module.use_nested_tensor &= bool(getattr(layer, "activation_relu_or_gelu", 0))
