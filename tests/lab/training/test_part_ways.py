"""`--part-ways`: the last share of the FLOPs trains each extracted network alone."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import partialsgd as ps
from partialsgd.lab.page import write_page
from partialsgd.lab.reproduce.compare import alone_settings
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.runs.export_run import export_level
from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.use_run import evaluate, open_task
from partialsgd.lab.training import loop
from partialsgd.lab.training.errors import WrongCall
from partialsgd.nested.layers.separate import SeparateLevels
from tests.lab import toy
from tests.lab.checks import remains
from tests.lab.toy import Toy, at_batch, stop, trained

pytestmark = pytest.mark.usefixtures("toy")

PARTED: dict[str, Any] = {"part_ways": 0.4, "norm": True, "measure_every": 2, "epochs": 2}
"""Of 14 steps 8 are joint, and 6 are those of the networks alone: 3 for each."""


def test_the_run_is_the_definition(tmp_path: Path) -> None:
    """Joint steps, then both extracted networks by turns, each with an optimizer that has the moments it had."""
    run = trained(tmp_path / "run", part_ways=0.4, dropout=0.0)
    task = toy.build(Toy(dropout=0.0))
    network, (optimizer,) = task.network, task.optimizers
    for t in range(8):
        network_step(network, optimizer, task, t, ("full", "core")[t % 2])
    alone = {level: network.extract(level, example=torch.eye(3)).train() for level in network.levels}
    optimizers = {level: torch.optim.Adam(plain.parameters(), lr=0.01) for level, plain in alone.items()}
    for level, plain in alone.items():
        for name, parameter in plain.named_parameters():
            optimizers[level].state[parameter] = joined(network, optimizer, level, name)
    for k in range(6):
        level = ("full", "core")[k % 2]
        network_step(alone[level], optimizers[level], task, 8 + k)
    found = checkpoints.latest(run.checkpoints)
    assert found is not None and found[0] == 14
    for index, level in enumerate(network.levels):
        for name, tensor in alone[level].state_dict().items():
            saved = found[1]["model"]["tensors"][f"networks.{index}.{name}"]
            torch.testing.assert_close(saved, tensor, rtol=1e-5, atol=1e-6)
    summary = run.summary
    assert summary is not None and summary["steps"] == 14
    assert {level: row["updates"] for level, row in summary["levels"].items()} == {"core": 7, "full": 7}


def network_step(network: Any, optimizer: Any, task: Any, t: int, level: str | None = None) -> None:
    x = task.batches.make(*divmod(t, 7))
    with network.at(level) if level else torch.enable_grad():
        ((network(x).squeeze(1) - x.sum(dim=1)).square().sum() * (1.0 / len(x))).backward()
    optimizer.param_groups[0]["lr"] = 0.01 / (1 + t)
    optimizer.step()
    optimizer.zero_grad()


def joined(network: ps.Nested, optimizer: Any, level: str, name: str) -> dict[str, Any]:
    """The state of an extracted parameter: extracted as if the moments were weights."""
    state: dict[str, Any] = {}
    for key in ("exp_avg", "exp_avg_sq", "step"):
        holder = copy.deepcopy(network)
        with torch.no_grad():
            for held, parameter in zip(holder.parameters(), network.parameters(), strict=True):
                held.copy_(optimizer.state[parameter][key].expand_as(held))
        state[key] = dict(holder.extract(level, example=torch.eye(3)).named_parameters())[name].detach().clone()
    return {**state, "step": state["step"].max()}


def test_the_share_of_the_flops_is_that_of_the_networks_alone(tmp_path: Path) -> None:
    for method, joint in (("alternating", 8), ("slimmable", 8), ("alternating(order=['full', 'full', 'core'])", 8)):
        run = trained(tmp_path / str(len(method)), method=method, part_ways=0.4)
        lines = ps.logging.read(run.metrics)
        summary = run.summary
        assert summary is not None
        total = sum(row["flops"] for row in summary["levels"].values())
        alone = sum(3 * line["points"] / 2 for line in lines[joint:])
        assert alone / total == pytest.approx(0.4, abs=0.06), method


@pytest.mark.parametrize("changes", [{}, {"precision": "bf16"}, {"distill": "cached"}])
def test_stopped_or_failed_anywhere_it_goes_on_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any
) -> None:
    whole = trained(tmp_path / "whole", **PARTED, **changes)
    place = tmp_path / "stopped"
    for position in (2, 6, 8, 10):
        with monkeypatch.context() as patch:
            at_batch(position, partial(stop), patch)
            with pytest.raises(loop.Stopped):
                loop.resume(Run.open(place)) if position > 2 else trained(place, **PARTED, **changes)
    with monkeypatch.context() as patch, pytest.raises(KeyError):
        at_batch(11, partial({}.__getitem__, "gone"), patch)
        loop.resume(Run.open(place))
    loop.resume(Run.open(place))
    assert remains(place) == remains(whole.path)


def test_a_run_that_has_parted_is_used_as_any_other(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", **PARTED)
    task: Any = open_task(run, "last")
    assert isinstance(task.network.model, SeparateLevels)
    scores, _ = evaluate(run, checkpoint="last")
    assert set(scores) == {"core", "full"}
    export_level(run, "core", to=tmp_path / "core", checkpoint="last")
    assert (tmp_path / "core" / "model.safetensors").exists()
    write_page([run.path], to=tmp_path / "page.html")
    assert ps.export.load(run.last, copy.deepcopy(task.network.model.network("full"))).levels == ("core", "full")


@pytest.mark.parametrize("best", [3, 14])
def test_the_best_may_be_from_before_the_parting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: int) -> None:
    scores = iter([1.0, 0.0] if best == 3 else [0.0, 1.0])
    monkeypatch.setattr(toy.ToyTask, "selection_score", lambda self, evaluations: next(scores))
    run = trained(tmp_path / "run", **PARTED)
    task: Any = open_task(run)
    assert isinstance(task.network.model, SeparateLevels) == (best == 14)
    summary = run.summary
    assert summary is not None
    assert {level: row["test"] for level, row in summary["levels"].items()} == evaluate(run)[0]


FROM_THE_START: dict[str, Any] = {"part_ways": 1.0, "distill": "cached", "norm": True, "epochs": 2}


def test_levels_that_share_nothing_from_the_start_have_the_method_of_the_run(tmp_path: Path) -> None:
    """The full network is trained as by a plain loop over every other batch, and teaches the core on the same."""
    run = trained(tmp_path / "run", part_ways=1.0, distill="cached", dropout=0.0)
    task = toy.build(Toy(dropout=0.0))
    whole = task.network.extract("full", example=torch.eye(3)).train()
    optimizer = torch.optim.Adam(whole.parameters(), lr=0.01)
    for t in range(0, 14, 2):
        x = task.batches.make(*divmod(t, 7))
        ((whole(x).squeeze(1) - x.sum(dim=1)).square().sum() * (1.0 / len(x))).backward()
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + t)
        optimizer.step()
        optimizer.zero_grad()
    found = checkpoints.latest(run.checkpoints)
    assert found is not None and found[0] == 14 and found[1]["parting"] is None
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(found[1]["model"]["tensors"][f"networks.1.{name}"], tensor, rtol=1e-5, atol=1e-6)
    untaught = checkpoints.latest(trained(tmp_path / "untaught", part_ways=1.0, dropout=0.0).checkpoints)
    assert untaught is not None
    core = {name: tensor for name, tensor in found[1]["model"]["tensors"].items() if name.startswith("networks.0.")}
    assert not any(torch.equal(tensor, untaught[1]["model"]["tensors"][name]) for name, tensor in core.items())


def test_a_run_whose_levels_share_nothing_from_the_start_is_resumed_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(tmp_path / "whole", **FROM_THE_START)
    with monkeypatch.context() as patch, pytest.raises(loop.Stopped):
        at_batch(6, partial(stop), patch)
        trained(tmp_path / "stopped", **FROM_THE_START)
    loop.resume(Run.open(tmp_path / "stopped"))
    assert remains(tmp_path / "stopped") == remains(whole.path)
    task: Any = open_task(whole)
    assert isinstance(task.network.model, SeparateLevels)
    summary = whole.summary
    assert summary is not None
    assert {level: row["test"] for level, row in summary["levels"].items()} == evaluate(whole)[0]
    export_level(whole, "core", to=tmp_path / "core")
    assert (tmp_path / "core" / "model.safetensors").exists()


def test_what_cannot_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"part_ways must be in \[0, 1\], got 1.5"):
        Toy(part_ways=1.5)
    with pytest.raises(ValueError, match="use one of both"):
        Toy(part_ways=0.5, shard=True)
    with pytest.raises(ValueError, match="with part_ways=1 omit measure_every"):
        Toy(part_ways=1.0, measure_every=2)
    for method in ("plain", "dropout", "alternating(order='criterion')"):
        with pytest.raises(WrongCall, match=r"part_ways=1 needs a method that trains every level"):
            trained(tmp_path / "run", part_ways=1.0, method=method)
        assert not (tmp_path / "run").exists()
    alone = alone_settings(Toy(part_ways=0.5), "core", ["core", "full"])
    assert alone.part_ways == 0.0
