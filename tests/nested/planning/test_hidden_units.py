"""Which units go together, as a run of the network tells: against truth that is written by hand."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partialsgd import Depth, Width, nest
from partialsgd.nested.example_inputs import as_example
from partialsgd.nested.layers.narrow import NarrowLayer
from partialsgd.nested.planning.dry_run import find_units
from partialsgd.nested.planning.groups import UnitGroup
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.switch import Switch
from tests.nested.checks import Auxiliary, assert_one_function, shaken, untouched
from tests.zoo import bert, encoder, llama, normal, resnet18, tokens


def groups(model: nn.Module) -> list[UnitGroup]:
    return find_units(NestPlan(model, Switch(("core", "full")))).feed_forward


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


PARTLY: dict[str, tuple[Net, str]] = {
    "a view of a fixed size": (Net(lambda m, x: m.c(m.b(m.a(x)).view(-1, 64))), "its code needs the full width"),
    "softmax": (Net(lambda m, x: m.c(m.b(m.a(x)).softmax(1).flatten(1))), "mixed by _softmax"),
    "mean over channels": (Net(lambda m, x: m.d(m.b(m.a(x)).mean(1).flatten(1)), d=nn.Linear(16, 2)), "mixed by mean"),
    "group norm": (
        Net(lambda m, x: m.c(m.n(m.b(m.a(x))).flatten(1)), n=nn.GroupNorm(2, 4)), "native_group_norm in 'n'",
    ),
    "not known": (Net(lambda m, x: m.c(torch.fft.fft(m.b(m.a(x)), dim=1).real.flatten(1))), "_fft_r2c"),
    "over a sequence": (Net(lambda m, x: m.d(m.b(m.a(x)).flatten(2)), d=nn.Linear(16, 2)), "addmm|mm"),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTLY)
def test_what_mixes_units_is_named_and_everything_else_is_narrowed(name: str) -> None:
    net, reason = PARTLY[name]
    model = shaken(copy.deepcopy(net))
    before = copy.deepcopy(model)
    nested = nest(model, Width(1 / 2, order="norm"), example=IMAGES)
    assert isinstance(model.a, NarrowLayer) and model.b.sizes_at("core") == (4, 2), "b takes fewer and makes all"
    assert re.search(reason, nested.skipped["b"]), nested.skipped
    assert nested.skipped["b"] in nested.summary() or "b" in nested.nested_by
    assert_one_function(before, nested, {"x": IMAGES})


NOTHING: dict[str, tuple[Net, str]] = {
    "two tensors in turns": (
        Net(lambda m, x: m.d(torch.stack([m.a(x), m.e(x)], 2).flatten(1)), d=nn.Linear(128, 2), e=nn.Conv2d(3, 4, 1)),
        "'d.weight' in an order",
    ),
    "parts that are not equally long": (
        Net(lambda m, x: m.d(m.g(x)[:, :2].flatten(1)) + m.e(m.g(x)[:, 2:].flatten(1)), g=nn.Conv2d(3, 5, 1),
            d=nn.Linear(32, 2), e=nn.Linear(48, 2)),
        "'g': its outputs go to different layers in parts that are not equally long",
    ),
    "a branch that depends on numbers": (
        Net(lambda m, x: m.c(m.b(m.a(x)).flatten(1)) if x.sum() > 0 else m.c(m.a(x).flatten(1))),
        "the code of 'the model' depends on numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING)
def test_what_cannot_be_narrowed_is_named_and_the_model_untouched(name: str) -> None:
    net, what = NOTHING[name]
    model = copy.deepcopy(net).double()
    model(IMAGES)  # it is a network, only not one that can be narrowed
    with untouched(model), pytest.raises(ValueError, match=f"no hidden units that could be fewer.*hidden=.*{what}"):
        nest(model, Width(1 / 2), example=IMAGES)


def test_without_an_example_and_a_shape_that_fits_the_user_is_asked_for_one() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            y: Tensor = self.b(self.a(batch["x"]).relu())
            return y

    model = Picky()
    with untouched(model), pytest.raises(ValueError, match=r"no input for it is known; give nest\(…, example=x\)"):
        nest(model, Width(1 / 2))
    nested = nest(model, Width(1 / 2), example=({"x": torch.randn(3, 4)},))
    assert list(nested.nested_by) == ["a", "b"]


def test_a_layer_that_only_runs_in_training_is_narrowed_too() -> None:
    model = shaken(Auxiliary())
    before = copy.deepcopy(model)
    nested = nest(model, Width(1 / 2, order="norm"))
    assert set(nested.nested_by) == {"a", "b", "extra"}
    for training in (True, False):
        assert_one_function(before.train(training), nested.train(training), {"x": normal(3, 6)})


class Dense(nn.Module):
    """A dense block: each layer takes the concatenation of all outputs before it, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(6 + 4 * i) for i in range(3)])
        self.convs = nn.ModuleList([nn.Conv2d(6 + 4 * i, 4, 3, padding=1) for i in range(3)])
        self.last, self.fc = nn.BatchNorm2d(18), nn.Linear(18 * 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(norm(torch.cat(features, 1)).relu()))
        y: Tensor = self.fc(F.avg_pool2d(self.last(torch.cat(features, 1)), 2).flatten(1))
        return y


class Branches(nn.Module):
    """Branches of different width and the input itself are concatenated; halves of a layer's outputs go two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(5, 6)
        self.c, self.d = nn.Linear(4 + 5 + 6 + 4, 8), nn.Linear(4, 3)
        self.e, self.f = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x).tanh()
        one, two = self.c(torch.cat([first, x, self.b(x).relu(), first], -1)).chunk(2, -1)
        y: Tensor = self.d(one.sigmoid()) + self.f(self.e(two).relu())
        return y


class CrossStage(nn.Module):
    """Halves go different ways and meet again in front of a grouped convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.grouped, self.c = nn.Conv2d(8, 12, 1, groups=2), nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.a(x).chunk(2, 1)
        y: Tensor = self.c(self.grouped(torch.cat([left, self.b(right).relu()], 1)).relu())
        return y


CONCATENATED: dict[str, tuple[Callable[[], nn.Module], Tensor, list[int]]] = {
    "dense": (Dense, normal(3, 3, 4, 4), [6, 4, 4, 4]),
    "branches": (Branches, normal(3, 5), [4, 6, 4, 6]),
    "cross stage": (CrossStage, normal(3, 3, 4, 4), [4, 6]),
    "twice": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), Doubled(), nn.Linear(8, 3)), normal(3, 5), [4],
    ),
    "sequence": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 3)), normal(2, 5, 6), [8],
    ),
}  # fmt: skip


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, -x], -1)


@pytest.mark.parametrize("ratio", [(1 / 2,), (1 / 4, 3 / 4)])
@pytest.mark.parametrize("name", CONCATENATED)
def test_parts_of_a_concatenation_or_a_split_are_narrowed_each_by_itself(name: str, ratio: tuple[float, ...]) -> None:
    build, x, units = CONCATENATED[name]
    model = shaken(build())
    before = copy.deepcopy(model)
    argument = next(iter(inspect.signature(before.forward).parameters))
    found = find_units(NestPlan(model, Switch(("core", "full")), example=as_example(x))).feed_forward
    assert sorted(group.units for group in found) == sorted(units)
    for spec in (Width(ratio, order="norm"), Width(1, ratios={found[0].name: ratio[0]}, order="norm")):
        nested = nest(copy.deepcopy(before), spec, example=x)
        narrowed = {layer for group in found for layer in group.producer_names}
        assert narrowed <= nested.nested_by.keys() and not narrowed & nested.skipped.keys(), "a cut was refuted"
        assert_one_function(before, nested, {argument: x}, is_mask=name != "dense")


class Sub(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Experts(nn.Module):
    """Two gated feed-forward networks in tensors of three dimensions, gate and up packed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Parameter(torch.randn(2, 10, 4)), nn.Parameter(torch.randn(2, 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for expert in range(2):
            gate, up = F.linear(x, self.gate_up[expert]).chunk(2, -1)
            total = total + F.linear(F.silu(gate) * up, self.down[expert])
        return total


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Linear(4, 12), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        y: Tensor = self.down(F.gelu(gate) * up)
        return y


class Depthwise(nn.Module):
    """An inverted residual block with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.norm = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.squeeze, self.excite, self.project = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.hardswish(self.depthwise(F.relu6(self.norm(self.expand(x)))))
        weights = self.excite(self.squeeze(h.mean((2, 3), keepdim=True)).relu()).sigmoid()
        y: Tensor = x + self.project(h * weights)
        return y


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, 3, padding=1, groups=2), nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.c(self.b(self.a(x).relu()).relu())
        return y


class Attention(nn.Module):
    """Two heads, with projections packed as in GPT-2, in code that does not know how many heads there are."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 24), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) / 2).softmax(-1)
        y: Tensor = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return y


class FeedForward(nn.Module):
    """A feed-forward network, without which a network with attention has nothing to narrow by default."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(self.up(x).relu())
        return y


KINDS: dict[str, tuple[Callable[[], nn.Module], Tensor, Width, dict[str, int]]] = {
    "packed": (Packed, normal(3, 4), Width((1 / 3, 2 / 3), order="norm"), {"gate_up": 6}),
    "experts": (
        lambda: nn.Sequential(Experts(), Experts()), normal(3, 4), Width((1 / 5, 3 / 5), order="norm"),
        {"0": 5, "1": 5},
    ),
    "subclass": (
        lambda: nn.Sequential(Sub(4, 6), nn.Tanh(), Sub(6, 2)), normal(3, 4), Width(1 / 2, order="norm"), {"0": 6},
    ),
    "depthwise": (Depthwise, normal(3, 3, 4, 4), Width((1 / 4, 1 / 2), order="norm"), {"expand": 8, "squeeze": 4}),
    "grouped": (Grouped, normal(3, 3, 4, 4), Width(1 / 2, order="norm"), {"a": 4}),
    "one dimension": (
        lambda: nn.Sequential(
            nn.Conv1d(3, 6, 3), nn.ReLU(), nn.Conv1d(6, 4, 3), nn.PReLU(4), nn.ConvTranspose1d(4, 2, 2)
        ),
        normal(3, 3, 9), Width((1 / 3, 2 / 3), order="norm"), {"0": 6, "2": 4},
    ),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 1), nn.InstanceNorm2d(6, affine=True), nn.ReLU(), nn.Conv2d(6, 2, 1)),
        normal(3, 3, 4, 4), Width((1 / 3, 2 / 3), order="norm"), {"0": 6},
    ),
    "heads": (
        lambda: nn.Sequential(Attention(), FeedForward()), normal(3, 5, 6), Width(1 / 2, heads=True, order="norm"),
        {"0.qkv": 2, "1.up": 8},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_layers_of_any_kind_are_one_function_at_every_level(name: str) -> None:
    build, x, spec, units = KINDS[name]
    model = shaken(build())
    before = copy.deepcopy(model)
    plan = NestPlan(model, Switch(("core", "full")), example=as_example(x))
    found = find_units(plan)
    by_name = {group.name: group.units for group in (*found.feed_forward, *found.heads)}
    assert units.items() <= by_name.items(), by_name
    nested = nest(model, spec, norms="shared" if name == "depthwise" else "separate", example=x)
    argument = next(iter(inspect.signature(before.forward).parameters))
    assert_one_function(before, nested, {argument: x})
    assert nested.size(nested.levels[0]) < nested.size("full")


def test_rotary_embeddings_keep_a_head_together_and_a_head_can_go() -> None:
    model = shaken(llama())
    before = copy.deepcopy(model)
    nested = nest(model, Width(1 / 2, heads=True))
    assert nested.model.model.layers[0].self_attn.q_proj.sizes_at("core") == (8, 16), (
        "one of two key heads: two queries"
    )
    assert_one_function(before, nested, {"input_ids": tokens(2), "use_cache": False})


def test_heads_that_cannot_go_are_refused_by_name() -> None:
    model = encoder()
    with (
        untouched(model),
        pytest.raises(ValueError, match=r"heads=True: .* has no attention heads .*MultiheadAttention"),
    ):
        nest(model, Width(1 / 2, heads=True))


def test_a_cut_that_is_wrong_is_found_out_before_anything_changes() -> None:
    """The code scales by the number of units that it sees, which no label of dimensions shows."""
    model = Net(lambda m, x: m.c((m.b(m.a(x)) * m.a.weight.shape[0]).flatten(1))).double()
    with untouched(model), pytest.raises(ValueError, match="narrow network computes something else than the masked"):
        nest(model, Width(1 / 2, exclude=("c",)), example=IMAGES)


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

    assert groups(Shifted()) == []
    model = Shifted()
    with untouched(model), pytest.raises(ValueError, match=r"Shifted has no .*'a': .*output of the model"):
        nest(model, Width(1 / 2))


class Staged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 6), nn.Linear(6, 6)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x).relu()
        return x


def test_a_block_that_changes_the_shape_cannot_be_left_out() -> None:
    model, x = Staged(), torch.randn(3, 4)
    with (
        untouched(model),
        pytest.raises(ValueError, match=r"Depth cannot leave out 'blocks\.1': it makes \[3, 6\] of \[3, 4\]"),
    ):
        nest(model, Depth("blocks", keep=1), example=x)
    assert nest(model, Depth("blocks", keep=2), example=x).levels == ("core", "full")


def test_a_gradient_that_is_zero_but_for_rounding_is_no_difference() -> None:
    """Softmax does not see the bias of the keys, so its gradient is noise, another one in each order of sums."""
    model = shaken(bert())
    assert len(nest(model, Width((1 / 4, 1 / 2), order="norm")).nested_by) == 6
