"""Each tensor once, and a fresh network gets all that a state dict does not say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd.export import states


class Tied(nn.Module):
    """An embedding that is also the output layer, a module under two names, and two sorts of buffers."""

    def __init__(self, *, tie: bool = True, width: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, width)
        self.inner = nn.Linear(width, width)
        self.again = self.inner
        self.head = nn.Linear(width, 6, bias=False)
        if tie:
            self.head.weight = self.embedding.weight
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.full((2,), 1 / 3), persistent=False)


def moved(source: nn.Module, target: nn.Module) -> nn.Module:
    states.fill(target, states.describe(source), states.stored(source))
    return target


def test_a_tied_tensor_is_stored_once_and_stays_tied() -> None:
    source = Tied()
    assert set(states.stored(source)) == {"embedding.weight", "inner.weight", "inner.bias", "count"}
    assert states.describe(source)["tied"] == {
        "again.weight": "inner.weight",
        "again.bias": "inner.bias",
        "head.weight": "embedding.weight",
    }
    target = moved(source, Tied())
    assert target.head.weight is target.embedding.weight
    assert all(torch.equal(value, target.state_dict()[name]) for name, value in source.state_dict().items())


@pytest.mark.parametrize(("saved", "given"), [(True, False), (False, True)])
def test_a_model_tied_otherwise_is_refused(saved: bool, given: bool) -> None:
    one, two = ("checkpoint", "model") if saved else ("model", "checkpoint")
    message = f"'head.weight' and 'embedding.weight' are one tensor in the {one} and two in the {two}"
    with pytest.raises(ValueError, match=message):
        moved(Tied(tie=saved), Tied(tie=given))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_are_those_that_were_saved(dtype: torch.dtype) -> None:
    source = Tied().to(dtype)
    source.inner.float()
    target = moved(source, Tied())
    assert target.head.weight is target.embedding.weight
    dtypes = (target.head.weight.dtype, target.inner.weight.dtype, target.count.dtype)
    assert dtypes == (dtype, torch.float32, torch.int64)
    assert torch.equal(target.scale, source.scale) and target.scale.dtype == dtype  # in no state dict, yet rounded


def test_the_first_difference_is_named() -> None:
    with pytest.raises(ValueError, match=r"'embedding.weight' is 6×5 in the model and 6×4 in the checkpoint"):
        moved(Tied(), Tied(width=5))
    with pytest.raises(ValueError, match=r"'1.weight' is in the checkpoint and not in the model"):
        moved(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match=r"'0.bias' is in the model and not in the checkpoint"):
        moved(nn.Sequential(nn.Linear(2, 2, bias=False)), nn.Sequential(nn.Linear(2, 2)))


def test_tensors_that_share_memory_come_apart() -> None:
    source = nn.Module()
    base = torch.arange(6.0).view(2, 3)
    source.register_buffer("rows", base[:1])
    source.register_buffer("all", base)
    source.register_buffer("columns", base.t())
    stored = states.stored(source)
    assert len({tensor.untyped_storage().data_ptr() for tensor in stored.values()}) == 3
    assert all(tensor.is_contiguous() and torch.equal(tensor, source.get_buffer(n)) for n, tensor in stored.items())


class WithMore(nn.Linear):
    def get_extra_state(self) -> object:
        return {"anything": 1}

    def set_extra_state(self, state: object) -> None:
        raise AssertionError


def test_what_is_no_tensor_or_has_no_values_is_refused() -> None:
    with pytest.raises(TypeError, match=r"'_extra_state' of the state dict is a dict.*nothing is pickled"):
        states.stored(WithMore(2, 2))
    with pytest.raises(ValueError, match="'weight' is on the meta device"):
        states.stored(nn.Linear(2, 2, device="meta"))
