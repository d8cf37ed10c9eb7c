"""Products with blocks of a weight: equal to the joined weight's, without a copy, wherever the blocks have gone."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

from partialsgd.nested.layers.axes import Axis
from partialsgd.nested.layers.blocks import is_packed, sum_over_columns
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.layers.narrow import NarrowLayer
from partialsgd.nested.switch import Switch

SIZES = {"a": 2, "b": 5}
LEVELS = (*SIZES, "full")


def row_layer(layer: nn.Module | None = None) -> NarrowLayer:
    """A layer of 6 inputs and 7 outputs, of which the levels have 2, 5 and 7."""
    layer = nn.Linear(6, 7) if layer is None else layer
    linear = linear_map_of(layer)
    assert isinstance(linear, LinearMap)
    return NarrowLayer(layer, linear, Axis(7, SIZES), Axis(6), Switch(LEVELS))


def row_blocks(layer: NarrowLayer) -> list[nn.Parameter]:
    return layer.blocks("rows", len(LEVELS))


def gradients(layer: NarrowLayer, level: str) -> list[Tensor]:
    used = list(layer.members(level))
    with layer.switch.at(level):
        return list(torch.autograd.grad(layer(torch.ones(3, 6, dtype=used[0].dtype)).pow(2).sum(), used))


def joined_gradients(layer: NarrowLayer, level: str) -> list[Tensor]:
    """The definition: the same layer with blocks that lie anywhere, which are joined by torch.cat."""
    other = copy.deepcopy(layer)
    for block in row_blocks(other):
        block.data = block.data.clone()
    assert not is_packed(other._memory, row_blocks(other))
    return gradients(other, level)


@pytest.mark.parametrize("level", LEVELS)
def test_packed_rows_compute_the_bits_of_joined_rows(level: str) -> None:
    layer = row_layer()
    assert is_packed(layer._memory, row_blocks(layer))
    for ours, theirs in zip(gradients(layer, level), joined_gradients(layer, level), strict=True):
        assert torch.equal(ours, theirs)


def test_the_weight_of_every_level_is_a_view_and_so_is_the_gradient_of_every_block() -> None:
    layer = row_layer()
    blocks = row_blocks(layer)
    for level in LEVELS:
        assert layer.weight_at(level).data_ptr() == blocks[0].data_ptr(), "the blocks were copied"
    layer(torch.randn(3, 6)).sum().backward()
    storages = {block.grad.untyped_storage().data_ptr() for block in blocks if block.grad is not None}
    assert len(storages) == 1, "autograd copied the gradient into each block"
    assert len({block.untyped_storage().data_ptr() for block in blocks}) == 3, "savers would take blocks for tied"
    assert [block.untyped_storage().nbytes() for block in blocks] == [block.nbytes for block in blocks]


def _pickled(layer: NarrowLayer) -> NarrowLayer:
    file = io.BytesIO()
    torch.save(layer, file)
    assert len(file.getvalue()) < len(_saved(nn.ModuleList([layer, row_layer()]))), "the memory was saved too"
    file.seek(0)
    loaded: NarrowLayer = torch.load(file, weights_only=False)
    return loaded


def _saved(module: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(module, file)
    return file.getvalue()


def _assigned(layer: NarrowLayer) -> NarrowLayer:
    other = row_layer()
    other.load_state_dict({k: v.clone() for k, v in layer.state_dict().items()}, assign=True)
    return other


def _loaded(layer: NarrowLayer) -> NarrowLayer:
    other = row_layer()
    other.load_state_dict(layer.state_dict())
    return other


def _from_meta(layer: NarrowLayer) -> NarrowLayer:
    other = row_layer().to("meta").to_empty(device="cpu")
    other.load_state_dict(layer.state_dict())
    return other


MOVES: dict[str, Callable[[NarrowLayer], NarrowLayer]] = {
    "deepcopy": copy.deepcopy,
    "pickle": _pickled,
    "double": lambda layer: layer.double(),
    "to the same dtype": lambda layer: layer.float(),
    "load_state_dict": _loaded,
    "load_state_dict(assign=True)": _assigned,
    "meta and to_empty": _from_meta,
}


@pytest.mark.parametrize("move", MOVES)
def test_blocks_are_packed_again_after_a_move_and_keep_their_numbers(move: str) -> None:
    layer = row_layer()
    before = [block.detach().clone() for block in row_blocks(layer)]
    moved = MOVES[move](layer)
    blocks = row_blocks(moved)
    assert is_packed(moved._memory, blocks)
    assert all(torch.equal(a.to(b.dtype), b) for a, b in zip(before, blocks, strict=True))
    for ours, theirs in zip(gradients(moved, "full"), joined_gradients(moved, "full"), strict=True):
        assert torch.equal(ours, theirs)
    if moved is not layer:
        with torch.no_grad():
            blocks[0].zero_()
        assert all(torch.equal(a, b) for a, b in zip(before, row_blocks(layer), strict=True)), "a copy shares memory"


def test_channels_last_convolutions_stay_packed() -> None:
    layer = row_layer(nn.Conv2d(6, 7, 3)).to(memory_format=torch.channels_last)
    assert layer.rows0.is_contiguous(memory_format=torch.channels_last)
    assert is_packed(layer._memory, row_blocks(layer))
    torch.testing.assert_close(layer.weight, torch.cat(row_blocks(layer)))


def test_blocks_that_moved_away_are_joined() -> None:
    """Optimizers, sharding and users replace .data; the layer must use the numbers that the parameters have."""
    layer = row_layer()
    layer.get_parameter("rows1").data = torch.full((3, 6), 2.0)
    assert torch.equal(layer.weight[2:5], torch.full((3, 6), 2.0))
    layer.rows1 = nn.Parameter(torch.full((3, 6), 3.0))
    assert torch.equal(layer.weight[2:5], torch.full((3, 6), 3.0))
    shared = row_layer().share_memory()
    with torch.no_grad():
        shared.rows0.fill_(4.0)
    assert shared.rows0.is_shared() and torch.equal(shared.weight[:2], torch.full((2, 6), 4.0))


def test_a_weight_that_changes_between_forward_and_backward_is_refused() -> None:
    layer = row_layer()
    y = layer(torch.randn(3, 6, requires_grad=True))
    with torch.no_grad():
        layer.get_parameter("rows2").add_(1.0)
    with pytest.raises(RuntimeError, match="changed in place between forward and backward"):
        y.sum().backward()


def test_safetensors_and_accelerate_keep_every_block() -> None:
    from accelerate.utils.other import clean_state_dict_for_safetensors

    state = row_layer().state_dict()
    assert set(clean_state_dict_for_safetensors(dict(state))) == set(state)
    save(dict(state))


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_moves_packed_blocks_as_it_moves_joined_ones(fused: bool) -> None:
    layer = row_layer()
    plain = nn.Linear(6, 7)
    with torch.no_grad():
        plain.weight.copy_(layer.weight)
        plain.bias.copy_(layer.bias)
    optimizers = [torch.optim.AdamW(m.parameters(), 0.1, fused=fused, foreach=not fused) for m in (layer, plain)]
    for _ in range(3):
        x = torch.randn(4, 6)
        for module, optimizer in zip((layer, plain), optimizers, strict=True):
            optimizer.zero_grad()
            module(x).pow(2).sum().backward()
            optimizer.step()
    torch.testing.assert_close(layer.weight, plain.weight)
    assert is_packed(layer._memory, row_blocks(layer))


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", [(6,), (0, 6), (4, 6), (2, 3, 6)])
def test_the_sum_over_columns_is_the_joined_product_with_both_derivatives(
    shape: tuple[int, ...], has_bias: bool
) -> None:
    blocks = [nn.Parameter(torch.randn(5, n, dtype=torch.float64)) for n in (1, 3, 2)]
    bias = nn.Parameter(torch.randn(5, dtype=torch.float64)) if has_bias else None
    x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    leaves = [x, *blocks, *([bias] if bias is not None else [])]
    y, expected = sum_over_columns(x, blocks, bias), nn.functional.linear(x, torch.cat(blocks, 1), bias)
    torch.testing.assert_close(y, expected)
    mixture = torch.randn_like(y)
    ours, theirs = (torch.autograd.grad((o.pow(2) * mixture).sum(), leaves) for o in (y, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    if x.numel():
        assert torch.autograd.gradgradcheck(lambda x, *w: sum_over_columns(x, blocks, bias), (x, *blocks))


def test_second_derivatives_of_packed_rows() -> None:
    layer = row_layer().double()
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, *blocks: layer(x).pow(2), (x, *row_blocks(layer)))


def test_frozen_blocks_get_no_gradient() -> None:
    blocks = [nn.Parameter(torch.randn(5, n), requires_grad=n > 1) for n in (1, 3)]
    sum_over_columns(torch.randn(2, 4), blocks, None).sum().backward()
    assert blocks[0].grad is None and blocks[1].grad is not None


def test_autocast_computes_in_its_dtype() -> None:
    blocks = [nn.Parameter(torch.randn(5, n)) for n in (1, 3)]
    with torch.autocast("cpu", torch.bfloat16):
        assert sum_over_columns(torch.randn(2, 4), blocks, None).dtype == torch.bfloat16
        assert row_layer()(torch.randn(2, 6)).dtype == torch.bfloat16


def test_torch_func_sees_through_the_blocks() -> None:
    layer, blocks = row_layer(), [nn.Parameter(torch.randn(5, n)) for n in (2, 4)]
    x = torch.randn(4, 6)
    torch.testing.assert_close(torch.func.vmap(layer)(x), layer(x))
    torch.testing.assert_close(
        torch.func.vmap(lambda x: sum_over_columns(x, blocks, None))(x), sum_over_columns(x, blocks, None)
    )
