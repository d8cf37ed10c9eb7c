"""The joint run and separate ones at the same total FLOPs, read off their looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.reproduce import equal_sum, figures, findings, tables
from partialsgd.lab.reproduce.experiment import Comparison
from partialsgd.lab.reproduce.numbers import collect
from partialsgd.lab.reproduce.run_folder import RunFolder
from tests.lab.reproduce.made import experiment, opened, run, trio, valid

PAIR = Comparison("r = 1/2", "joint", {"core": "core", "full": "full"})


def made(folder: RunFolder, seed: int, *, joint_flops: float = 450.0, schedule: str = "inverse-sqrt") -> None:
    """Four looks alone, of 300 and 600 FLOPs in all, and a joint run that has half of them together."""
    settings: Any = {"settings": Translation(seed=seed, epochs=4, schedule=schedule)}  # type: ignore[arg-type]
    core = [valid(full=0.1 * k + seed / 100) for k in (1, 2, 3, 4)]
    run(folder.run("core", seed), core, {"full": 0.4}, flops={"full": 300.0}, **settings)
    full = [valid(full=0.2 * k) for k in (1, 2, 3, 4)]
    run(folder.run("full", seed), full, {"full": 0.8}, flops={"full": 600.0}, **settings)
    joint = [valid(core=0.15, full=0.3)] * 3 + [valid(core=0.26, full=0.41)]
    costs = {"core": joint_flops / 3, "full": 2 * joint_flops / 3}
    run(folder.run("joint", seed), joint, {"core": 0.2, "full": 0.4}, flops=costs, **settings)


def test_a_level_alone_is_looked_at_when_all_have_used_the_flops_of_the_joint_run(tmp_path: Path) -> None:
    plan, folder = opened(experiment(trio()), tmp_path)
    for seed in (0, 1):
        made(folder, seed)  # 450 of 900 FLOPs: the second of four looks
    core, full = equal_sum.collect("accuracy", 100.0, folder, [PAIR])
    assert core["alone_scores"] == pytest.approx({"0": 20.0, "1": 21.0})
    assert core["jointly_scores"] == pytest.approx({"0": 26.0, "1": 26.0})
    assert full["alone_scores"] == pytest.approx({"0": 40.0, "1": 40.0})
    assert full["alone_losses"] == pytest.approx({"0": 0.6, "1": 0.6})
    numbers = collect(plan, folder)
    table = tables.tables(numbers)[0]
    assert table.title.endswith("the same total FLOPs")
    assert table.rows[0] == ("1/2", "core", "20.50 (0.71)", "26.00 (0.00)", "+5.5 ± 6.4", "-0.055 ± 0.064")
    assert table.rows[1][-2:] == ("+1 ± 0", "-0.01 ± 0")
    first, second = findings.sentences(numbers)[:2]
    assert first.startswith("r = 1/2, core: for the same total FLOPs the joint run is 5.50 points ahead of separate")
    assert first.endswith("which 2 seeds cannot tell from chance.") and "chance" not in second
    assert "sum" in dict(figures.draw(plan, folder, numbers))


@pytest.mark.parametrize("wrong", [{"schedule": "linear"}, {"joint_flops": 400.0}])
def test_nothing_is_said_if_the_rate_depends_on_the_length_or_no_look_is_near(tmp_path: Path, wrong: Any) -> None:
    plan, folder = opened(experiment(trio()), tmp_path)
    made(folder, 0, **wrong)
    numbers = collect(plan, folder)
    assert numbers["sums"] == [] and "same total FLOPs" not in tables.tables(numbers)[0].title
    assert "sum" not in dict(figures.draw(plan, folder, numbers))


def test_only_seeds_that_all_have_are_compared(tmp_path: Path) -> None:
    _, folder = opened(experiment(trio()), tmp_path)
    made(folder, 0)
    made(folder, 1)
    (folder.run("full", 1) / "summary.json").unlink()
    _, folder = opened(experiment(trio()), tmp_path)
    core, _ = equal_sum.collect("accuracy", 1.0, folder, [PAIR])
    assert list(core["alone_scores"]) == ["0"]
