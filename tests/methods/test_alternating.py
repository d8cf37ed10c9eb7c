"""Algorithm 2, and what it may be told."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from partialsgd import OutputSum, PartialSGD, methods, nest, soft_cross_entropy
from partialsgd.testing.runs import assert_same_bits
from tests.families import family

X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


def train(nested, method, steps=6, closure=None, **options):
    sgd = PartialSGD(nested, torch.optim.SGD(nested.parameters(), 0.1), method, **options)

    def plain():
        loss = F.cross_entropy(nested(X), Y)
        loss.backward()
        return loss

    return [sgd.step(closure or plain) for _ in range(steps)]


def test_the_whole_network_at_even_t_and_the_core_at_odd_t() -> None:
    nested = family()
    assert [s.level for s in train(nested, methods.alternating(nested))] == ["full", "core"] * 3


def test_more_levels_go_from_the_largest_down() -> None:
    nested = family(0.25, 0.5)
    levels = [s.level for s in train(nested, methods.alternating(nested), 7)]
    assert levels == ["full", "1/2", "1/4", "full", "1/2", "1/4", "full"]


def test_algorithm_2_written_out() -> None:
    """x ← x − γ p ⊙ ∇f(p ⊙ x) by hand, on the full network with numbers outside the core at zero."""
    nested, by_hand = family(kind="low_rank"), family(kind="low_rank")
    for one in (nested, by_hand):
        one.model[1], one.model[3] = torch.nn.Identity(), torch.nn.Identity()  # no BatchNorm, no dropout
    train(nested, methods.alternating(nested, lr={"core": 0.5}), 6)
    core = set(by_hand.parameters(level="core"))
    for t in range(6):
        saved = [p.detach().clone() for p in by_hand.parameters()]
        if t % 2:
            with torch.no_grad():
                [p.zero_() for p in by_hand.parameters() if p not in core]
        loss = F.cross_entropy(by_hand(X), Y)
        gradients = torch.autograd.grad(loss, list(by_hand.parameters()), allow_unused=True)
        with torch.no_grad():
            for p, old, g in zip(by_hand.parameters(), saved, gradients, strict=True):
                p.copy_(old)
                if g is not None and (t % 2 == 0 or p in core):
                    p.sub_(g, alpha=0.1 * (0.5 if t % 2 else 1.0))
    for p, q in zip(nested.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_order_is_a_cycle_and_weights_are_odds() -> None:
    nested = family(0.25, 0.5)
    method = methods.alternating(nested, order=("1/4", "1/4", "full"))
    assert [s.level for s in train(nested, method, 5)] == ["1/4", "1/4", "full", "1/4", "1/4"]
    method = methods.alternating(nested, weights={"full": 1, "1/2": 0, "1/4": 3})
    drawn = Counter(s.level for s in train(nested, method, 400))
    assert set(drawn) == {"full", "1/4"}
    assert 60 < drawn["full"] < 140  # 100 expected, deviation 9
    again = [s.level for s in train(nested, method, 20)]
    assert again == [s.level for s in train(nested, method, 20)] != [s.level for s in train(nested, method, 20, seed=1)]


def test_a_level_may_have_its_own_learning_rate() -> None:
    moves = []
    for factor in (1.0, 0.25):
        nested = family(kind="low_rank")
        nested.eval()
        before = [p.detach().clone() for p in nested.parameters(level="core")]
        train(nested, methods.alternating(nested, order=["core"], lr={"core": factor}), 1)
        moves.append([p.detach() - q for p, q in zip(nested.parameters(level="core"), before, strict=True)])
    for whole, quarter in zip(*moves, strict=True):
        torch.testing.assert_close(quarter, whole * 0.25, rtol=1e-4, atol=1e-7)


def test_distillation_finds_the_whole_network_in_the_teacher() -> None:
    nested = family()
    seen = []

    def closure(g):
        outputs = nested(X)
        seen.append((g.level, g.teacher))
        if g.teacher is None:
            loss = F.cross_entropy(outputs, Y)
        else:
            with torch.no_grad(), nested.at("full"):
                nested.model[3].eval()
                nested.model[3].train()
            loss = soft_cross_entropy(outputs, g.teacher)
        loss.backward()
        return loss

    nested.model[3].p = 0.0
    full_norm = nested.model[1].get_submodule("full")
    train(nested, methods.alternating(nested, distill=True), 2, closure)
    (first, none), (second, teacher) = seen
    assert (first, none, second) == ("full", None, "core")
    assert teacher.shape == (16, 3) and not teacher.requires_grad
    assert int(full_norm.num_batches_tracked) == 1  # the teacher's pass left no trace
    assert nested.teacher is None


TWO = {
    "SGD and Adagrad": (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01), torch.optim.Adagrad),
    "Adam and Adam": (lambda p: torch.optim.Adam(p, 0.02, weight_decay=0.1), torch.optim.Adam),
    "AdamW and SGD": (torch.optim.AdamW, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
}
CROSSED = torch.randn(16, 30, generator=torch.Generator().manual_seed(1))


class WideAndDeep:
    """The sum of a linear model of crossed features and a deep network, each with an optimizer of its own."""

    def __init__(self, wide_optimizer, deep_optimizer) -> None:
        torch.manual_seed(0)
        self.deep = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
        self.wide = nn.Linear(30, 3)
        self.optimizers = [wide_optimizer(self.wide.parameters()), deep_optimizer(self.deep.parameters())]

    def nested(self):
        self.family = nest(OutputSum(core=self.deep, extension=self.wide, inputs=((0,), (1,))))
        self.sgd = PartialSGD(self.family, self.optimizers, methods.alternating(self.family))
        return self

    def step(self) -> str | None:
        def closure():
            loss = F.cross_entropy(self.family(X, CROSSED), Y)
            loss.backward()
            return loss

        return self.sgd.step(closure).level

    def tensors(self, part: int) -> dict[str, torch.Tensor]:
        model, optimizer = (self.wide, self.deep)[part], self.optimizers[part]
        found = {f"model.{name}": p for name, p in model.named_parameters()}
        for name, p in model.named_parameters():
            found |= {f"{key}.{name}": value for key, value in optimizer.state.get(p, {}).items()}
        return {name: value.detach().clone() for name, value in found.items()}


@pytest.mark.parametrize("optimizers", TWO.values(), ids=TWO)
def test_wide_and_deep_with_an_optimizer_for_each_part(optimizers) -> None:
    """The same as both by hand: at even t on the sum, at odd t the deep one alone; the wide part then stands still."""
    run, by_hand = WideAndDeep(*optimizers).nested(), WideAndDeep(*optimizers)
    for t in range(12):
        before = run.tensors(0)
        level = run.step()
        outputs = by_hand.deep(X) + by_hand.wide(CROSSED) if t % 2 == 0 else by_hand.deep(X)
        F.cross_entropy(outputs, Y).backward()
        for optimizer in by_hand.optimizers if t % 2 == 0 else by_hand.optimizers[1:]:
            optimizer.step()
        [optimizer.zero_grad() for optimizer in by_hand.optimizers]
        assert level == ("full", "core")[t % 2]
        for part in (0, 1):
            assert_same_bits(run.tensors(part), by_hand.tensors(part))
        same = all(torch.equal(before[n], now) for n, now in run.tensors(0).items() if n in before)
        assert same == (level == "core")


@pytest.mark.parametrize("stop", [3, 4])
@pytest.mark.parametrize("optimizers", TWO.values(), ids=TWO)
def test_wide_and_deep_goes_on_from_the_states_of_both_optimizers(optimizers, stop: int) -> None:
    whole, resumed = WideAndDeep(*optimizers).nested(), WideAndDeep(*optimizers).nested()
    for t in range(9):
        if t == stop:
            states = [whole.family, *whole.optimizers, whole.sgd]
            saved = copy.deepcopy([one.state_dict() for one in states])
        whole.step()
    for one, state in zip([resumed.family, *resumed.optimizers, resumed.sgd], saved, strict=True):
        one.load_state_dict(state)
    for t in range(stop, 9):
        assert resumed.step() == ("full", "core")[t % 2]
    for part in (0, 1):
        assert_same_bits(whole.tensors(part), resumed.tensors(part))


def test_the_deep_part_comes_out_alone_and_so_does_the_sum() -> None:
    run = WideAndDeep(*TWO["SGD and Adagrad"]).nested()
    [run.step() for _ in range(4)]
    deep, both = run.family.extract("core"), run.family.extract("full")
    with torch.no_grad():
        assert torch.equal(deep(X), run.deep(X))
        assert torch.equal(both(X, CROSSED), run.deep(X) + run.wide(CROSSED))


def test_an_optimizer_that_is_missing_is_named() -> None:
    run = WideAndDeep(*TWO["Adam and Adam"]).nested()
    with pytest.raises(ValueError, match="extension"):
        PartialSGD(run.family, run.optimizers[1:], methods.alternating(run.family))


def test_what_it_refuses() -> None:
    nested = family()
    with pytest.raises(ValueError, match="no level 'small'; there are 'core', 'full'"):
        methods.alternating(nested, order=["small"])
    with pytest.raises(ValueError, match="no level 'small'"):
        methods.alternating(nested, lr={"small": 1.0})
    with pytest.raises(ValueError, match="one of them"):
        methods.alternating(nested, order=["core"], weights={"core": 1.0})
    with pytest.raises(ValueError, match="must not be empty"):
        methods.alternating(nested, weights={"core": 0.0})
    with pytest.raises(ValueError, match="must not be empty"):
        methods.alternating(nested, order=[])
    with pytest.raises(ValueError, match="negative"):
        methods.alternating(nested, weights={"core": -1.0})
