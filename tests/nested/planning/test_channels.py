"""Which channels go together, as a trace of the network tells."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partialsgd import Width, nest
from partialsgd.nested.layers.narrow import NarrowLayer
from partialsgd.nested.planning.channels import channel_groups
from partialsgd.nested.planning.groups import UnitGroup
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.switch import Switch
from tests.nested.checks import assert_one_function, shaken, untouched
from tests.zoo import normal, resnet18


def groups(model: nn.Module) -> list[UnitGroup]:
    return channel_groups(NestPlan(model, Switch(("core", "full"))))


def as_sets(found: list[UnitGroup]) -> list[tuple[int, set[str], set[str], set[str]]]:
    return [(g.units, {p.name for p in g.producers}, set(g.consumers), set(g.norms)) for g in found]


def test_residual_sums_of_resnet18_join_what_they_add() -> None:
    found = as_sets(groups(resnet18(width=4)))
    stem = (
        4,
        {"conv1", "stages.0.0.conv2", "stages.0.1.conv2"},
        {"stages.0.0.conv1", "stages.0.1.conv1", "stages.1.0.conv1", "stages.1.0.shortcut.0"},
        {"bn1", "stages.0.0.bn2", "stages.0.1.bn2"},
    )
    top = (
        32,
        {"stages.3.0.conv2", "stages.3.0.shortcut.0", "stages.3.1.conv2"},
        {"stages.3.1.conv1", "fc"},
        {"stages.3.0.bn2", "stages.3.0.shortcut.1", "stages.3.1.bn2"},
    )
    inner = [
        (4 * 2**s, {f"stages.{s}.{b}.conv1"}, {f"stages.{s}.{b}.conv2"}, {f"stages.{s}.{b}.bn1"})
        for s in range(4)
        for b in range(2)
    ]
    assert stem in found and top in found and all(group in found for group in inner)
    assert len(found) == 8 + 4
    layers = [name for _, makers, _, _ in found for name in makers]
    assert sorted(layers) == sorted(n for n, m in resnet18(width=4).named_modules() if isinstance(m, nn.Conv2d))


class Net(nn.Module):
    """Layers a, b, c of four channels and a forward that is given."""

    def __init__(self, run: Callable[[Net, Tensor], Tensor], **others: nn.Module) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.c = nn.Linear(4 * 16, 2)
        for name, module in others.items():
            self.add_module(name, module)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


IMAGES = normal(3, 3, 4, 4)

UNDERSTOOD: dict[str, Net] = {
    "flatten": Net(lambda m, x: m.c(torch.flatten(F.relu(m.b(m.a(x))), 1))),
    "flatten by name": Net(lambda m, x: m.c(torch.flatten(m.b(m.a(x)), start_dim=1))),
    "method": Net(lambda m, x: m.c(m.b(m.a(x).relu()).flatten(1))),
    "module": Net(lambda m, x: m.c(m.flat(m.b(m.act(m.a(x))))), flat=nn.Flatten(), act=nn.GELU()),
    "pooled": Net(
        lambda m, x: m.d(F.max_pool2d(m.pool(m.b(m.a(x))), 2).mean((2, 3))), pool=nn.AvgPool2d(2), d=nn.Linear(4, 2)
    ),
    "mean by name": Net(lambda m, x: m.d(m.b(m.a(x)).mean(dim=(-2, -1))), d=nn.Linear(4, 2)),
    "pooled and flat": Net(lambda m, x: m.d(F.avg_pool2d(m.b(m.a(x)), 2).flatten(1)), d=nn.Linear(16, 2)),
    "residual": Net(lambda m, x: m.c(_residual(m, x).flatten(1))),
    "in place": Net(lambda m, x: m.c(_in_place(m, x).flatten(1))),
    "two heads": Net(lambda m, x: _heads(m, x), d=nn.Linear(4, 2)),
    "scalar added": Net(lambda m, x: m.c((m.b(m.a(x)) + 1).flatten(1))),
    "dropout": Net(lambda m, x: m.c(F.dropout(m.drop(m.b(m.a(x))), 0.0).flatten(1)), drop=nn.Dropout2d(0.0)),
    "upsampled": Net(lambda m, x: m.d(F.interpolate(m.b(m.a(x)), scale_factor=2.0).mean([2, 3])), d=nn.Linear(4, 2)),
    "normalised": Net(lambda m, x: m.c(m.bn(m.b(m.a(x))).flatten(1)), bn=nn.BatchNorm2d(4)),
    "inputs normalised": Net(lambda m, x: m.c(m.b(m.a(m.bn(x))).flatten(1)), bn=nn.BatchNorm2d(3)),
    "inputs changed": Net(lambda m, x: m.c(m.b(m.a(torch.sin(x) * 2)).flatten(1))),
}  # fmt: skip


def _residual(m: Net, x: Tensor) -> Tensor:
    first = m.a(x)
    return torch.add(first, F.relu(m.b(first)))


def _in_place(m: Net, x: Tensor) -> Tensor:
    first = m.a(x)
    second = m.b(first).clone()
    second += first
    return second


def _heads(m: Net, x: Tensor) -> Tensor:
    first = m.a(x)
    y: Tensor = m.c(m.b(first).flatten(1)) + m.d(first.mean((2, 3)))
    return y


@pytest.mark.parametrize(("name", "order"), [*((name, "norm") for name in UNDERSTOOD), ("residual", "first")])
def test_what_keeps_channels_apart_is_understood_and_every_level_is_one_function(name: str, order: str) -> None:
    model = shaken(copy.deepcopy(UNDERSTOOD[name]))
    before = copy.deepcopy(model)
    nested = nest(model, Width((1 / 4, 3 / 4), order=order), norms="shared")
    assert_one_function(before, nested, {"x": IMAGES})
    assert isinstance(model.a, NarrowLayer) and isinstance(model.b, NarrowLayer)


NOT_UNDERSTOOD: dict[str, tuple[Net, str]] = {
    "view": (Net(lambda m, x: m.c(m.b(m.a(x)).view(-1, 64))), "view"),
    "reshape": (Net(lambda m, x: m.c(m.b(m.a(x)).reshape(3, -1))), "reshape"),
    "cat": (Net(lambda m, x: m.d(torch.cat([m.a(x), m.a(x)], 1).flatten(1)), d=nn.Linear(128, 2)), "runs twice"),
    "cat of two": (
        Net(lambda m, x: m.d(torch.cat([m.a(x), m.e(x)], 1).flatten(1)), d=nn.Linear(128, 2), e=nn.Conv2d(3, 4, 1)),
        "cat",
    ),
    "product": (Net(lambda m, x: m.c((m.b(m.a(x)) * 2).flatten(1))), "mul"),
    "softmax": (Net(lambda m, x: m.c(m.b(m.a(x)).softmax(1).flatten(1))), "softmax"),
    "mean over channels": (Net(lambda m, x: m.d(m.b(m.a(x)).mean(1).flatten(1)), d=nn.Linear(16, 2)), "mean"),
    "flatten all": (Net(lambda m, x: m.d(m.b(m.a(x)).flatten(0)), d=nn.Linear(192, 2)), "flatten"),
    "group norm": (Net(lambda m, x: m.c(m.n(m.b(m.a(x))).flatten(1)), n=nn.GroupNorm(2, 4)), "'n', a GroupNorm"),
    "prelu": (Net(lambda m, x: m.c(m.n(m.b(m.a(x))).flatten(1)), n=nn.PReLU(4)), "'n', a PReLU"),
    "grouped": (Net(lambda m, x: m.c(m.n(m.b(m.a(x))).flatten(1)), n=nn.Conv2d(4, 4, 1, groups=4)), "'n'.*grouped"),
    "transposed": (
        Net(lambda m, x: m.c(m.n(m.b(m.a(x))).flatten(1)), n=nn.ConvTranspose2d(4, 4, 1)), "'n', a ConvTranspose2d",
    ),
    "twice": (Net(lambda m, x: m.c(m.b(m.b(m.a(x))).flatten(1))), "'b', which runs twice"),
    "one norm for two": (
        Net(lambda m, x: m.c(m.n(m.b(m.n(m.a(x)))).flatten(1)), n=nn.BatchNorm2d(4)), "'n', which runs twice",
    ),
    "norm of the flattened": (
        Net(lambda m, x: m.c(m.n(m.b(m.a(x)).flatten(1))), n=nn.BatchNorm1d(64)), "'n', which normalises",
    ),
    "sum that broadcasts": (
        Net(lambda m, x: m.c((m.b(m.a(x)) + m.one(x)).flatten(1)), one=nn.Conv2d(3, 1, 1)), "sum of the outputs of",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_UNDERSTOOD)
def test_what_is_not_understood_is_named_and_the_model_untouched(name: str) -> None:
    net, what = NOT_UNDERSTOOD[name]
    model = copy.deepcopy(net).double()
    model(IMAGES)  # it is a network, only not one that is understood
    with untouched(model), pytest.raises(ValueError, match=f"cannot tell which hidden units .*{what}.*hidden="):
        nest(model, Width(1 / 2))


def test_a_flattened_sequence_is_no_flattened_image() -> None:
    """Its units lie within each place: to cut the first inputs would be to cut the first places."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 3))
    assert model(torch.randn(2, 5, 6)).shape == (2, 3)
    with untouched(model), pytest.raises(ValueError, match="'3', which takes 40 inputs of 8 units"):
        nest(model, Width(1 / 2))


@pytest.mark.parametrize("start", [0, 2])
def test_a_flatten_module_that_does_not_begin_at_the_channels(start: int) -> None:
    """Flatten(2) keeps channels but makes a sequence of them, on whose last dimension a linear layer works."""
    head = nn.Linear(16, 2) if start == 2 else nn.Linear(192, 2)
    net = Net(lambda m, x: m.d(m.flat(m.b(m.a(x)))), flat=nn.Flatten(start), d=head).double()
    assert net(IMAGES).shape == ((3, 4, 2) if start == 2 else (2,))
    with untouched(net), pytest.raises(ValueError, match="cannot tell"):
        nest(net, Width(1 / 2))


def test_a_model_that_cannot_be_traced_is_named() -> None:
    model = Net(lambda m, x: m.c(m.b(m.a(x)).flatten(1)) if x.sum() > 0 else m.c(m.a(x).flatten(1)))
    with (
        untouched(model),
        pytest.raises(ValueError, match=r"no hidden units in Net: .* cannot trace it .*hidden="),
    ):
        nest(model, Width(1 / 2))


def test_what_is_added_to_an_input_keeps_all_of_its_channels() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 5, 1), nn.Conv2d(5, 3, 1), nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.b(torch.relu(self.a(x)))
            return x + self.c(x)

    assert as_sets(groups(Residual())) == [(5, {"a"}, {"b"}, set())]
    model = shaken(Residual())
    before = copy.deepcopy(model)
    assert_one_function(before, nest(model, Width(2 / 5, order="norm")), {"x": IMAGES})


def test_an_output_and_a_parameter_keep_all_of_their_channels_too() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.shift = nn.Linear(3, 4), nn.Linear(4, 4), nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.a(x) + self.shift
            return hidden, self.b(hidden)

    with pytest.raises(ValueError, match="Shifted has no hidden units that could be fewer"):
        groups(Shifted())
