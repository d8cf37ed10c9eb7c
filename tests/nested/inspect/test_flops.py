"""FLOPs against formulas by hand, and the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from partialsgd.lab.recipes.images.resnet import resnet18
from partialsgd.nested.inspect.flops import Flops, count, paper_epoch_flops

IMAGE = torch.zeros(1, 3, 32, 32)


class Calls(nn.Module):
    """A function as a module, with one parameter of its own."""

    def __init__(self, function: Callable[..., object], *shape: int) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.ones(shape)), function

    def forward(self, *args: Tensor) -> object:
        return self.function(self.weight, *args)


def test_linear_is_two_for_a_multiply_add_and_its_bias_is_nothing() -> None:
    flops = 2 * 5 * 3 * 7
    assert count(nn.Linear(3, 7), torch.ones(5, 3)) == Flops(flops, 2 * flops, flops // 2)


@pytest.mark.parametrize(("stride", "groups", "side"), [(1, 1, 8), (2, 1, 4), (1, 2, 8)])
def test_convolution_is_kernel_by_channels_of_its_group_by_output(stride: int, groups: int, side: int) -> None:
    model = nn.Conv2d(4, 6, 3, stride, padding=1, groups=groups)
    flops = 2 * 5 * 6 * side**2 * 9 * 4 // groups
    assert count(model, torch.ones(5, 4, 8, 8)).forward == flops


def test_training_is_three_forwards_less_the_gradient_of_the_input() -> None:
    n, a, b, c = 5, 3, 7, 2
    flops = count(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c)), torch.ones(n, a))
    assert flops.forward == 2 * n * (a * b + b * c)
    assert flops.training == 3 * flops.forward - 2 * n * a * b


def test_a_frozen_first_layer_costs_its_forward_only() -> None:
    n, a, b, c = 5, 3, 7, 2
    model = nn.Sequential(nn.Linear(a, b), nn.Linear(b, c))
    model[0].requires_grad_(False)
    assert count(model, torch.ones(n, a)).training == 2 * n * a * b + 2 * (2 * n * b * c)
    flops = count(model.requires_grad_(False), torch.ones(n, a))
    assert flops.training == flops.forward


def test_every_output_is_differentiated_and_a_parameter_left_out_of_the_pass_is_no_error() -> None:
    model = Calls(lambda w, x: {"loss": (x @ w, [(x @ w).long()]), "again": x @ w, "text": "abc"}, 3, 7)
    model.unused = nn.Linear(2, 2)
    flops = count(model, torch.ones(5, 3))
    assert flops.forward == 3 * 2 * 5 * 3 * 7
    assert flops.training == flops.forward + 2 * 2 * 5 * 3 * 7, "not of the integers"


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_two_an_element_in_the_papers_count_and_nothing_in_torchs(training: bool) -> None:
    assert count(nn.BatchNorm2d(4).train(training), torch.ones(5, 4, 8, 8)) == Flops(0, 0, 2 * 5 * 4 * 8 * 8)
    without = nn.BatchNorm1d(4, affine=False, track_running_stats=False).train(training)
    assert count(without, torch.ones(5, 4)).multiply_adds == 2 * 5 * 4


def test_attention_is_counted_without_a_gpu() -> None:
    n, heads, length, d = 2, 3, 5, 4
    model = Calls(lambda w, x: scaled_dot_product_attention(w * x, w * x, w * x), d)
    flops = count(model, torch.ones(n, heads, length, d))
    assert flops.forward == 2 * (2 * n * heads * length**2 * d)
    assert flops.training == 3 * flops.forward


def test_resnet18_on_one_image_has_the_papers_multiply_adds() -> None:
    whole, half = count(resnet18(), IMAGE), count(resnet18(width=32), IMAGE)
    assert f"{whole.multiply_adds / 1e6:.2f}" == "556.65" and f"{half.multiply_adds / 1e6:.2f}" == "139.91"
    # Without the BatchNorms, those of the shortcuts among them, the paper's digits do not come out.
    assert whole.multiply_adds - whole.forward // 2 == 2 * 614_400
    levels = [whole.multiply_adds, half.multiply_adds]
    assert f"{paper_epoch_flops(levels, every_batch=True) / 1e12:.1f}" == "62.7"
    assert f"{paper_epoch_flops(levels, every_batch=False) / 1e12:.1f}" == "31.3"


def test_an_epoch_of_one_level_is_the_same_however_the_levels_take_turns() -> None:
    assert paper_epoch_flops([7], every_batch=True) == paper_epoch_flops([7], every_batch=False) == 2 * 7 * 45_000
    with pytest.raises(ValueError, match="multiply_adds_per_level is empty"):
        paper_epoch_flops([], every_batch=True)


def test_counting_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    model[1].eval()
    model.append(nn.BatchNorm1d(2))
    model[0].weight.grad = gradient = torch.full((4, 3), 7.0)
    before, modes = {k: v.clone() for k, v in model.state_dict().items()}, [m.training for m in model.modules()]
    random = torch.get_rng_state()

    count(model, torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))

    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert model[0].weight.grad is gradient and bool((gradient == 7).all())
    assert all(p.grad is None for name, p in model.named_parameters() if name != "0.weight")


def test_a_pass_that_fails_leaves_no_trace_either() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(4, 2))
    random = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        count(model, torch.ones(5, 3))
    assert torch.equal(torch.get_rng_state(), random) and int(model[0].num_batches_tracked) == 0


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_the_gradient_is_counted_where_gradients_are_off(off: Callable[[], torch.no_grad]) -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), torch.ones(5, 3)
    expected = count(model, x)
    with off():
        assert count(model, x) == expected
