"""`--state per_level`: each level trains with moments of its own, and a stopped run goes on with the same bits."""

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
from tests.lab import toy
from tests.lab.checks import remains
from tests.lab.toy import Toy, at_batch, stop, trained

pytestmark = pytest.mark.usefixtures("toy")


def test_each_level_has_an_adam_of_its_own(tmp_path: Path) -> None:
    """The run is the definition: two Adams over the same weights, each stepped by its own level only."""
    run = trained(tmp_path / "run", state="per_level", dropout=0.0)
    task = toy.build(Toy(dropout=0.0))
    network = task.network
    adams = {level: torch.optim.Adam(network.parameters(level=level), lr=0.01) for level in network.levels}
    for t in range(14):
        level = ("full", "core")[t % 2]
        x = task.batches.make(*divmod(t, 7))
        with network.at(level):
            loss = (network(x).squeeze(1) - x.sum(dim=1)).square().sum()
            (loss * (1.0 / len(x))).backward()
        adams[level].param_groups[0]["lr"] = 0.01 / (1 + t)
        adams[level].step()
        network.zero_grad()
    latest = checkpoints.latest(run.checkpoints)
    assert latest is not None
    for name, tensor in latest[1]["model"]["tensors"].items():
        torch.testing.assert_close(tensor, network.model.state_dict()[name], rtol=1e-5, atol=1e-6)
    shared = trained(tmp_path / "shared", dropout=0.0)
    assert remains(shared.path) != remains(run.path)


def test_stopped_it_goes_on_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"state": "per_level", "norm": True, "checkpoint_every": 3}
    whole, place = trained(tmp_path / "whole", **options), tmp_path / "stopped"
    with monkeypatch.context() as patch:
        at_batch(4, partial(stop), patch)
        with pytest.raises(loop.Stopped):
            trained(place, **options)
    loop.resume(Run.open(place))
    assert remains(place) == remains(whole.path)


def test_what_keeps_one_state_is_refused_and_levels_alone_share_none() -> None:
    for other in ({"part_ways": 0.5}, {"shard": True}):
        with pytest.raises(ValueError, match="keeps one optimizer state of each parameter"):
            Toy(state="per_level", **other)
    assert alone_settings(Toy(state="per_level"), "core", ["core", "full"]).state == "shared"
