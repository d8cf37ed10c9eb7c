"""`state="per_level"`: each level has optimizer state of its own for the parameters that it shares."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from partialsgd import PartialSGD, methods
from partialsgd.testing.runs import assert_same_bits
from tests.methods.training import X, Y, load_through_a_file
from tests.training import family

OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "plain SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
}
ADAMW = OPTIMIZERS["AdamW"]


class Run:
    def __init__(self, make, *ratios: float, method=None, **options) -> None:
        self.nested = family(*ratios)
        self.optimizer = make(self.nested.parameters())
        method = method or methods.alternating()
        self.sgd = PartialSGD(self.nested, self.optimizer, method, **{"state": "per_level", **options})

    def step(self):
        def closure() -> Tensor:
            loss = F.cross_entropy(self.nested(X), Y)
            loss.backward()
            return loss

        return self.sgd.step(closure)

    def tensors(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.nested.state_dict().items()}


@pytest.mark.parametrize("ratios", [(), (0.25, 0.5)], ids=["two levels", "three levels"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_it_is_one_optimizer_for_each_level_on_one_set_of_parameters(make, ratios) -> None:
    run, other = Run(make, *ratios), family(*ratios)
    torch.manual_seed(1)  # for dropout
    levels = [run.step().level for _ in range(9)]
    optimizers = {level: make(list(other.parameters(level=level))) for level in other.levels}
    torch.manual_seed(1)
    for level in levels:
        with other.at(level):
            F.cross_entropy(other(X), Y).backward()
        optimizers[level].step()
        optimizers[level].zero_grad()
    assert_same_bits({name: value.clone() for name, value in other.state_dict().items()}, run.tensors())


def test_shared_state_is_another_training() -> None:
    shared, own = Run(ADAMW, state="shared"), Run(ADAMW)
    for run in (shared, own):
        torch.manual_seed(1)
        for _ in range(4):
            run.step()
    assert any(not torch.equal(a, b) for a, b in zip(shared.nested.parameters(), own.nested.parameters(), strict=True))
    assert not any(key.startswith("state at") for key in shared.sgd.memory)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_run_has_the_states_of_all_levels(stop: int) -> None:
    whole, resumed = Run(ADAMW), Run(ADAMW)
    for _ in range(stop):
        whole.step()
    load_through_a_file([whole.nested, whole.optimizer, whole.sgd], [resumed.nested, resumed.optimizer, resumed.sgd])
    random = torch.get_rng_state()
    for run in (whole, resumed):
        torch.set_rng_state(random)
        for _ in range(4):
            run.step()
    assert_same_bits(whole.tensors(), resumed.tensors())
    with pytest.raises(ValueError, match="saved with state='per_level', and this has state='shared'"):
        Run(ADAMW, state="shared").sgd.load_state_dict(whole.sgd.state_dict())


def test_a_state_that_was_saved_is_not_changed_by_later_steps() -> None:
    run = Run(ADAMW)
    for _ in range(3):
        run.step()
    saved = run.sgd.state_dict()["memory"]
    before = {key: value.clone() for key, value in saved.items() if isinstance(value, Tensor)}
    assert before
    for _ in range(3):
        run.step()
    assert all(torch.equal(saved[key], value) for key, value in before.items())


def test_an_update_that_fails_takes_the_exchange_back(monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = Run(ADAMW), Run(ADAMW)
    for each in (run, other):
        torch.manual_seed(1)
        each.step()
    random = torch.get_rng_state()
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.step()
    run.nested.load_state_dict(other.nested.state_dict())  # the statistics of BatchNorm, which the failed pass moved
    for each in (run, other):
        torch.set_rng_state(random)
        for _ in range(3):
            each.step()
    assert_same_bits(run.tensors(), other.tensors())


def test_what_has_no_single_level_is_refused() -> None:
    for method, message in ((methods.slimmable(), "trains several"), (methods.plain(), "trains no level")):
        run = Run(ADAMW, method=method)
        with pytest.raises(ValueError, match=message):
            run.step()
    with pytest.raises(ValueError, match="needs outside='hold', got 'reset'"):
        Run(ADAMW, outside="reset")
    with pytest.raises(ValueError, match="state must be one of shared, per_level; got 'own'"):
        Run(ADAMW, state="own")
