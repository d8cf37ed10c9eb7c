"""The fused step in pieces is the fused step, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from partialsgd._util.bitwise_select import over_rows
from partialsgd.optimizers.fused_adam import Piecewise, is_piecewise

SHAPES = [(1 << 16, 1), (300, 257), (3, 1 << 16), (5, 7)]
MAKES = {
    "Adam": lambda p: optim.Adam(p, 0.01, fused=True),
    "Adam amsgrad wd": lambda p: optim.Adam(p, 0.01, amsgrad=True, weight_decay=0.1, fused=True),
    "AdamW maximize": lambda p: optim.AdamW(p, 0.01, maximize=True, fused=True),
}


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(s, generator=torch.Generator().manual_seed(k))) for k, s in enumerate(SHAPES)]


def gradients(t: int) -> list[torch.Tensor]:
    return [torch.randn(s, generator=torch.Generator().manual_seed(100 * t + k)) for k, s in enumerate(SHAPES)]


@pytest.mark.parametrize("rows", [False, True], ids=["elements", "rows"])
@pytest.mark.parametrize("name", MAKES)
def test_inside_is_the_whole_step_and_outside_is_untouched(name: str, rows: bool) -> None:
    ours, whole = parameters(), parameters()
    optimizers = [MAKES[name](ours), MAKES[name](whole)]
    for t in range(3):
        masks = [torch.rand(s, generator=torch.Generator().manual_seed(7 * t + k)) < 0.6 for k, s in enumerate(SHAPES)]
        masks = [over_rows(m[:, 0].contiguous(), m.shape) for m in masks] if rows else masks
        for group in (ours, whole):
            for p, g in zip(group, gradients(t), strict=True):
                p.grad = g
        before = [_tensors(optimizers[1], p) for p in whole]
        optimizers[1].step()
        with Piecewise({p: m for p, m in zip(ours[:3], masks, strict=False)}):  # the last one is not masked
            optimizers[0].step()
        for k, (p, q) in enumerate(zip(ours, whole, strict=True)):
            for key, value in _tensors(optimizers[1], q).items():
                mask = masks[k] if k < 3 else torch.ones(SHAPES[k], dtype=torch.bool)
                old = before[k].get(key, torch.zeros_like(value))
                with torch.no_grad():
                    _now(optimizers[1], q, key).copy_(torch.where(mask, value, old))
                assert torch.equal(_now(optimizers[0], p, key), _now(optimizers[1], q, key)), f"{key} of {k} at {t}"


def _tensors(optimizer: optim.Optimizer, p: nn.Parameter) -> dict[str, torch.Tensor]:
    state = {k: v.clone() for k, v in optimizer.state.get(p, {}).items() if v.shape == p.shape}
    return {"": p.detach().clone(), **state}


def _now(optimizer: optim.Optimizer, p: nn.Parameter, key: str) -> torch.Tensor:
    return p.detach() if key == "" else optimizer.state[p][key]


def test_only_large_contiguous_float32_parameters_of_a_fused_adam_go_in_pieces() -> None:
    large = nn.Parameter(torch.zeros(300, 300))
    large.grad = torch.zeros(300, 300)
    fused, plain = optim.Adam([large], fused=True), optim.Adam([large])
    sgd = optim.SGD([large], 0.1, momentum=0.9, fused=True)
    assert is_piecewise(fused, fused.param_groups[0], large)
    assert not is_piecewise(plain, plain.param_groups[0], large)
    assert not is_piecewise(sgd, sgd.param_groups[0], large), "its first momentum is not read but written"
    for other in (torch.zeros(9), torch.zeros(300, 300).double(), torch.zeros(300, 600)[:, ::2]):
        other.grad = torch.zeros_like(other)
        assert not is_piecewise(fused, fused.param_groups[0], other)
    large.grad = torch.zeros(300, 600)[:, ::2]
    assert not is_piecewise(fused, fused.param_groups[0], large), "a gradient with holes"
    large.grad = torch.zeros(300, 300)
    hook = fused.register_step_post_hook(lambda *_: None)
    assert not is_piecewise(fused, fused.param_groups[0], large), "a hook may move what the kernel does not"
    hook.remove()
    mine = type("MyAdam", (optim.Adam,), {})([large], fused=True)
    assert not is_piecewise(mine, mine.param_groups[0], large), "a subclass may do anything"
