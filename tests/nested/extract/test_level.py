"""`extract` returns a plain network that computes the same, or raises."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partialsgd import LayerSum, LowRank, Nested, Width, nest
from partialsgd.nested.layers.low_rank import LowRankLayer
from partialsgd.nested.layers.narrow import NarrowLayer
from partialsgd.testing.problems import Tied
from tests.nested.checks import assert_no_trace, output, shaken, untouched
from tests.zoo import CASES, ZOO, again, specs_for, t5

FULL = [(name, kind) for name, kind in CASES if kind in ("ranks", "widths_separate", "depth_and_width")]


def nested_model(spec: Any) -> Nested:
    body = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 8), nn.Tanh()]
    nested = nest(nn.Sequential(*body, nn.Linear(8, 3)), spec)
    for level in nested.levels:
        with nested.at(level):
            nested(torch.randn(5, 6))
    return nested


@pytest.mark.parametrize(("name", "kind"), FULL)
def test_the_full_level_has_the_class_and_the_keys_of_the_model(name: str, kind: str) -> None:
    network = ZOO[name]
    model = shaken(network.build()).eval()
    before = copy.deepcopy(model)
    nested = nest(model, **specs_for(network)[kind])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plain = nested.extract("full", example=network.inputs(3))
    assert type(plain) is type(before)
    assert [(n, type(m)) for n, m in plain.named_modules()] == [(n, type(m)) for n, m in before.named_modules()]
    ours, theirs = plain.state_dict(), before.state_dict()
    assert list(ours) == list(theirs)
    assert all(ours[key].shape == theirs[key].shape and ours[key].dtype is theirs[key].dtype for key in theirs)
    before.load_state_dict(ours)
    torch.testing.assert_close(output(before, network.inputs(3)), output(plain, network.inputs(3)))
    assert_no_trace(plain)


LEVEL_SPECS = [
    Width(1 / 2), Width(1 / 2, order="norm"), LowRank(1 / 2), LowRank(1 / 2, init="zero"), LayerSum("4", again),
]  # fmt: skip


@pytest.mark.parametrize("level", ["core", "full"])
@pytest.mark.parametrize("spec", LEVEL_SPECS)
def test_taking_a_level_out_changes_nothing_in_the_nested_model_and_shares_nothing_with_it(
    spec: Any, level: str
) -> None:
    """Modes of single modules, statistics, gradients, hooks and noise."""
    nested = nested_model(spec)
    nested(torch.randn(5, 6)).sum().backward()
    for frozen in (1, 3, 4):  # a norm, a plain module and a nested layer
        nested.model[frozen].eval()
    with untouched(nested):
        plain = nested.extract(level)
    assert nested.level == "full"
    with nested.at("core"):
        nested.extract(level)
        assert nested.level == "core", "and the level that runs stays"
    ours, theirs = (
        {t.untyped_storage().data_ptr() for t in m.state_dict().values() if t.numel()} for m in (plain, nested)
    )
    assert not ours & theirs
    assert all(p.is_leaf and p.grad is None for p in plain.parameters())
    assert [m.training for m in plain] == [True, False, True, False, False, True, True] and plain.training


DIFFERS_WHEN: dict[str, Callable[[nn.Module, Tensor], bool]] = {
    "always": lambda module, y: True,
    "training": lambda module, y: module.training,
    "evaluation": lambda module, y: not module.training,
    "with gradients": lambda module, y: torch.is_grad_enabled(),
    "without gradients": lambda module, y: not torch.is_grad_enabled(),
    "batch of 3": lambda module, y: len(y) == 3,
}


@pytest.mark.parametrize("when", DIFFERS_WHEN)
@pytest.mark.parametrize(("kind", "spec"), [(NarrowLayer, Width(1 / 2)), (LowRankLayer, LowRank(1 / 2))])
def test_an_extracted_layer_that_differs_is_refused(kind: Any, spec: Any, when: str, monkeypatch) -> None:
    nested, extract = nested_model(spec), kind.extract

    def tampered(self: Any, level: str, memo: dict[int, Any]) -> nn.Module:
        plain: nn.Module = extract(self, level, memo)
        plain.register_forward_hook(lambda module, _, y: y + (1e-2 if DIFFERS_WHEN[when](module, y) else 0.0))
        return plain

    monkeypatch.setattr(kind, "extract", tampered)
    for level in nested.levels:
        with untouched(nested), pytest.raises(RuntimeError, match=f"level '{level}' does not compute"):
            nested.extract(level)
        assert nested.level == "full"


@dataclass
class Answer:
    """No container that torch knows."""

    logits: Tensor


class Body(nn.Module):
    """A feed-forward network, and a function of its outputs and the inputs."""

    def __init__(self, after: Callable[..., Any]) -> None:
        super().__init__()
        self.body, self.after = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), after

    def forward(self, x: Tensor, *others: Tensor) -> Any:
        return self.after(self.body(x), *others)


def test_outputs_that_cannot_be_compared_are_not_taken_for_equal() -> None:
    nested = nest(Body(Answer), Width(1 / 2, hidden=("0", "2")))
    nested(torch.randn(5, 6))
    with pytest.raises(RuntimeError, match="floating-point"):
        nested.extract("core")


@pytest.mark.parametrize("affine", [True, False])
def test_a_layer_norm_over_the_hidden_units_is_refused(affine: bool) -> None:
    """Its size would have to change, and what it computes depends on all units."""
    norm = nn.LayerNorm(8, elementwise_affine=affine)
    model = nn.Sequential(nn.Linear(6, 8), norm, nn.Linear(8, 3))
    nested, x = nest(model, Width(1 / 2, hidden=("0", "2"))), torch.randn(5, 6)
    with untouched(nested), pytest.raises(RuntimeError):
        nested.extract("core", example=x)
    assert nested.level == "full"


def test_the_last_example_is_used_or_asked_for() -> None:
    nested = nest(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), LowRank(1 / 2))
    with pytest.raises(ValueError, match=r"checked on an input: call the nested model once, or .*example=x"):
        nested.extract("core")
    with pytest.raises(ValueError, match="there are 'core', 'full'"):
        nested.extract("small", example=torch.randn(4, 6))
    nested(torch.randn(4, 6))
    assert type(nested.extract("core")[0]) is nn.Sequential
    for example in (torch.randn(1, 6), (torch.randn(9, 6),), {"input": torch.randn(2, 6)}):
        nested.extract("core", example=example)


def test_a_nested_model_that_was_first_called_for_inference() -> None:
    nested = nest(Body(torch.mul), Width(1 / 2, hidden=("0", "2")))
    with torch.inference_mode():
        nested(torch.randn(4, 6), torch.tensor([1, 0, 1]))
    assert type(nested.extract("core")) is Body


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["low_rank", "widths", "depth"])
def test_other_precisions_come_out_as_they_are(kind: str, dtype: torch.dtype) -> None:
    network = ZOO["encoder"]
    nested = nest(network.build().to(dtype), **specs_for(network)[kind])
    for level in nested.levels:
        plain = nested.extract(level, example=network.inputs(3)["src"].to(dtype))
        assert {p.dtype for p in plain.parameters()} == {dtype}


def test_ties_stay_ties() -> None:
    nested = nest(Tied(), LowRank(1 / 2, where="hidden"))
    ids = torch.randint(11, (3, 4), generator=torch.Generator().manual_seed(0))
    for level in nested.levels:
        plain = nested.extract(level, example=ids)
        assert plain.head.weight is plain.embedding.weight
    plain = nest(t5(), Width(1 / 2)).extract("core")
    assert plain.lm_head.weight is plain.shared.weight is plain.encoder.embed_tokens.weight


def test_noise_from_another_generator_than_torchs_does_not_fail_the_check() -> None:
    """Some networks of speech mask time steps in training by numpy's generator."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.random = nn.Linear(4, 6), nn.Linear(6, 2), random.Random(0)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.b(self.a(x).relu())
            return y * self.random.random() if self.training else y

    nested = nest(Masked(), Width(1 / 2))
    assert nested.extract("core", example=torch.randn(3, 4)).a.out_features == 3
