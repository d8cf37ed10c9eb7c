"""The counters of a training, and which levels decide about the best checkpoint."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import partialsgd as ps
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.training import launch, loop
from partialsgd.lab.training.method_text import parse_method
from partialsgd.lab.training.state import TrainingState
from tests.lab.toy import Toy, build

pytestmark = pytest.mark.usefixtures("toy")

SMALL = Toy(max_steps=6, threads=1)


def summary(out: Path, **changes: Any) -> dict[str, Any]:
    finished = loop.train(replace(SMALL, out=str(out), **changes), show=False).summary
    assert finished is not None
    return finished


def test_measuring_is_not_training_and_each_pass_costs_what_its_level_costs(tmp_path: Path) -> None:
    bare, measured = summary(tmp_path / "a"), summary(tmp_path / "b", measure_every=1)
    twice = summary(tmp_path / "c", method="compose(alternating, sam)")
    for level in ("core", "full"):
        flops = [each["levels"][level]["flops"] for each in (bare, measured, twice)]
        assert flops[0] == flops[1] and flops[2] == 2 * flops[0] > 0
        assert bare["levels"][level]["updates"] == 3
    assert bare["levels"]["full"]["test"] == measured["levels"]["full"]["test"]


@pytest.fixture
def state(toy: None, tmp_path: Path) -> TrainingState:
    task = build(SMALL)
    sgd = ps.PartialSGD(task.network, list(task.optimizers), parse_method(SMALL.method))
    return TrainingState(task, task.network, sgd, launch.make_accelerator(SMALL, tmp_path))


def test_wall_time_includes_evaluations_and_continues_after_a_checkpoint(
    state: TrainingState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = loop._evaluate

    def slowly(*args: Any) -> Any:
        time.sleep(0.3)
        return evaluate(*args)

    monkeypatch.setattr(loop, "_evaluate", slowly)
    run = loop.train(replace(SMALL, out=str(tmp_path / "a")), show=False)
    checkpoint = checkpoints.latest(run.checkpoints)
    assert checkpoint is not None and run.summary is not None
    wall = checkpoint[1]["wall"]
    assert checkpoint[1]["seconds"] + 0.3 <= wall < run.summary["wall"] + 0.05  # the summary is rounded
    assert state.load(run) and state.wall_before == wall < state.wall
    position, saved = checkpoint
    del saved["wall"]  # early versions did not save it
    checkpoints.save(run.checkpoints, position + 1, saved, keep=1)
    assert state.load(run) and state.position == position + 1
    assert state.wall_before == state.seconds == saved["seconds"] > 0


def test_when_another_level_is_trained_the_best_is_chosen_anew(state: TrainingState) -> None:
    state.evaluations = {"core": {"loss": 5.0}, "full": {"loss": 1.0}}
    assert state.selection_score() == -6.0  # nothing is trained yet
    state.updates, state.best_score = {"full": 1}, None
    assert state.selection_score() == -1.0
    state.best_score = -1.0
    assert state.selection_score() == -1.0 and state.best_score == -1.0
    state.updates["core"] = 1
    assert state.selection_score() == -6.0 and state.best_score is None
