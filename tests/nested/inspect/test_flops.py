"""FLOPs against formulas by hand, and the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from partialsgd.lab.recipes.images.resnet import resnet18
from partialsgd.nested.inspect.flops import Flops, count, paper_epoch_flops
from tests.nested.checks import untouched

IMAGE = torch.zeros(1, 3, 32, 32)


class Calls(nn.Module):
    """A function as a module, with one parameter of its own."""

    def __init__(self, function: Callable[..., object], *shape: int) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.ones(shape)), function

    def forward(self, *args: Tensor) -> object:
        return self.function(self.weight, *args)


def two_layers(*, frozen: int) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 2))
    for layer in model[:frozen]:
        layer.requires_grad_(False)
    return model


LINEAR, FIRST, SECOND = 2 * 5 * 3 * 7, 2 * 5 * 3 * 7, 2 * 5 * 7 * 2
IMAGES, CONV = torch.ones(5, 4, 8, 8), 2 * 5 * 6 * 16 * 9 * 4
BY_HAND: dict[str, tuple[nn.Module, Tensor, Flops]] = {
    "a bias is nothing": (nn.Linear(3, 7), torch.ones(5, 3), Flops(LINEAR, 2 * LINEAR, LINEAR // 2)),
    "no gradient of the input": (
        two_layers(frozen=0), torch.ones(5, 3), Flops(FIRST + SECOND, 2 * FIRST + 3 * SECOND, (FIRST + SECOND) // 2),
    ),
    "first layer frozen": (
        two_layers(frozen=1), torch.ones(5, 3), Flops(FIRST + SECOND, FIRST + 2 * SECOND, (FIRST + SECOND) // 2),
    ),
    "all frozen": (two_layers(frozen=3), torch.ones(5, 3), Flops(*[FIRST + SECOND] * 2, (FIRST + SECOND) // 2)),
    "BatchNorm": (nn.BatchNorm2d(4), IMAGES, Flops(0, 0, 2 * 5 * 4 * 8 * 8)),
    "BatchNorm in evaluation": (nn.BatchNorm2d(4).eval(), IMAGES, Flops(0, 0, 2 * 5 * 4 * 8 * 8)),
    "BatchNorm without anything": (
        nn.BatchNorm1d(4, affine=False, track_running_stats=False), torch.ones(5, 4), Flops(0, 0, 2 * 5 * 4),
    ),
    "convolution": (nn.Conv2d(4, 6, 3, padding=1), IMAGES, Flops(4 * CONV, 8 * CONV, 2 * CONV)),
    "convolution of stride 2": (nn.Conv2d(4, 6, 3, 2, padding=1), IMAGES, Flops(CONV, 2 * CONV, CONV // 2)),
    "convolution of 2 groups": (  # torch's counter leaves the groups out of the gradient of the weight
        nn.Conv2d(4, 6, 3, padding=1, groups=2), IMAGES, Flops(2 * CONV, 6 * CONV, CONV),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_counts_are_those_by_hand_also_where_gradients_are_off(name: str) -> None:
    model, x, expected = BY_HAND[name]
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            assert count(model, x) == expected


def test_every_output_is_differentiated_and_a_parameter_left_out_of_the_pass_is_no_error() -> None:
    model = Calls(lambda w, x: {"loss": (x @ w, [(x @ w).long()]), "again": x @ w, "text": "abc"}, 3, 7)
    model.unused = nn.Linear(2, 2)
    flops = count(model, torch.ones(5, 3))
    assert flops.forward == 3 * LINEAR
    assert flops.training == flops.forward + 2 * LINEAR, "not of the integers"


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


def test_counting_leaves_no_trace_nor_does_a_pass_that_fails() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2), nn.BatchNorm1d(2))
    model[1].eval()
    model(torch.randn(5, 3)).square().sum().backward()
    with untouched(model):
        count(model, torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))
    model[3] = nn.Linear(5, 2)
    model.train()
    with untouched(model), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        count(model, torch.ones(5, 3))
