"""(VU + W)x: ranks, the three starts, the two paths of the full layer, and its cost."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from partialsgd import CriteriaMeter, LowRank, Nested, PartialSGD, methods, nest
from partialsgd.nested.layers.linear_maps import LinearMap
from partialsgd.nested.layers.low_rank import LowRankLayer
from tests.zoo import conv1d

STARTS = ("svd", "matched", "zero")


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(12, 16), (3, 12)),
    "tall, no bias": (lambda: nn.Linear(16, 12, bias=False), (2, 3, 16)),
    "conv": (lambda: nn.Conv2d(4, 12, (3, 2), (2, 1), (1, 0), (1, 2)), (2, 4, 7, 8)),
    "conv circular": (lambda: nn.Conv2d(4, 12, 3, padding=1, padding_mode="circular", bias=False), (2, 4, 7, 8)),
    "one by one": (lambda: nn.Conv2d(12, 16, 1), (2, 12, 3, 3)),
    "Conv1D": (lambda: conv1d(16, 12), (2, 3, 12)),
}


def nested_layer(layer: nn.Module, *ratios: float, init: str = "svd", seed: int = 0) -> tuple[Nested, LowRankLayer]:
    nested = nest(nn.Sequential(layer), LowRank(ratios, where="0", init=init), seed=seed)
    made = nested.model.get_submodule("0")
    assert isinstance(made, LowRankLayer)
    return nested, made


def matrix(layer: nn.Module) -> Tensor:
    """The weight as (outputs, inputs · places)."""
    weight = layer.weight.detach()
    return weight.t() if type(layer).__name__ == "Conv1D" else weight.flatten(1)


def at(layer: LowRankLayer, level: str) -> Tensor:
    weight = layer.weight_at(level).detach()
    return weight.t() if layer.linear.kind == "conv1d_hf" else weight.flatten(1)


@pytest.mark.parametrize("name", LAYERS)
def test_the_svd_start_is_the_best_approximation_of_its_rank(name: str) -> None:
    layer = LAYERS[name][0]().double()
    before = matrix(layer)
    left, singular, right = torch.linalg.svd(before, full_matrices=False)
    _, made = nested_layer(copy.deepcopy(layer), 1 / 4, 1 / 2, 1)
    for level, rank in (("1/4", 3), ("1/2", 6), ("1", 12)):
        best = (left[:, :rank] * singular[:rank]) @ right[:rank]
        torch.testing.assert_close(at(made, level), best)
        error = (before - at(made, level)).norm()
        torch.testing.assert_close(error, singular[rank:].square().sum().sqrt(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(at(made, "full"), before)
    torch.testing.assert_close(made.U0.norm(), made.V0.norm())  # neither factor learns faster than the other


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("init", STARTS)
def test_the_full_layer_is_the_layer_before_and_every_level_has_the_weight_that_it_shows(name: str, init: str) -> None:
    build, shape = LAYERS[name]
    layer, x = build().double(), torch.randn(shape, dtype=torch.float64)
    dense = copy.deepcopy(layer)
    nested, made = nested_layer(layer, 1 / 4, 1 / 2, init=init)
    assert made.bias is layer.bias, "one bias, shared"
    if init != "zero":
        torch.testing.assert_close(nested(x), dense(x))
        torch.testing.assert_close(made.weight.detach(), dense.weight.detach())
    with torch.no_grad():
        for parameter in nested.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    for level in nested.levels:
        with nested.at(level):
            assert made.weight.shape == dense.weight.shape
            dense.load_state_dict({"weight": made.weight} | ({} if made.bias is None else {"bias": made.bias}))
            torch.testing.assert_close(nested(x), dense(x))
            assert torch.linalg.matrix_rank(at(made, level)) == {"1/4": 3, "1/2": 6}.get(level, 12)


@pytest.mark.parametrize("init", ["matched", "zero"])
def test_what_is_drawn_beyond_the_first_rank_starts_without_effect_but_learns(init: str) -> None:
    nested, made = nested_layer(nn.Linear(12, 16).double(), 1 / 4, 1 / 2, init=init)
    torch.testing.assert_close(made.weight_at("1/4"), made.weight_at("1/2"))
    with nested.at("1/2"):
        nested(torch.randn(5, 12, dtype=torch.float64)).square().sum().backward()
    assert bool(made.V1.grad.any()) and bool(made.U1.detach().any())


WIDE: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(128, 96),
    "tall": lambda: nn.Linear(96, 160, bias=False),
    "conv": lambda: nn.Conv2d(32, 96, 3),
    "one by one": lambda: nn.Conv2d(128, 96, 1),
    "Conv1D": lambda: conv1d(96, 128),
}


@pytest.mark.parametrize("name", WIDE)
def test_matched_gives_the_core_the_variance_of_the_layer(name: str) -> None:
    layer = WIDE[name]()
    with torch.no_grad():
        layer.weight.mul_(3.0)  # not a fresh layer: the scale must come from the weights
    before = matrix(layer)
    for ratio in (1 / 16, 1 / 4):
        _, made = nested_layer(copy.deepcopy(layer), ratio, init="matched")
        x = torch.randn(2000, before.shape[1], generator=torch.Generator().manual_seed(1))
        ours, theirs = (x @ at(made, "core").t()).var(), (x @ before.t()).var()
        assert 0.8 < float(ours / theirs) < 1.25, (ratio, float(ours / theirs))


def test_zero_starts_as_its_core_with_two_ordinary_layers() -> None:
    nested, made = nested_layer(nn.Linear(256, 192), 1 / 8, init="zero")
    assert not made.W.any()
    x = torch.randn(7, 256)
    full = nested(x)
    with nested.at("core"):
        torch.testing.assert_close(nested(x), full)
    torch.testing.assert_close(made.weight_at("core"), made.weight_at("full"))
    for factor, (inputs, outputs) in ((made.U0, (256, 24)), (made.V0, (24, 192))):
        bound = math.sqrt(6 / (inputs + outputs))  # Xavier
        assert 0.97 * bound < float(factor.detach().abs().max()) <= bound
        assert abs(float(factor.detach().std()) / (bound / math.sqrt(3)) - 1) < 0.03


def test_the_core_of_a_dead_layer_is_drawn_or_zero_but_finite() -> None:
    for init in STARTS:
        layer = nn.Linear(6, 5)
        nn.init.zeros_(layer.weight)
        _, made = nested_layer(layer, 1 / 2, init=init)
        assert all(bool(p.isfinite().all()) for p in made.parameters())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("merges", [True, False])
def test_both_paths_of_the_full_layer_are_the_dense_layer(name: str, merges: bool, monkeypatch) -> None:
    build, shape = LAYERS[name]
    layer, x = build().double(), torch.randn(shape, dtype=torch.float64, requires_grad=True)
    mixture = torch.randn_like(layer(x))
    expected = torch.autograd.grad((layer(x) * mixture).sum(), (x, layer.weight))
    monkeypatch.setattr(LinearMap, "is_worth_merging", lambda self, x: merges)
    nested, made = nested_layer(layer, 1 / 4, 1 / 2)
    u, v, w, given = torch.autograd.grad((nested(x) * mixture).sum(), (made.U0, made.V0, made.W, x))
    torch.testing.assert_close(given, expected[0])
    gradient = expected[1].t() if layer.weight.shape != made.W.shape else expected[1]
    torch.testing.assert_close(w, gradient)
    torch.testing.assert_close(u.flatten(1), made.V0.t() @ gradient.flatten(1))
    torch.testing.assert_close(v, gradient.flatten(1) @ made.U0.flatten(1).t())


def flops(network: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(x)
    return counter.get_total_flops()


@pytest.mark.parametrize("places", [1, 2, 5, 6, 7, 20, 200])
@pytest.mark.parametrize("name", ["linear", "tall, no bias", "Conv1D", "one by one"])
def test_the_full_layer_takes_the_cheaper_path(name: str, places: int) -> None:
    layer = LAYERS[name][0]()
    outputs, inputs = matrix(layer).shape
    x = torch.randn(1, inputs, 1, places) if name == "one by one" else torch.randn(places, inputs)
    nested, made = nested_layer(layer, 1 / 4)
    rank = len(made.U0)
    merged = 2 * rank * inputs * outputs + 2 * places * inputs * outputs
    apart = 2 * places * inputs * outputs + 2 * places * rank * (inputs + outputs)
    assert flops(nested, x) == min(merged, apart)
    with nested.at("core"):
        assert flops(nested, x) == 2 * places * rank * (inputs + outputs)


def test_the_full_step_of_the_papers_transformer_costs_at_most_a_twentieth_more_at_2000_tokens() -> None:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=10_000, d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=1024, decoder_ffn_dim=1024,
        encoder_attention_heads=4, decoder_attention_heads=4, pad_token_id=1, eos_token_id=0, use_cache=False,
        attn_implementation="eager",
    )  # fmt: skip

    def training(network: nn.Module) -> int:
        ids = torch.zeros(80, 25, dtype=torch.long, device="meta")
        with FlopCounterMode(display=False) as counter:
            network(input_ids=ids, decoder_input_ids=ids).logits.sum().backward()
        return counter.get_total_flops()

    with torch.device("meta"):
        plain, model = MarianMTModel(config), MarianMTModel(config)
    where = ("*.fc1", "*.fc2", "*.q_proj", "*.k_proj")
    nested = nest(model, LowRank(1 / 4, where=where, init="zero"))
    assert training(plain) < training(nested) <= 1.05 * training(plain)


class ReadsTheLayer(nn.Module):
    """Code that reads what a layer is and not only calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert (self.conv.stride, self.conv.padding, self.conv.kernel_size) == ((2, 2), (1, 1), (3, 3))
        assert (self.conv.in_channels, self.conv.out_channels, self.conv.groups) == (3, 4, 1)
        assert (self.fc.in_features, self.fc.out_features) == (4, 2)
        y: torch.Tensor = self.fc(self.conv(x).mean((2, 3))) + self.fc.bias + self.conv.bias.sum()
        return y


def test_a_layer_of_low_rank_answers_what_code_reads_of_a_layer() -> None:
    nested, x = nest(ReadsTheLayer(), LowRank(1 / 2, where=("conv", "fc"))), torch.randn(2, 3, 8, 8)
    for level in nested.levels:
        plain = nested.extract(level, example=x)
        again = copy.deepcopy(plain).double().float()
        with nested.at(level):
            torch.testing.assert_close(plain(x), nested(x))
        torch.testing.assert_close(again(x), plain(x))
        assert [key for key in plain.state_dict() if key.endswith("bias")] == [
            key for key, _ in plain.named_parameters() if key.endswith("bias")
        ], "the bias is registered once"


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_a_layer_whose_weight_is_computed_is_left_and_refused_by_name(norm) -> None:
    model = nn.Sequential(norm(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    with pytest.raises(ValueError, match="'0' cannot be nested: its weight is computed from other parameters"):
        nest(model, LowRank(1 / 2, where="0"))
    assert list(nest(model, LowRank(1 / 2)).nested_by) == ["2"]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("init", STARTS)
def test_a_full_layer_with_a_weight_of_its_own_is_the_layer_before_to_the_bit(name: str, init: str) -> None:
    build, shape = LAYERS[name]
    layer, x = build(), torch.randn(shape)
    dense = copy.deepcopy(layer)
    nested = nest(nn.Sequential(layer), LowRank((1 / 4, 1 / 2), where="0", init=init, full="own"))
    shared = nest(nn.Sequential(copy.deepcopy(dense)), LowRank((1 / 4, 1 / 2), where="0", init=init))
    assert torch.equal(nested(x), dense(x))
    for level in ("1/4", "1/2"):  # the smaller levels are what they are with W + VU
        with nested.at(level), shared.at(level):
            assert torch.equal(nested(x), shared(x))
    extracted = nested.extract("full", example=x)[0]
    assert type(extracted) is type(dense) and torch.equal(extracted.weight, dense.weight)
    assert nested.size("full") == sum(p.numel() for p in dense.parameters())


def test_steps_of_a_smaller_level_leave_a_weight_of_its_own_alone_and_full_steps_the_factors() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    nested = nest(model, LowRank((1 / 4, 1 / 2), where=("0", "2"), full="own"))
    meter = CriteriaMeter(every=1)
    sgd = PartialSGD(nested, torch.optim.AdamW(nested.parameters(), 0.01), methods.alternating(), meter=meter)
    x = torch.randn(32, 8)

    def closure() -> Tensor:
        loss = (nested(x) - x).square().mean()
        loss.backward()
        return loss

    used = {"full": ("own_weight", "bias"), "1/2": ("U0", "V0", "U1", "V1", "bias"), "1/4": ("U0", "V0", "bias")}
    for level, leaves in used.items():
        moving = {key.rpartition(".")[2] for key, entry in nested.mask(level).items() if entry is not False}
        assert moving == set(leaves)
    for _ in range(6):
        before = {key: p.detach().clone() for key, p in nested.named_parameters()}
        step = sgd.step(closure)
        moved = {key.rpartition(".")[2] for key, p in nested.named_parameters() if not torch.equal(p, before[key])}
        assert moved == set(used[str(step.level)])
        assert step.criteria is not None
        sizes = {key: p.numel() for key, p in nested.named_parameters() if not key.endswith("bias")}
        factors = [n for key, n in sizes.items() if key.rpartition(".")[2] in used[str(step.level)]]
        assert step.criteria.left_out == (
            0 if step.level == "full" else sum(factors)
        )  # the pass at x uses none of them


def test_a_plain_training_of_a_network_with_weights_of_its_own_is_that_of_the_network_before() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    nested = nest(copy.deepcopy(plain), LowRank(1 / 4, where=("0", "2"), full="own"))
    x = torch.randn(32, 8)
    for model in (plain, nested):
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        for _ in range(5):
            optimizer.zero_grad()
            (model(x) - x).square().mean().backward()
            optimizer.step()
    assert all(
        torch.equal(a, b)
        for a, b in zip(plain.parameters(), nested.extract("full", example=x).parameters(), strict=True)
    )


def test_the_state_of_a_sum_does_not_fit_a_weight_of_its_own_nor_the_other_way_round() -> None:
    kinds = ("sum", "own")
    models = [nest(nn.Sequential(nn.Linear(8, 16)), LowRank(1 / 4, where="0", full=full)) for full in kinds]
    for model, other in (models, reversed(models)):
        with pytest.raises(RuntimeError, match="Missing key"):
            model.load_state_dict(other.state_dict())


def test_the_levels_of_a_layer_must_agree_on_the_weight_of_the_full_level() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    levels = {"small": LowRank(1 / 8, where="0", full="own"), "medium": LowRank(1 / 2, where="0")}
    with pytest.raises(ValueError, match="has full='own' and full='sum'; all levels must have the same"):
        nest(model, levels=levels)
    with pytest.raises(ValueError, match="full must be"):
        LowRank(1 / 8, full="both")  # type: ignore[arg-type]  # what is refused
