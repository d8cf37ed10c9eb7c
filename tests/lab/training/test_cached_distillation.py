"""`--distill cached`: the loop repeats batches where the method says so, and goes on with the same bits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from partialsgd.lab.reproduce.compare import alone_settings
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop
from partialsgd.lab.training.errors import WrongCall
from tests.lab import toy
from tests.lab.checks import remains
from tests.lab.toy import Toy, ToyBatches, at_batch, stop, trained

pytestmark = pytest.mark.usefixtures("toy")

CACHED: dict[str, Any] = {"distill": "cached", "norm": True, "measure_every": 2, "checkpoint_every": 3, "epochs": 2}


def test_a_step_of_the_core_has_the_batch_of_the_full_step_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is the definition: both levels on one batch, the core taught by what the full level computed there."""
    drawn: list[tuple[int, int]] = []
    make = ToyBatches.make
    monkeypatch.setattr(ToyBatches, "make", lambda self, *at: (drawn.append(at), make(self, *at))[1])
    run = trained(tmp_path / "run", distill="cached", dropout=0.0)
    assert drawn == [divmod(position - position % 2, 7) for position in range(14)]
    task = toy.build(Toy(dropout=0.0))
    (optimizer,), network = task.optimizers, task.network
    teacher = torch.zeros(0)
    for t in range(14):
        x = make(task.batches, *drawn[t])
        with network.at(("full", "core")[t % 2]):
            outputs = network(x).squeeze(1)
            loss = (outputs - x.sum(dim=1)).square().sum()
            loss = loss if t % 2 == 0 else (loss + (outputs - teacher).square().sum()) / 2
            (loss * (1.0 / len(x))).backward()
        teacher = outputs.detach()
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + t)
        optimizer.step()
        optimizer.zero_grad()
    found = checkpoints.latest(run.checkpoints)
    assert found is not None
    for name, tensor in found[1]["model"]["tensors"].items():
        torch.testing.assert_close(tensor, network.model.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_stopped_or_failed_in_between_it_goes_on_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is due between the two steps of a batch is written after the second."""
    whole = trained(tmp_path / "whole", **CACHED)
    place = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        at_batch(4, partial(stop), patch)
        with pytest.raises(loop.Stopped, match="stopped after step 6"):
            trained(place, **CACHED)
    with monkeypatch.context() as patch, pytest.raises(KeyError):
        at_batch(12, partial({}.__getitem__, "gone"), patch)
        loop.resume(Run.open(place))
    assert [int(path.stem) for path in sorted((place / "checkpoints").glob("*.safetensors"))] == [6, 10, 12]
    loop.resume(Run.open(place))
    assert remains(place) == remains(whole.path)


def test_with_another_method_or_weight_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="the method 'plain': got an unexpected keyword argument 'distill'"):
        trained(tmp_path / "plain", method="plain", distill="cached")
    with pytest.raises(ValueError, match=r"distill_weight must be in \(0, 1\], got 0.0; for 0 omit distill"):
        Toy(distill="cached", distill_weight=0.0)
    assert Toy(distill="cached").taught_share == 0.5 and Toy().taught_share == 1.0


def test_levels_alone_have_no_teacher() -> None:
    alone = alone_settings(Toy(distill="cached"), "core", ["core", "full"])
    assert alone.distill is None and alone.method == "only('core')"
