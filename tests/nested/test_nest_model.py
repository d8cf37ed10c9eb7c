"""`nest` either does everything or leaves the model unchanged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from partialsgd import Depth, LayerSum, LowRank, OutputSum, Width, nest
from partialsgd.testing.problems import Tied
from tests.nested.checks import untouched
from tests.zoo import ZOO, again, encoder, gpt2, llama, marian, mlp, specs_for, t5


class Sub(nn.Linear):
    pass


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def grouped() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 1))


def ordered(*specs: Any) -> dict[str, Any]:
    return {"levels": dict(zip(("small", "medium"), specs, strict=True))}


def one(spec: Any) -> dict[str, Any]:
    return {"spec": spec}


def linear(inputs: int, outputs: int) -> nn.Module:
    """A layer that draws nothing."""
    return skip_init(nn.Linear, inputs, outputs)


def wrong_shape(layer: nn.Module) -> nn.Module:
    return linear(layer.in_features, layer.out_features + 1)


def would_broadcast(layer: nn.Module) -> nn.Module:
    return linear(layer.in_features, 1)


def same_weight(layer: nn.Module) -> nn.Module:
    other = linear(layer.in_features, layer.out_features)
    other.weight = layer.weight
    return other


class Held(nn.Module):
    """A layer that its owner also holds outside of `_modules`."""

    def __init__(self, hold: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
        self.held = hold(self.a)


def hooked(model: nn.Sequential) -> nn.Module:
    next(module for module in model if not isinstance(module, nn.Linear)).register_forward_hook(lambda *args: None)
    return model


def hooked_blocks() -> nn.Module:
    return hooked(nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), nn.Linear(6, 3)))


def hooked_norm() -> nn.Module:
    return hooked(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))


HELD = "'a' cannot be nested: the attribute 'held' of"
BAD: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], type[Exception], str]] = {
    "nothing said": (wide, {}, ValueError, "nest needs a spec"),
    "no spec": (wide, one(1 / 4), TypeError, "a spec must be LowRank"),
    "no mapping": (wide, {"levels": [LowRank(1 / 4)]}, TypeError, "levels must map names to specs"),
    "mapping as spec": (wide, one({"small": LowRank(1 / 4)}), TypeError, r"write levels=\{"),
    "text as spec": (wide, one("LowRank"), TypeError, r"got a str; write Width\(1 / 2\)"),
    "sum as spec": (wide, one(OutputSum(nn.Identity(), nn.Identity())), TypeError, r"nest\(OutputSum"),
    "held in a list": (lambda: Held(lambda a: [a]), one(LowRank(1 / 2, where="a")), ValueError, HELD),
    "held in a tuple": (lambda: Held(lambda a: (a,)), one(LowRank(1 / 2, where="a")), ValueError, HELD),
    "held in a dict": (lambda: Held(lambda a: {"a": a}), one(LowRank(1 / 2, where="a")), ValueError, HELD),
    "hooked blocks": (hooked_blocks, one(Depth("0", keep=1)), ValueError, "'0' cannot be nested: it has hooks"),
    "hooked norm": (
        hooked_norm, one(Width(0.5)) | {"norms": "shared"}, ValueError, "'1' cannot be nested: it has hooks",
    ),
    "norms": (wide, one(LowRank(0.5)) | {"norms": "none"}, ValueError, "norms must be one of 'separate', 'shared'"),
    "low rank, no match": (llama, one(LowRank(0.5, where="*.q_prj")), ValueError, r"'\*\.q_prj' matches no .*q_proj"),
    "one of two no match": (llama, one(LowRank(0.5, where=("*.q_proj", "*.f"))), ValueError, r"'\*\.f' matches no"),
    "exclude, no match": (llama, one(LowRank(0.5, exclude="*.gate")), ValueError, r"'\*\.gate' matches no .*gate_proj"),
    "ratios, no match": (llama, one(LowRank(0.5, ratios={"q_prj": 0.1})), ValueError, r"'q_prj' matches no .*q_proj"),
    "ratios, not nested": (wide, one(LowRank(0.5, where="0", ratios={"2": 0.1})), ValueError, "pattern '2' of ratios"),
    "width, no match": (wide, one(Width(0.5, hidden=("0", "fc"))), ValueError, "'fc' matches no module"),
    "width exclude": (llama, one(Width(0.5, exclude="*.gate")), ValueError, r"'\*\.gate' matches no"),
    "depth, no match": (llama, one(Depth("decoder.layers", keep=1)), ValueError, r"matches no .*model\.layers"),
    "sum, no match": (llama, one(LayerSum("*.o_prj", again)), ValueError, r"'\*\.o_prj' matches no .*o_proj"),
    "everything excluded": (wide, one(LowRank(0.5, exclude="*")), ValueError, "LowRank has no layer left"),
    "all of width excluded": (wide, one(Width(0.5, exclude="*")), ValueError, "Width has no hidden layer left"),
    "grouped": (grouped, one(LowRank(0.5, where="1")), ValueError, r"'1' cannot be nested: .*groups=2"),
    "multihead": (encoder, one(LowRank(0.5, where="*.out_proj")), ValueError, "out_proj' cannot be nested"),
    "subclass": (lambda: nn.Sequential(Sub(3, 3), nn.Linear(3, 3)), one(LowRank(0.5, where="0")), ValueError, "a Sub,"),
    "norm named": (llama, one(LowRank(0.5, where="*.input_layernorm")), ValueError, "is a LlamaRMSNorm; only Linear"),
    "norm in hidden": (encoder, one(Width(0.5, hidden=("*.linear1", "*.norm1"))), ValueError, "norm1' neither makes"),
    "hidden sizes": (wide, one(Width(0.5, hidden=("4", "2"))), ValueError, "'4' makes 3 units and '2' takes 8"),
    "query_key": (encoder, one(Width(0.5, query_key=True)), ValueError, "query and key are packed"),
    "query_key of no attention": (wide, one(Width(0.5, query_key=True)), ValueError, "no attention of a known"),
    "gradient": (llama, one(Width(0.5, order="gradient")), ValueError, "gate_proj' has none: run loss.backward"),
    "tied GPT-2": (gpt2, one(LowRank(0.5, where="lm_head")), ValueError, r"tied to 'transformer\.wte\.weight'"),
    "tied T5": (t5, one(LowRank(0.5, where="lm_head")), ValueError, r"tied to 'shared\.weight'"),
    "tied Marian": (marian, one(LowRank(0.5, where="lm_head")), ValueError, r"tied to 'model\.shared\.weight'"),
    "tied sum": (gpt2, one(LayerSum("lm_head", again)), ValueError, r"tied to 'transformer\.wte\.weight'"),
    "tied width": (Tied, one(Width(0.5, hidden=("hidden", "head"))), ValueError, "tied"),
    "sum in multihead": (encoder, one(LayerSum("*.out_proj", again)), ValueError, "MultiheadAttention"),
    "ranks out of order": (wide, one(LowRank((1 / 2, 1 / 8))), ValueError, "order the levels"),
    "widths out of order": (wide, one(Width((1 / 2, 1 / 8))), ValueError, "order the levels"),
    "depths out of order": (llama, one(Depth("layers", keep=(2, 1))), ValueError, "order the levels"),
    "no chain": (llama, ordered(Depth("layers", keep=2), Depth("layers", keep=2, pick="even")), ValueError, "contain"),
    "low rank comes back": (wide, ordered(LowRank(0.5, where="0"), LowRank(0.5, where="2")), ValueError, "order the"),
    "width comes back": (
        wide, ordered(Width(0.5, hidden=("0", "2")), Width(0.5, hidden=("2", "4"))), ValueError, "order the levels",
    ),
    "sum comes back": (wide, ordered(LayerSum("0", again), LayerSum("2", again)), ValueError, "order the levels"),
    "depth comes back": (
        t5, ordered(Depth("encoder.block", keep=1), Depth("decoder.block", keep=1)), ValueError, "must contain",
    ),
    "rank and width": (wide, one([LowRank(0.5), Width(0.5)]), ValueError, "'0' is matched by LowRank and Width"),
    "rank and sum": (
        wide, one([LowRank(0.5, where="2"), LayerSum("2", again)]), ValueError, "'2' is matched by LowRank and",
    ),
    "two ranks": (wide, one([LowRank(0.5, where="0"), LowRank(0.25, where="*")]), ValueError, "'0' is matched by two"),
    "two widths": (wide, one([Width(0.5), Width(0.5)]), ValueError, "'0' is matched by two"),
    "two depths": (llama, one([Depth("layers", keep=1), Depth("layers", keep=2)]), ValueError, "matched by two Depth"),
    "two sums": (wide, one([LayerSum("0", again), LayerSum("0", wrong_shape)]), ValueError, "matched by two LayerSum"),
    "two starts": (
        wide, ordered(LowRank(0.1, where="0"), LowRank(0.5, where="0", init="zero")), ValueError, "has init='svd'",
    ),
    "two orders": (wide, ordered(Width(0.25, order="norm"), Width(0.5)), ValueError, "order|agree"),
    "more blocks than there are": (llama, one(Depth("layers", keep=4)), ValueError, "has 3 blocks and cannot keep 4"),
    "no list": (llama, one(Depth("model.layers.0.mlp", keep=1)), ValueError, "is a LlamaMLP; Depth needs"),
    "unequal outputs": (wide, one(LayerSum("2", wrong_shape)), ValueError, r"'2' .* \(\d, 8\) and \(\d, 9\)"),
    "broadcast": (wide, one(LayerSum("2", would_broadcast)), ValueError, r"'2' .* \(\d, 8\) and \(\d, 1\)"),
    "other inputs": (wide, one(LayerSum("2", lambda _: linear(7, 8))), ValueError, "'2' and the layer made for it"),
    "no module made": (wide, one(LayerSum("2", lambda _: None)), TypeError, "make returned None for '2'"),
    "the layer itself": (wide, one(LayerSum("2", lambda old: old)), ValueError, "returned a module that is '2' itself"),
    "the layer inside": (wide, one(LayerSum("2", nn.Sequential)), ValueError, "'2' itself or shares modules"),
    "a shared weight": (wide, one(LayerSum("2", same_weight)), ValueError, "'2' itself or shares modules or param"),
    "make raises": (wide, one(LayerSum("2", lambda _: 1 / 0)), ZeroDivisionError, "division"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused_leaves_the_model_as_it_was(case: str) -> None:
    build, arguments, error, message = BAD[case]
    model = build().eval()
    with untouched(model), pytest.raises(error, match=message):
        nest(model, **arguments)


@pytest.mark.parametrize("where", ["*", "?", "0*"])
def test_a_pattern_for_everything_is_never_a_pattern_for_nothing(where: str) -> None:
    """The root's name is empty, and a star matches it."""
    nested = nest(wide(), LayerSum(where, again))
    assert nested.nested_modules(), "something matched, so something is nested"


def test_only_modules_that_are_not_nested_or_wrapped_yet() -> None:
    with pytest.raises(TypeError, match=r"first argument of nest must be an nn\.Module, got LowRank"):
        nest(LowRank(0.5), wide())
    nested = nest(wide(), LowRank(0.5))
    for again_ in (nested, nested.model, nn.Sequential(nested.model)):
        with pytest.raises(ValueError, match="nested already"):
            nest(again_, LowRank(0.5))
    with pytest.raises(ValueError, match="nest the model first"):
        nest(nn.DataParallel(wide()), LowRank(0.5))


def test_it_takes_the_model_over_in_place_and_keeps_what_it_does_not_nest() -> None:
    model = mlp().eval()
    last, norm = model[5], model[3]
    nested = nest(model, LowRank(1 / 2, where="0"), norms="shared")
    assert nested.model is model and model[5] is last and model[3] is norm
    assert not nested.training and nested.levels == ("core", "full") and nested.level == "full"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["low_rank", "width", "width_separate", "layer_sum_old"])
def test_the_mode_of_the_model_is_the_mode_of_all_that_is_new_in_it(kind: str, training: bool) -> None:
    """A BatchNorm that trains in a model that evaluates moves its statistics."""
    nested = nest(mlp().train(training), **specs_for(ZOO["mlp"])[kind])
    assert {module.training for module in nested.modules()} == {training}


def test_a_single_frozen_batch_norm_stays_frozen_at_every_level() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    model[1].eval()
    nested = nest(model, Width(1 / 2))
    for level in nested.levels:
        before = copy.deepcopy(nested.state_dict())
        with nested.at(level):
            nested(torch.randn(5, 4))
        assert all(torch.equal(value, before[key]) for key, value in nested.state_dict().items())


@pytest.mark.parametrize("kind", ["low_rank_matched", "low_rank_zero", "widths", "layer_sum_new"])
def test_it_draws_from_its_seed_and_leaves_the_global_generator_alone(kind: str) -> None:
    network, states = ZOO["encoder"], []
    start = network.build()
    for outside in (1, 2):
        torch.manual_seed(outside)
        random = torch.get_rng_state()
        states.append(nest(copy.deepcopy(start), **specs_for(network)[kind]).state_dict())
        assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_another_seed_is_another_start() -> None:
    start = wide()
    a, b = (nest(copy.deepcopy(start), LowRank(0.5, init="matched"), seed=seed).state_dict() for seed in (0, 1))
    assert not torch.equal(a["model.0.U0"], b["model.0.U0"])
    assert not torch.equal(a["model.0.U0"].flatten()[:6], a["model.2.U0"].flatten()[:6]), "nor of another layer"


@pytest.mark.parametrize("spec", [LowRank(1 / 4), Width(1 / 2), Depth("layers", keep=1)])
def test_what_is_frozen_stays_frozen_and_the_rest_trained(spec: Any) -> None:
    model = encoder()
    for layer in model.layers[1:]:
        layer.requires_grad_(False)
    nested = nest(model, spec)
    for name, parameter in nested.named_parameters():
        assert parameter.requires_grad is name.startswith("model.layers.0."), name


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
NORMED_SPECS: dict[str, dict[str, Any]] = {
    "svd": {"spec": LowRank((1 / 4, 1 / 2))},
    "zero": {"spec": LowRank(1 / 4, init="zero")},
    "width": {"spec": Width((1 / 4, 1 / 2), order="norm")},
    "shared": {"spec": Width(1 / 2), "norms": "shared"},
    "sum": {"spec": LayerSum("3", again)},
}


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def x() -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(0))


def same(ours: nn.Module, theirs: nn.Module) -> None:
    a, b = ours.state_dict(), theirs.state_dict()
    assert list(a) == list(b)
    assert all(torch.equal(a[key], b[key]) and a[key].dtype is b[key].dtype for key in b)
    assert [p.requires_grad for p in ours.parameters()] == [p.requires_grad for p in theirs.parameters()]
    assert not any(p.is_inference() for p in ours.parameters())


@pytest.mark.parametrize("kind", NORMED_SPECS)
@pytest.mark.parametrize("around", AROUND)
def test_a_nested_model_and_its_levels_are_the_same_wherever_they_are_made_and_train(kind: str, around: str) -> None:
    expected, given = nest(normed(), **NORMED_SPECS[kind]), normed()
    with AROUND[around]():
        nested = nest(given, **NORMED_SPECS[kind])
    same(nested, expected)
    for level in nested.levels:
        with nested.at(level):
            nested(x())
    for level in nested.levels:
        expected_level = nested.extract(level)
        with AROUND[around]():
            plain = nested.extract(level)
        same(plain, expected_level)
        plain(x()).sum().backward()
        assert all(p.grad is not None for p in plain.parameters())
    nested(x()).sum().backward()
    assert all(p.grad is not None for p in nested.parameters(level="full"))
