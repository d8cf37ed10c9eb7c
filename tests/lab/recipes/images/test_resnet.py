"""The network for 32×32 images: its size, its shapes, its graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

from partialsgd.lab.recipes.images.resnet import BasicBlock, resnet, resnet18


def test_resnet18_has_the_parameters_of_the_cifar_network() -> None:
    assert sum(p.numel() for p in resnet18().parameters()) == 11_173_962
    assert sum(p.numel() for p in resnet18(classes=100).parameters()) == 11_173_962 + 90 * 513


@pytest.mark.parametrize("width", [64, 32])
def test_the_stem_keeps_the_resolution_and_each_later_stage_halves_it(width: int) -> None:
    model, shapes = resnet18(classes=7, width=width), []
    for module in (model.bn1, *model.stages, model.pool):
        module.register_forward_hook(lambda m, i, o: shapes.append(tuple(o.shape[1:])))
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 7)
    stages = [(width * 2**k, 32 // 2**k, 32 // 2**k) for k in range(4)]
    assert shapes == [stages[0], *stages, (8 * width, 1, 1)]


def test_the_shortcut_is_the_identity_except_where_the_shape_changes() -> None:
    blocks = {name: m for name, m in resnet((3, 4, 6, 3), width=2).named_modules() if isinstance(m, BasicBlock)}
    changed = {name for name, block in blocks.items() if not isinstance(block.shortcut, nn.Identity)}
    assert len(blocks) == 16 and changed == {"stages.1.0", "stages.2.0", "stages.3.0"}


def test_the_block_adds_its_input_before_the_last_relu() -> None:
    block, x = BasicBlock(4, 4, stride=1), torch.randn(2, 4, 8, 8)
    nn.init.zeros_(block.bn2.weight)
    assert torch.equal(block(x), x.clamp(min=0))


def test_it_is_traced_to_the_same_function_at_any_batch_size_and_changes_nothing_in_place() -> None:
    model = resnet((1, 2), width=4, channels=1).eval()
    traced = symbolic_trace(model)
    for n in (1, 3):
        images = torch.randn(n, 1, 32, 32)
        assert torch.equal(traced(images), model(images))
    assert not any(node.kwargs.get("inplace") for node in traced.graph.nodes)
    assert not any(getattr(m, "inplace", False) for m in model.modules())


def test_without_norms_the_signal_neither_dies_nor_grows_on_the_way() -> None:
    """With weights as torch draws them a twentieth is left at the end of ResNet-18."""
    torch.manual_seed(0)
    model, sizes = resnet((2, 2, 2, 2), width=16, norm=False), []
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    for module in (model.bn1, *model.stages):
        module.register_forward_hook(lambda m, i, o: sizes.append(float(o.square().mean().sqrt())))
    with torch.no_grad():
        model(torch.randn(8, 3, 32, 32))
    assert len(sizes) == 5 and all(sizes[0] / 2 < size < 2 * sizes[0] for size in sizes)


def test_without_norms_it_has_the_same_weights_by_name() -> None:
    normed, bare = (resnet((1, 2), 4, norm=norm).state_dict() for norm in (True, False))
    assert bare.keys() == {name for name in normed if "bn" not in name and "shortcut.1" not in name}


def test_a_stage_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 1 in each stage, got \(2, 0\)"):
        resnet((2, 0))
