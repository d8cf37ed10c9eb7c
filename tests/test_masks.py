"""Masks: what they say, how they combine, what they refuse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from partialsgd import Mask, masks
from partialsgd.testing.problems import Tied


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


SHAPES = {name: p.shape for name, p in net().named_parameters()}


@st.composite
def entries(draw) -> dict[str, bool | torch.Tensor]:
    def one(shape):
        kind = draw(st.sampled_from(["all", "none", "some"]))
        seed = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        return {"all": True, "none": False, "some": torch.rand(shape, generator=seed) < 0.5}[kind]

    return {name: one(shape) for name, shape in SHAPES.items()}


def dense(mask: Mask) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(mask[name]).expand(shape).clone() for name, shape in SHAPES.items()}


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(entries(), entries())
def test_masks_combine_as_sets_of_coordinates(a: dict, b: dict) -> None:
    model = net()
    p, q = masks.from_tensors(model, a), masks.from_tensors(model, b)
    for name in SHAPES:
        x, y = dense(p)[name], dense(q)[name]
        assert torch.equal(dense(p & q)[name], x & y)
        assert torch.equal(dense(p | q)[name], x | y)
        assert torch.equal(dense(~p)[name], ~x)
        assert torch.equal(dense(p.simplified())[name], x)
    assert p.count() == sum(int(m.sum()) for m in dense(p).values())
    assert p.count() + (~p).count() == masks.everything(model).count() == 11
    for entry in p.simplified().partial.values():
        assert 0 < int(entry.sum()) < entry.numel()


def test_builders() -> None:
    model = net()
    assert masks.everything(model).is_everything and masks.nothing(model).count() == 0
    assert masks.only(model, ["0"]).count() == 8
    assert masks.only_parameters(model, [model[1].bias]).count() == 1
    assert masks.from_tensors(model, {"0.bias": torch.tensor([True, False])}, rest=True).count() == 10
    assert "10 of 11" in repr(masks.from_tensors(model, {"0.bias": torch.tensor([True, False])}, rest=True))


def test_true_means_moves() -> None:
    model = net()
    mask = masks.only(model, ["0.bias"])
    assert mask["0.bias"] is True and mask["1.bias"] is False


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        ({"0.bias": torch.ones(2)}, TypeError, r"'0\.bias' must be boolean, got torch.float32"),
        ({"0.bias": torch.ones(3, dtype=torch.bool)}, ValueError, r"'0\.bias' has shape \(3,\), the parameter \(2,\)"),
        ({"0.bias": 1}, TypeError, r"'0\.bias' must be True, False or a boolean tensor, got 1"),
        ({"0.baas": True}, KeyError, r"0\.bias"),
    ],
)
def test_what_is_not_a_mask_is_named(entries, error, message) -> None:
    with pytest.raises(error, match=message):
        masks.from_tensors(net(), entries)


def test_a_foreign_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(5,\)"):
        masks.only_parameters(net(), [nn.Parameter(torch.zeros(5))])


def test_a_mask_may_not_say_two_things_of_a_tied_parameter() -> None:
    model = Tied()
    with pytest.raises(ValueError, match=r"'embedding\.weight' and 'head\.weight' are one tied parameter"):
        masks.from_tensors(model, {"embedding.weight": True, "head.weight": False})
    some = torch.zeros(11, 8, dtype=torch.bool)
    mask = masks.from_tensors(model, {"embedding.weight": some, "head.weight": some.clone()})
    assert mask["head.weight"] is mask["embedding.weight"]
