"""The network for 32×32 images: its size, its shapes, its graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

import partialsgd as ps
from partialsgd.lab.recipes.images.flops import ImageFlops, passes_per_step
from partialsgd.lab.recipes.images.resnet import BasicBlock, resnet, resnet18
from partialsgd.lab.training.method_text import parse_method
from partialsgd.nested import Nested
from partialsgd.nested.inspect.flops import count, paper_epoch_flops
from partialsgd.nested.specs import Spec


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
    normed, bare = (resnet((1, 2), 4, norm=norm).state_dict() for norm in (True, False))
    assert bare.keys() == {name for name in normed if "bn" not in name and "shortcut.1" not in name}


SPECS = {
    "width": ps.Width(1 / 2),
    "hierarchy": ps.Width((1 / 4, 1 / 2)),
    "low-rank": ps.LowRank(1 / 2, init="zero"),
    "depth": ps.Depth(("stages.0", "stages.1"), keep=0.5),
}


def family(spec: Spec = SPECS["width"]) -> Nested:
    torch.manual_seed(0)
    return ps.nest(resnet((2, 2), 4, channels=1), spec)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_batch_costs_what_torch_counts_for_it(spec: Spec) -> None:
    network = family(spec)
    work, before = ImageFlops(network, (1, 8, 8)), [module.training for module in network.modules()]
    for level in network.levels:
        for images in (3, 40):
            with network.at(level):
                counted = count(network.model, torch.randn(images, 1, 8, 8))
            assert work.training(level, images) == counted.training
        with network.at(level):
            assert work.multiply_adds(level) == count(network.model.eval(), torch.randn(1, 1, 8, 8)).multiply_adds
            network.train()
    assert [module.training for module in network.modules()] == before


def test_one_image_is_counted_where_batch_norm_refuses_to_train_on_it() -> None:
    network = ps.nest(resnet((1, 1, 1, 1), 2, channels=1), ps.Width(1 / 2))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        network(torch.randn(1, 1, 8, 8))
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    assert 0 < ImageFlops(network, (1, 8, 8)).training("core", 2) < ImageFlops(network, (1, 8, 8)).training("full", 2)
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("alternating", {"core": 0.5, "full": 0.5}),
        ("alternating(order=['full', 'core', 'core', 'core'])", {"core": 0.75, "full": 0.25}),
        ("slimmable", {"core": 1.0, "full": 1.0}),
        ("only('core')", {"core": 1.0}),
        ("plain", {"full": 1.0}),
        ("sam", {"full": 2.0}),
        ("top_k", {"full": 1.0}),
        ("dropout", {"full": 1.0}),
        ("compose(alternating, sam)", {"core": 1.0, "full": 1.0}),
    ],
)
def test_how_often_a_method_runs_each_level(method: str, expected: dict[str, float]) -> None:
    network = family()
    assert passes_per_step(parse_method(method), network, seed=0) == expected


def test_an_epoch_is_the_sum_over_its_batches() -> None:
    network = family()
    work = ImageFlops(network, (1, 8, 8))
    rows: list[dict[str, Any]] = work.epoch({"core": 0.5, "full": 0.5}, [3, 3, 4])
    assert [row["an epoch of"] for row in rows] == ["core", "full", "the method"]
    core, full, method = rows
    assert core["torch"] == work.training("core", 10) and full["torch"] == work.training("full", 10)
    assert method["torch"] == (core["torch"] + full["torch"]) / 2
    one = [work.multiply_adds(level) for level in network.levels]
    assert method["paper"] == paper_epoch_flops(one, every_batch=False, images=10)
    assert work.epoch({"core": 1.0, "full": 1.0}, [10])[-1]["paper"] == paper_epoch_flops(
        one, every_batch=True, images=10
    )


def test_the_papers_table_3() -> None:
    """31.3e12 FLOPs an epoch of 45,000 images for alternating training, 62.7e12 for slimmable training."""
    network = ps.nest(resnet18(), ps.Width(1 / 2))
    work = ImageFlops(network, (3, 32, 32))
    found = [
        float(work.epoch(passes_per_step(parse_method(method), network, 0), [45_000])[-1]["paper"])
        for method in ("alternating", "slimmable")
    ]
    assert [f"{flops / 1e12:.1f}" for flops in found] == ["31.3", "62.7"]


def test_a_block_adds_its_input_before_the_last_relu_as_it_is_where_the_shape_stays() -> None:
    block, x = BasicBlock(4, 4, stride=1), torch.randn(2, 4, 8, 8)
    nn.init.zeros_(block.bn2.weight)
    assert torch.equal(block(x), x.clamp(min=0))
    blocks = {name: m for name, m in resnet((3, 4, 6, 3), width=2).named_modules() if isinstance(m, BasicBlock)}
    changed = {name for name, block in blocks.items() if not isinstance(block.shortcut, nn.Identity)}
    assert len(blocks) == 16 and changed == {"stages.1.0", "stages.2.0", "stages.3.0"}
    with pytest.raises(ValueError, match=r"at least 1 in each stage, got \(2, 0\)"):
        resnet((2, 0))
