"""What a training counts, and who decides which checkpoint is best."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import partialsgd as ps
from partialsgd.lab.recipes.tabular.settings import Tabular
from partialsgd.lab.recipes.tabular.task import build
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.training import launch, loop
from partialsgd.lab.training.methods import method_of
from partialsgd.lab.training.state import Training

SMALL = Tabular(max_steps=6, threads=1)


def summary(out: Path, **changes: Any) -> dict[str, Any]:
    found = loop.train(replace(SMALL, out=str(out), **changes), show=False).summary
    assert found is not None
    return found


def test_measuring_is_not_training_and_each_pass_has_the_price_of_its_level(tmp_path: Path) -> None:
    bare, measured = summary(tmp_path / "a"), summary(tmp_path / "b", measure_every=1)
    twice = summary(tmp_path / "c", method="compose(alternating, sam)")
    for level in ("core", "full"):
        flops = [found["levels"][level]["flops"] for found in (bare, measured, twice)]
        assert flops[0] == flops[1] and flops[2] == 2 * flops[0] > 0
        assert bare["levels"][level]["updates"] == 3
    assert bare["levels"]["full"]["test"] == measured["levels"]["full"]["test"]


@pytest.fixture
def training(tmp_path: Path) -> Training:
    task = build(SMALL)
    sgd = ps.PartialSGD(task.network, list(task.optimizers), method_of(SMALL.method))
    return Training(task, sgd, launch.accelerator(SMALL, tmp_path))


def test_wall_time_has_the_evaluations_and_goes_on_after_a_checkpoint(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = loop._evaluated

    def slowly(*args: Any) -> Any:
        time.sleep(0.3)
        return evaluated(*args)

    monkeypatch.setattr(loop, "_evaluated", slowly)
    run = loop.train(replace(SMALL, out=str(tmp_path / "a")), show=False)
    found = checkpoints.latest(run.checkpoints)
    assert found is not None and run.summary is not None
    wall = found[1]["wall"]
    assert found[1]["seconds"] + 0.3 <= wall < run.summary["wall"] + 0.05  # the summary is rounded
    assert training.load(run) and training.before == wall < training.wall


def test_a_run_that_has_not_counted_its_wall_time_goes_on(training: Training, tmp_path: Path) -> None:
    run = loop.train(replace(SMALL, out=str(tmp_path / "a")), show=False)
    found = checkpoints.latest(run.checkpoints)
    assert found is not None
    position, state = found
    del state["wall"]
    checkpoints.save(run.checkpoints, position + 1, state, keep=1)
    assert training.load(run) and training.position == position + 1
    assert training.before == training.seconds == state["seconds"] > 0


def test_when_another_level_is_trained_the_best_is_chosen_anew(training: Training) -> None:
    glances = {"core": {"AUC": 0.1}, "full": {"AUC": 0.9}}
    assert training.judged(glances) == glances  # nothing is trained yet
    training.updates, training.best = {"full": 1}, None
    assert training.judged(glances) == {"full": glances["full"]}
    training.best = 0.9
    assert training.judged(glances) == {"full": glances["full"]} and training.best == 0.9
    training.updates["core"] = 1
    assert training.judged(glances) == glances and training.best is None
