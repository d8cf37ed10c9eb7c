"""Means, costs, distances and medians, from made runs whose numbers are known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.reproduce import equal_sum, figures, findings, tables
from partialsgd.lab.reproduce.experiment import Comparison, Figure
from partialsgd.lab.reproduce.numbers import collect
from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.logging import metrics_log
from tests.lab.reproduce.made import experiment, open_folder, opened, run, search, trio, valid


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Two seeds. Alone the core ends at 0.70 and 0.72; jointly it comes there in the third epoch, or never."""
    folder = open_folder(tmp_path)
    search(folder, "core", [0.5, 0.2])
    for seed, (core, full) in enumerate([(0.70, 0.90), (0.72, 0.88)]):
        options: Any = {"flops": {"full": 300.0}, "seconds": 30.0}
        seeded = {"settings": _seeded(seed)}
        run(folder.run("core", seed), [valid(full=core - 0.3), valid(full=core)], {"full": core}, **options | seeded)
        costly = {"flops": {"full": 600.0}, "seconds": 60.0} | seeded
        run(folder.run("full", seed), [valid(full=full), valid(full=full - 0.01)], {"full": full}, **costly)
        joint = [valid(core=0.4, full=0.6), valid(core=0.5, full=0.89), valid(core=0.699, full=0.9)]
        both = {"flops": {"core": 150.0, "full": 300.0}, "seconds": 45.0} | seeded
        run(folder.run("joint", seed), joint, {"core": 0.69, "full": 0.89}, **both)
    return folder


def _seeded(seed: int) -> Any:
    return Images(seed=seed, epochs=3)


def test_a_line_has_the_scores_of_all_seeds_and_the_joint_run_costs_less_than_both(folder: RunFolder) -> None:
    numbers = collect(experiment(trio()), folder)
    core, jointly, full, _ = numbers["lines"]
    assert core["scores"] == pytest.approx({"0": 70.0, "1": 72.0}) and core["paper"] == "50.00 (1.00)"
    assert jointly["scores"] == jointly["equal_flops"] == pytest.approx({"0": 69.0, "1": 69.0})
    assert core["equal_flops"] == {} and full["paper"] is None
    assert (core["epoch_seconds"], core["epoch_flops"]) == (15.0, 150.0)
    assert (jointly["epoch_seconds"], jointly["epoch_flops"], jointly["parameters"]) == (15.0, 150.0, 400)
    (cost,) = numbers["costs"]
    assert (cost["joint_flops"], cost["alone_flops"]) == (450.0, 900.0)
    assert (cost["joint_seconds"], cost["alone_seconds"]) == (45.0, 90.0)


def test_times_are_medians_for_a_machine_is_disturbed_and_diverged_runs_are_counted_not_averaged(
    folder: RunFolder,
) -> None:
    for row, seconds in (("core", 900.0), ("full", 900.0), ("joint", 1.0)):
        levels = {"core": 0.1, "full": 0.1} if row == "joint" else {"full": 0.1}
        run(folder.run(row, 2), [valid(**levels)] * 2, levels, seconds=seconds, settings=_seeded(2))
    numbers = collect(experiment(trio(3)), folder)
    assert (numbers["costs"][0]["joint_seconds"], numbers["costs"][0]["alone_seconds"]) == (45.0, 90.0)
    assert numbers["lines"][0]["epoch_seconds"] == 15.0
    run(folder.run("core-flops", 0), [valid(full=0.1)], None)
    run(folder.run("core", 3), [valid(full=0.1)], None)
    core = collect(experiment(trio(4)), folder)["lines"][0]
    assert (core["diverged"], core["equal_flops_diverged"], len(core["scores"])) == (1, 1, 3)


def test_starts_are_judged_by_the_first_seed_also_if_it_diverged(folder: RunFolder) -> None:
    starts = {start: Comparison(start, f"joint-{start}", {"core": "core"}) for start in ("zero", "svd", "matched")}
    run(folder.run("joint-zero", 0), [valid(core=0.9, full=0.9)], None)
    run(folder.run("joint-zero", 1), [valid(core=0.9, full=0.9)], {"core": 0.9, "full": 0.9})
    run(folder.run("joint-svd", 0), [valid(core=0.3, full=0.5)], {"core": 0.3, "full": 0.5})
    zero, svd, matched = collect(experiment(trio(), starts=starts), folder)["starts"]
    assert (zero["is_known"], zero["selection_score"]) == (True, None)
    assert (svd["is_known"], svd["selection_score"]) == (True, pytest.approx(0.4))
    assert (matched["is_known"], matched["selection_score"]) == (False, None)


def test_only_the_same_seeds_are_compared_and_each_keeps_its_name_if_another_diverged(
    folder: RunFolder,
) -> None:
    both = {"flops": {"core": 1e6, "full": 1e6}, "settings": _seeded(7)}
    run(folder.run("joint", 7), [valid(core=0.9, full=0.9)], {"core": 0.9, "full": 0.9}, **both)
    numbers = collect(experiment(trio(3)), folder)
    assert list(numbers["near"][0]["seeds"]) == ["0", "1"]
    assert numbers["costs"][0]["seeds"] == [0, 1] and numbers["costs"][0]["joint_flops"] == 450.0
    shutil.rmtree(folder.run("core", 0))
    run(folder.run("core", 0), [valid(full=0.1)], None, settings=_seeded(0))
    numbers = collect(experiment(trio()), open_folder(folder.path))
    assert numbers["lines"][0]["scores"] == pytest.approx({"1": 72.0})
    assert list(numbers["near"][0]["seeds"]) == ["1"] and numbers["costs"][0]["seeds"] == [1]


def test_the_libraries_are_those_that_trained_and_without_runs_there_are_no_numbers(
    folder: RunFolder, tmp_path: Path
) -> None:
    nothing = collect(experiment(trio()), open_folder(tmp_path / "empty"))
    assert nothing["costs"] == nothing["near"] == nothing["grid"] == []
    assert all(line["scores"] == {} and line["parameters"] is None for line in nothing["lines"])
    path = folder.run("core", 0) / "summary.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "versions": {"torch": "1.0"}, "extras": {"signature": "nrefs:1"}}))
    numbers = collect(experiment(trio()), folder)
    assert numbers["versions"] == [{"torch": "1.0"}] and numbers["signature"] == ["nrefs:1"]


def measured(folder: RunFolder, row: str, seed: int, cosines: list[float]) -> None:
    """A measurement at each step; c_norm is the step's number, c_align the inverse of the cosine."""
    path = run(folder.run(row, seed), [valid(full=0.5)], {"full": 0.5}, settings=Images(seed=seed))
    lines = []
    for t, cosine in enumerate(cosines):
        one = {"level": None, "c_norm": float(t), "c_sim": 0.5, "c_align": 1 / cosine, "cosine": cosine}
        groups = {"layers": {**one, "c_norm": 10.0 * t}}
        step = {"t": t, "level": None, "loss": {}, "lr": 0.1, "backwards": 1, "epoch": 1.0}
        lines.append(metrics_log.to_line({**step, "criteria": [{**one, "groups": groups}]}))
    (path / "metrics.jsonl").write_bytes(b"".join(lines))


def criteria(figure: Figure, folder: RunFolder) -> Any:
    return collect(experiment(trio(), figure=figure), folder)["criteria"]


def test_steps_uphill_have_no_bound_layers_have_rows_of_their_own_and_no_cosine_is_no_row(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    measured(folder, "uphill", 0, [0.5, 0.5, -0.5, -0.5])
    measured(folder, "layers", 0, [0.5, 0.5])
    measured(folder, "nan", 0, [0.5, float("nan"), float("nan")])
    (uphill,) = criteria(Figure(2, {"a": "uphill"}), folder)
    assert uphill["c_align²"] == [None]  # JSON has no infinity
    whole, layers = criteria(Figure(4, {"a": "layers"}, group="layers"), folder)
    assert (whole["of"], whole["c_norm²"]) == ("network", [1.0])
    assert (layers["of"], layers["c_norm²"]) == ("layers", [100.0])
    assert criteria(Figure(2, {"a": "nan"}), folder) == []


def test_means_have_their_deviation_in_brackets_and_a_loss_is_shown_as_it_is_measured(folder: RunFolder) -> None:
    numbers = collect(experiment(trio()), folder)
    expected = {(70.0, 72.0): "71.00 (1.41)", (70.0,): "70.00", (): "–", (1.0, None): "no bound"}
    assert {values: tables.spread(values) for values in expected} == expected
    numbers["lines"][0]["equal_flops_diverged"] = 2
    assert tables.tables(numbers)[0].rows[0][-2:] == ("71.00 (1.41)", "–, 2 diverged")
    numbers["criterion"] = "loss"
    numbers["grid"][0]["selection_score"] = -3.25
    assert tables.tables(numbers)[-1].rows[0][3] == "3.2500"
    numbers["grid"][0]["selection_score"] = None
    assert tables.tables(numbers)[-1].rows[0][3] == "diverged"


def test_the_best_start_is_marked_once_all_are_known_and_missing_and_diverged_ones_are_shown(folder: RunFolder) -> None:
    numbers = collect(experiment(trio()), folder)

    def starts(*rows: tuple[Any, ...]) -> list[tuple[str, ...]]:
        names = ("start", "core_alone", "core", "full", "selection_score", "is_known")
        numbers["starts"] = [dict(zip(names, row, strict=True)) for row in rows]
        return list(next(table for table in tables.tables(numbers) if table.title.startswith("How the low")).rows)

    zero = ("zero", 1.0, 2.0, 3.0, -2.0, True)
    assert starts(("svd", 1.0, None, None, None, False)) == [("svd", "1.00", "–", "–", "–")]
    assert starts(("svd", *["diverged"] * 3, None, True)) == [("svd", *["diverged"] * 4)]
    for score, is_known, best in ((None, False, None), (-1.5, True, "svd"), (None, True, "zero")):
        rows = starts(zero, ("svd", 1.0, 2.0, 3.0, score, is_known))
        assert [row[0] for row in rows if "best" in row[0]] == ([f"{best} (best by validation)"] if best else [])


PAIR = Comparison("r = 1/2", "joint", {"core": "core", "full": "full"})


def made(folder: RunFolder, seed: int, *, joint_flops: float = 450.0, schedule: str = "inverse-sqrt") -> None:
    """Four looks alone, of 300 and 600 FLOPs in all, and a joint run that has half of them together."""
    settings: Any = {"settings": Translation(seed=seed, epochs=4, schedule=schedule)}  # type: ignore[arg-type]  # a parameter of the test
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
