"""Joint rows have the FLOPs of the networks alone together; what is stored is what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.reproduce import schedule
from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.lab.training.method_text import parse_method
from studies.worth import __main__ as command
from studies.worth import page, store
from studies.worth.plans import QUEUE, SCHEMES, SEEDS, Plan, plans
from tests.lab.reproduce.made import run

NAMES = ("multi30k-rank", "multi30k-width", "multi30k-screen", "multi30k-regime", "cifar10-width")


def trained(plan: Plan, out: Path, row: str, seed: int, scores: dict[str, float], flops: dict[str, float]) -> None:
    """A finished run of a row, with the settings that the plan gives it."""
    experiment = plan.experiment()
    folder = RunFolder(out / plan.name, experiment)
    jobs = {job.path: job for job in schedule.every_run(experiment, folder)}
    job = jobs[folder.run(row, seed)]
    looks = [{level: {"loss": 1.0, plan.score: score} for level, score in scores.items()}] * job.settings.epochs
    run(job.path, looks, scores, settings=job.settings, flops=flops, score=plan.score)


@pytest.fixture
def rank() -> Plan:
    return plans("multi30k.de-en", None)["multi30k-rank"]


def test_a_joint_run_waits_for_the_networks_alone_and_gets_their_flops(rank: Plan, tmp_path: Path) -> None:
    def labels() -> list[str]:
        return [job.label.partition(": ")[2] for job in command.ready({rank.name: rank}, tmp_path)]

    assert labels()[:4] == ["core-1_32, seed 0", "full, seed 0", "core-1_32, seed 1", "full, seed 1"]
    trained(rank, tmp_path, "core-1_32", 0, {"full": 20.0}, {"full": 400.0})
    assert "joint-1_32, seed 0" not in labels()
    trained(rank, tmp_path, "full", 0, {"full": 30.0}, {"full": 1200.0})
    assert labels()[0] == "joint-1_32, seed 0"
    experiment = rank.experiment()
    folder = RunFolder(tmp_path / rank.name, experiment)
    rows = {row.name: row for row in experiment.rows(folder)}
    for name, scheme in SCHEMES.items():
        if (row := rows.get(f"{name}-1_32")) is not None:
            made: Any = row.make(folder, 0)
            per_step = scheme.passes["core"] * 5 + scheme.passes["full"] * 15  # 80 steps of 5 FLOPs and of 15
            assert made.max_steps == round(1600 / per_step) and made.epochs == -(-made.max_steps // 10)
            assert made.ratio == ("1/32",) and made.alone is None
            parse_method(made.method)
    assert rows["joint-1_32"].make(folder, 0).max_steps == 160  # type: ignore[union-attr]


def test_every_row_of_the_queue_exists_and_every_run_of_the_plans_is_in_it(tmp_path: Path) -> None:
    known = plans("multi30k.de-en", "cifar-10-batches-bin")
    assert tuple(known) == NAMES
    for name, rows in QUEUE:
        experiment = known[name].experiment()
        schedule.requested_rows(experiment, RunFolder(tmp_path, experiment), rows)  # raises for unknown names
    assert {name for name, rows in QUEUE if not rows} == set(NAMES)


def test_a_better_cell_gets_all_seeds(rank: Plan, tmp_path: Path) -> None:
    trained(rank, tmp_path, "core-1_32", 0, {"full": 20.0}, {"full": 400.0})
    trained(rank, tmp_path, "core-1_32@lr0.003-warm240", 0, {"full": 20.0}, {"full": 400.0})
    path = tmp_path / rank.name / "rows" / "core-1_32@lr0.003-warm240" / "seed0" / "metrics.jsonl"
    better = path.read_text().replace('"valid/full/loss": 1.0', '"valid/full/loss": 0.5')
    path.write_text(better.replace('"valid/full/loss":1.0', '"valid/full/loss":0.5'))
    experiment = rank.experiment()
    rows = {row.name: row.seeds for row in experiment.rows(RunFolder(tmp_path / rank.name, experiment))}
    assert (rows["core-1_32@lr0.003-warm240"], rows["full@lr0.003-warm240"]) == (SEEDS, 1)


def test_what_is_stored_is_shown_with_differences_by_seed(rank: Plan, tmp_path: Path) -> None:
    out, results = tmp_path / "runs", tmp_path / "results"
    results.mkdir()
    assert page.sections(results) == "No pair of joint and separate runs is stored yet."
    for seed in (0, 1):
        trained(rank, out, "core-1_32", seed, {"full": 20.0 + seed}, {"full": 400.0})
        trained(rank, out, "full", seed, {"full": 30.0}, {"full": 1200.0})
        both = {"core": 20.5 + seed, "full": 29.0}
        trained(rank, out, "joint-1_32", seed, both, {"core": 400.0, "full": 1160.0})
    store.write(rank, out / rank.name, results)
    lines = page.sections(results).splitlines()
    assert lines[2:] == [
        "| Multi30k by rank | 1/32 | alternating | core | 2 | 20.50 (0.71) | 21.00 (0.71) | +0.5 ± 0 | 0.975 |",
        "| Multi30k by rank | 1/32 | alternating | full | 2 | 30.00 (0.00) | 29.00 (0.00) | -1 ± 0 | 0.975 |",
    ]


def test_the_screen_has_one_seed_and_the_settings_of_each_scheme(tmp_path: Path) -> None:
    screen: Any = plans("multi30k.de-en", None)["multi30k-screen"]
    assert screen.base.epochs == 4 and screen.ratios == ("1/32", "1/8") and screen.seeds == 1
    for ratio in ("1_32", "1_8"):
        trained(screen, tmp_path, f"core-{ratio}", 0, {"full": 20.0}, {"full": 400.0})
    trained(screen, tmp_path, "full", 0, {"full": 30.0}, {"full": 1200.0})
    folder = RunFolder(tmp_path / screen.name, screen.experiment())
    rows: Any = {row.name: row.make(folder, 0) for row in screen.experiment().rows(folder)}
    assert all(row.seeds == 1 for row in screen.experiment().rows(folder))
    found = {name: (made.distill, made.part_ways) for name, made in rows.items()}
    for ratio in ("1_32", "1_8"):
        assert found[f"core-{ratio}"] == found[f"joint-{ratio}"] == found["full"] == (None, 0.0)
        assert found[f"taught-{ratio}"] == ("cached", 0.0) and found[f"parted-{ratio}"] == (None, 0.15)
        assert found[f"both-{ratio}"] == ("cached", 0.15)
        assert rows[f"both-{ratio}"].max_steps == rows[f"joint-{ratio}"].max_steps


def test_the_regime_compares_the_core_alone_and_jointly_at_each_rate(tmp_path: Path) -> None:
    regime: Any = plans("multi30k.de-en", None)["multi30k-regime"]
    out, results = tmp_path / "runs", tmp_path / "results"
    results.mkdir()
    assert page.regime_section(results) == "No pair of runs is stored yet."
    page.draw(tmp_path, results)
    assert not (tmp_path / "regime.png").exists()
    settings: Any = [row.make(RunFolder(tmp_path, regime.experiment()), 0) for row in regime.rows()]
    assert {(one.dropout, one.schedule, one.epochs, one.warm_up) for one in settings} == {(0.3, "inverse-sqrt", 4, 240)}
    assert sorted((one.lr, one.alone or "joint") for one in settings) == sorted(
        (rate, way) for rate in (0.00075, 0.0015, 0.003, 0.006, 0.012) for way in ("core", "joint")
    )
    for rate, alone, jointly in ((0.00075, 5.0, 6.0), (0.012, 21.0, 20.0)):
        trained(regime, out, f"core-lr{rate:g}", 0, {"full": alone}, {"full": 400.0})
        trained(regime, out, f"joint-lr{rate:g}", 0, {"core": jointly, "full": 25.0}, {"core": 200.0, "full": 600.0})
    store.write(regime, out / regime.name, results)
    text = page.regime_section(results)
    assert "| 0.00075 | 5.00 | 6.00 | +1.00 |" in text and "| 0.012 | 21.00 | 20.00 | -1.00 |" in text
    assert "is ahead at 1 of 2 rates (0.00075)" in text
    assert "the core alone reaches 21.00 (0.012) and jointly 20.00 (0.012)" in text
    page.draw(tmp_path, results)
    assert (tmp_path / "regime.png").stat().st_size > 1000
    assert page.sections(results) == "No pair of joint and separate runs is stored yet."
