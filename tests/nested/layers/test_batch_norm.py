"""BatchNorm in a nested model: whose statistics move, and what they are after recalibration."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from partialsgd import Depth, LayerSum, LowRank, Nested, OutputSum, Width, nest
from partialsgd.nested.layers.axes import Axis
from partialsgd.nested.layers.batch_norm import SeparateBatchNorm, SharedBatchNorm
from partialsgd.nested.switch import Switch
from tests.nested.checks import many


def model(**options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, **options), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


def batches(count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5 + i, 4, generator=generator) for i in range(count)]


def statistics(network: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in network.named_buffers()}


def moved(nested: Nested, before: dict[str, Tensor]) -> set[str]:
    return {name for name, buffer in nested.named_buffers() if not torch.equal(buffer, before[name])}


def test_separate_norms_move_at_their_own_level_only() -> None:
    nested = nest(model(), Width((1 / 3, 2 / 3)))
    for level in nested.levels:
        before = statistics(nested)
        with nested.at(level):
            nested(batches()[0])
        each = ("running_mean", "running_var", "num_batches_tracked")
        assert moved(nested, before) == {f"model.1.{level}.{name}" for name in each}


def test_separate_norms_begin_with_the_values_of_the_whole_one() -> None:
    given_model = model()
    given_model(batches()[0])
    with torch.no_grad():
        given_model[1].weight.copy_(torch.tensor([1.0, 5.0, 2.0, 4.0, 3.0, 6.0]))
        given_model[1].bias.copy_(torch.arange(6.0))
    whole = copy.deepcopy(given_model[1])
    nested = nest(given_model, Width(1 / 2))
    norms = nested.model.get_submodule("1")
    assert isinstance(norms, SeparateBatchNorm) and norms.get_submodule("full") is not norms.get_submodule("core")
    core = norms.get_submodule("core")
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert torch.equal(getattr(core, name), getattr(whole, name)[:3])
        assert torch.equal(getattr(norms.get_submodule("full"), name), getattr(whole, name))
    assert int(core.num_batches_tracked) == 0, "at this level none was seen"
    assert int(norms.get_submodule("full").num_batches_tracked) == 1


@st.composite
def cases(draw) -> dict[str, Any]:
    dims = draw(st.sampled_from([(), (3,), (2, 2)]))
    return {
        "units": draw(st.integers(2, 6)),
        "momentum": draw(st.sampled_from([None, 0.1, 0.0, 1.0])),
        "affine": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "tracks": draw(st.booleans()),
        "dims": dims,
        "orders": draw(st.booleans()),
        "levels": draw(st.lists(st.sampled_from(["a", "b", "full"]), min_size=1, max_size=4)),
        "modes": draw(st.lists(st.booleans(), min_size=4, max_size=4)),
    }


@many
@given(cases())
def test_a_shared_norm_is_torchs_on_the_first_units(case: dict[str, Any]) -> None:
    """Statistics, outputs and gradients over a few calls at several levels and modes; the reference is torch's own."""
    kind = nn.BatchNorm2d if len(case["dims"]) == 2 else nn.BatchNorm1d
    units, momentum = case["units"], case["momentum"]
    bias = case["bias"] or not case["affine"]
    norm = kind(units, momentum=momentum, affine=case["affine"], track_running_stats=case["tracks"], bias=bias)
    norm = norm.double()
    generator = torch.Generator().manual_seed(units)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, generator=generator)
    order = torch.randperm(units, generator=generator) if case["orders"] else None
    sizes = {"a": 1, "b": (units + 1) // 2}
    shared = SharedBatchNorm(norm, Axis(units, sizes, order=order), Switch(("a", "b", "full")))
    reference = {k: (v if v.ndim == 0 or order is None else v[order]) for k, v in norm.state_dict().items()}
    for level, training in zip(case["levels"], case["modes"], strict=False):
        count = sizes.get(level, units)
        slim = kind(count, momentum=momentum, affine=case["affine"], track_running_stats=case["tracks"], bias=bias)
        slim = slim.double()
        slim.load_state_dict({k: v if v.ndim == 0 else v[:count] for k, v in reference.items()})
        x = torch.randn(4, count, *case["dims"], dtype=torch.float64, generator=generator)
        shared.train(training)
        slim.train(training)
        with shared.switch.at(level):
            y, expected = shared(x), slim(x)
            torch.testing.assert_close(y, expected)
            if case["affine"]:
                ours = torch.autograd.grad((y * y).sum(), list(shared.members(level)))
                theirs = torch.autograd.grad((expected * expected).sum(), list(slim.parameters()))
                torch.testing.assert_close(torch.cat(ours), torch.cat(theirs))
            plain = shared.extract(level, {})
            assert type(plain) is kind and plain.num_features == count and plain.momentum == momentum
            torch.testing.assert_close(plain.state_dict(), slim.state_dict())
        for key, value in slim.state_dict().items():
            if value.ndim == 0:
                reference[key] = value
            else:
                reference[key] = torch.cat([value, reference[key][count:]])
    if case["tracks"]:
        torch.testing.assert_close(shared.running_mean, reference["running_mean"])
        assert int(shared.num_batches_tracked) == int(reference["num_batches_tracked"])


NORMS = pytest.mark.parametrize("norms", ["separate", "shared"])


@NORMS
@pytest.mark.parametrize("level", ["1/3", "2/3", "full"])
def test_recalibration_is_the_plain_average_over_the_batches_and_moves_nothing_else(norms: str, level: str) -> None:
    """Whatever was there before, and with dropout off."""
    nested = nest(model(momentum=0.3), Width((1 / 3, 2 / 3), order="norm"), norms=norms)
    for one in nested.levels:
        with nested.at(one):
            nested(10 + batches()[0])
    nested.model[3].eval()
    modes = [module.training for module in nested.modules()]
    parameters, before = [p.detach().clone() for p in nested.parameters()], statistics(nested)
    random = torch.get_rng_state()
    nested.recalibrate(level, iter(batches()))
    assert torch.equal(torch.get_rng_state(), random) and nested.level == "full"
    assert [module.training for module in nested.modules()] == modes
    assert all(torch.equal(p, q) for p, q in zip(nested.parameters(), parameters, strict=True))
    assert all(p.grad is None for p in nested.parameters()) and momenta(nested) == {0.3}
    if norms == "separate":
        assert all(name.startswith(f"model.1.{level}.") for name in moved(nested, before))
    plain = nested.extract(level, example=batches()[0])
    hidden = [plain[0](x).detach() for x in batches()]
    torch.testing.assert_close(plain[1].running_mean, torch.stack([h.mean(0) for h in hidden]).mean(0))
    torch.testing.assert_close(plain[1].running_var, torch.stack([h.var(0) for h in hidden]).mean(0))
    assert int(plain[1].num_batches_tracked) == 3


def momenta(nested: Nested) -> set[float | None]:
    return {m.momentum for m in nested.modules() if isinstance(m, (nn.BatchNorm1d, SharedBatchNorm))}


@NORMS
def test_a_recalibration_that_fails_leaves_statistics_modes_and_momentum(norms: str) -> None:
    nested = nest(model(), Width(1 / 2), norms=norms)
    nested(batches()[0])
    modes, before = [module.training for module in nested.modules()], statistics(nested)

    def broken() -> Iterator[Tensor]:
        yield batches()[0]
        raise ZeroDivisionError

    for level, inputs, error, message in (
        ("core", broken(), ZeroDivisionError, "^$"),
        ("core", [(batches()[0], torch.ones(5))], TypeError, "for a loader of pairs give"),
        ("core", [], ValueError, "no batches; the statistics are unchanged"),
        ("small", batches(), ValueError, "there are 'core', 'full'"),
    ):
        with pytest.raises(error, match=message):
            nested.recalibrate(level, inputs)
        assert [module.training for module in nested.modules()] == modes and nested.level == "full"
        assert momenta(nested) == {0.1} and not moved(nested, before)


def test_extracting_statistics_that_were_never_updated_warns_and_says_what_to_do() -> None:
    nested = nest(model(), Width(1 / 2))
    nested(batches()[0])
    with pytest.warns(UserWarning, match=r"1 BatchNorm layers \(the first is '1'\).*level 'core'.*recalibrate") as seen:
        nested.extract("core")
    assert len(seen) == 1 and seen[0].filename == __file__, "the warning points at the caller"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nested.extract("full")
        nested.recalibrate("core", batches())
        nested.extract("core")


class Twice(nn.BatchNorm1d):
    """A BatchNorm with a constructor and a forward of its own."""

    def __init__(self, units: int, scale: float) -> None:
        super().__init__(units)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        return self.scale * y


def test_a_norm_of_another_class_stays_what_it_is_or_is_refused() -> None:
    x = batches()[0]
    network = nn.Sequential(nn.Linear(4, 6), Twice(6, 3.0), nn.ReLU(), nn.Linear(6, 3))
    expected = network(x)
    nested = nest(network, LowRank(1 / 2, where="0"))
    torch.testing.assert_close(nested(x), expected)
    assert type(network[1].core) is Twice and network[1].core.scale == 3.0
    with nested.at("core"):
        nested(x)
    assert type(nested.extract("core")[1]) is Twice
    network = nn.SyncBatchNorm.convert_sync_batchnorm(model())
    nested = nest(copy.deepcopy(network), Width(1 / 2))
    assert all(type(nested.model[1].get_submodule(level)) is nn.SyncBatchNorm for level in nested.levels)
    assert nested.model[1].core.process_group is network[1].process_group
    with pytest.raises(ValueError, match="SyncBatchNorm"):
        nest(network, Width(1 / 2), norms="shared")


@NORMS
def test_a_frozen_norm_stays_frozen(norms: str) -> None:
    network = model()
    network[1].requires_grad_(False)
    nested = nest(network, Width(1 / 2), norms=norms)
    assert not any(p.requires_grad for name, p in nested.named_parameters() if name.startswith("model.1"))
    nested.recalibrate("core", batches())
    plain = nested.extract("core", example=batches()[0])
    assert [p.requires_grad for p in plain.parameters()] == [True, True, False, False, True, True]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.norm(self.linear(x))
        return y


def blocks() -> nn.Module:
    return nn.Sequential(Block(), Block(), Block())


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "depth": lambda: (nn.Sequential(blocks(), nn.Linear(4, 2)), Depth("0", keep=1)),
    "outputs": lambda: (OutputSum(blocks(), Block()), None),
    "old": lambda: (nn.Sequential(Block(), nn.Linear(4, 2)), LayerSum("0", lambda _: blocks())),
    "new": lambda: (nn.Sequential(blocks(), nn.Linear(4, 2)), LayerSum("0", lambda _: Block(), core="new")),
}


@NORMS
@pytest.mark.parametrize("kind", NETWORKS)
def test_norms_that_a_level_does_not_run_are_not_recalibrated(kind: str, norms: str) -> None:
    network, spec = NETWORKS[kind]()
    nested = nest(network, spec, norms=norms)
    ran: dict[str, set[str]] = {}
    for level in nested.levels:
        before = statistics(nested)
        with nested.at(level):
            nested(batches()[0])
        ran[level] = moved(nested, before)
    before = statistics(nested)
    assert set(before) - ran["core"], "some norm does not run"
    nested.recalibrate("core", batches())
    assert moved(nested, before) <= ran["core"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nested.extract("full")
