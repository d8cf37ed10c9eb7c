"""Generators and buffers, put back."""

from __future__ import annotations

import torch
from torch import nn

from partialsgd import PartialSGD, methods
from partialsgd._util.snapshots import Buffers, RandomState, Snapshot, draws, dropout_off
from partialsgd.testing.problems import PROBLEMS

BATCHNORM = next(p for p in PROBLEMS if p.name == "batchnorm")


def test_statistics_are_put_back_in_place() -> None:
    model = nn.BatchNorm1d(3)
    buffer, saved = model.running_mean, Buffers(model)
    model(torch.randn(8, 3) + 5)
    assert float(buffer.abs().sum()) > 0
    saved.restore()
    assert model.running_mean is buffer and float(buffer.abs().sum()) == 0 and int(model.num_batches_tracked) == 0


def test_both_passes_of_sam_see_the_same_dropout_and_move_the_statistics_once_at_x() -> None:
    model, twin = BATCHNORM.model(), BATCHNORM.model()
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), methods.sam(0.1))
    masks, losses = [], []
    model[4].register_forward_hook(lambda m, i, o: masks.append((o == 0) & (i[0] != 0)))

    def closure():
        loss = BATCHNORM.closure(model, 0)()
        losses.append(float(loss.detach()))
        return loss

    torch.manual_seed(5)
    step = sgd.step(closure)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    BATCHNORM.closure(twin, 0)()
    assert torch.equal(after, torch.get_rng_state()), "the generator advances as in one pass"
    assert torch.equal(masks[0], masks[1]) and losses[0] != losses[1]
    assert float(step.loss) == losses[0], "the loss is the one at x_t"
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))


def test_whether_something_was_drawn_is_seen() -> None:
    state = RandomState(nn.Linear(2, 2))
    assert state.is_now
    first = torch.rand(1)
    assert not state.is_now
    state.restore()
    assert state.is_now and torch.equal(first, torch.rand(1))


def test_quietly_there_is_no_dropout_and_batches_still_make_their_statistics() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.LSTM(8, 2))
    model[2].training = True
    model[0].training = False
    x, state, before = torch.randn(6, 3), RandomState(model), Snapshot(model)
    assert draws(model) and not draws(model[:2])
    with dropout_off(model):
        modes = [m.training for m in model]
        model[:3](x)
    assert modes == [False, True, False, True] and state.is_now
    assert [m.training for m in model] == [False, True, True, True], "as they were, not as they should be"
    assert float(model[1].running_mean.abs().sum()) > 0
    torch.rand(1)
    before.restore()
    assert state.is_now and float(model[1].running_mean.abs().sum()) == 0
    model[2].p = 0.0
    assert not draws(model)
