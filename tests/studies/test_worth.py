"""Joint rows have the FLOPs of the networks alone together; what is stored is what is shown."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.reproduce import schedule
from partialsgd.lab.reproduce.experiment import Cell
from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.lab.training.method_text import parse_method
from studies import results
from studies.worth import __main__ as command
from studies.worth import other_cells, page, sizes, store
from studies.worth.plans import QUEUE, SCHEMES, SEEDS, Plan, plans
from tests.lab.reproduce.made import run

NAMES = ("multi30k-rank", "multi30k-width", "multi30k-longer", "multi30k-regime", "cifar10-width")


def trained(
    plan: Plan,
    out: Path,
    row: str,
    seed: int,
    scores: dict[str, float],
    flops: dict[str, float],
    valid: float | None = None,
) -> None:
    """A finished run of a row, with the settings that the plan gives it; `valid` if validation scores are others."""
    experiment = plan.experiment()
    folder = RunFolder(out / plan.name, experiment)
    jobs = {job.path: job for job in schedule.every_run(experiment, folder)}
    job = jobs[folder.run(row, seed)]
    seen = {level: score if valid is None else valid for level, score in scores.items()}
    looks = [{level: {"loss": 1.0, plan.score: score} for level, score in seen.items()}] * job.settings.epochs
    run(job.path, looks, scores, settings=job.settings, flops=flops, score=plan.score)


@pytest.fixture
def rank() -> Plan:
    return plans("multi30k.de-en", None)["multi30k-rank"]


def test_a_joint_run_waits_for_the_networks_alone_and_gets_their_flops(rank: Plan, tmp_path: Path) -> None:
    def labels() -> list[str]:
        return [job.label.partition(": ")[2] for job in command.ready({rank.name: rank}, tmp_path)]

    assert labels()[:4] == ["core-1_32, seed 0", "full, seed 0", "core-1_32, seed 1", "full, seed 1"]
    assert "joint-1_32, seed 0" not in labels()
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
            if scheme.whole:
                assert made is None  # it waits for the run of the whole network
                whole: Any = rows[f"first-{name}-1_32"].make(folder, 0)
                assert whole.nest == "none" and whole.max_steps == round(0.4 * 1600 / 30)
                trained(rank, tmp_path, f"first-{name}-1_32", 0, {"full": 25.0}, {"full": 640.0})
                made = row.make(RunFolder(tmp_path / rank.name, experiment), 0)
                assert made.start == str(tmp_path / rank.name / "rows" / f"first-{name}-1_32" / "seed0")
                assert made.max_steps == round(0.6 * 1600 / 20)
                continue
            per_step = scheme.passes["core"] * 10 + scheme.passes["full"] * 30  # 40 steps of 10 FLOPs and of 30
            assert made.max_steps == round(1600 / per_step) and made.epochs == -(-made.max_steps // 10)
            assert made.ratio == ("1/32",) and made.alone is None
            parse_method(made.method)
    joint: Any = rows["joint-1_32"].make(folder, 0)
    assert joint.max_steps == 80


def test_every_row_of_the_queue_exists_and_every_run_of_the_plans_is_in_it(tmp_path: Path) -> None:
    known = plans("multi30k.de-en", "cifar-10-batches-bin")
    assert tuple(known) == NAMES
    for wanted in QUEUE:
        experiment = known[wanted.plan].experiment()
        schedule.requested_rows(experiment, RunFolder(tmp_path, experiment), wanted.rows)  # raises for unknown names
    assert {wanted.plan for wanted in QUEUE if not wanted.rows and wanted.seeds == SEEDS} == set(NAMES)


def test_stored_runs_are_not_trained_again(rank: Plan, tmp_path: Path) -> None:
    out, results, again = tmp_path / "runs", tmp_path / "results", tmp_path / "again"
    results.mkdir()
    trained(rank, out, "core-1_32", 0, {"full": 20.0}, {"full": 400.0})
    trained(rank, out, "full", 0, {"full": 30.0}, {"full": 1200.0})
    store.write(rank, out / rank.name, results)
    for _ in range(2):
        store.bring_back(rank, again / rank.name, results)
    before, after = ([job.label for job in command.ready({rank.name: rank}, folder)] for folder in (out, again))
    assert before == after and before[0] == f"{rank.name}: joint-1_32, seed 0"


CELLS = ("", "@lr0.003-warm240", "@lr0.012-warm240", "@lr0.006-warm480")


def train_at(plan: Plan, out: Path, row: str, cell: str, seed: int, test: float, valid: float) -> None:
    """A row at a cell; in a joint run the full network is one better than the core, in test scores."""
    scores = {"core": test, "full": test + 1} if row.startswith(("joint", "parted")) else {"full": test}
    trained(plan, out, row + cell, seed, scores, dict.fromkeys(scores, 800.0), valid)


def test_whole_runs_at_other_rates_are_shown_and_validation_chooses(rank: Plan, tmp_path: Path) -> None:
    out, results = tmp_path / "runs", tmp_path / "results"
    results.mkdir()
    core, full, joint = rank.tuned_rows("1/32")
    best = {core: "", full: CELLS[1], joint: CELLS[1]}
    for cell, test in zip(CELLS[:2], (20.0, 24.0), strict=True):
        for row in (core, full, joint):
            train_at(rank, out, row, cell, 0, test, 1.0 if cell == best[row] else 0.5)
        store.write(rank, out / rank.name, results)
        if not cell:
            assert page.other_rates(results) == "No run at another rate is stored yet."
    train_at(rank, out, core, CELLS[2], 0, 99.0, 99.0)
    store.write(rank, out / rank.name, results)
    shown = page.other_rates(results)
    for line in ("core alone | 24.00 | 20.00 | 0.006 |", "core jointly | 24.00 | 20.00 | 0.003 |"):
        assert f"| 1/32 | {line}" in shown
    for line in ("full alone | 24.00 | 20.00 | 0.003 |", "full jointly | 25.00 | 21.00 | 0.003 |"):
        assert f"| 1/32 | {line}" in shown
    assert "99" not in shown, "no other row has this rate"
    assert "At r = 1/32, each row as validation chose, one seed, the joint run is +4.00 BLEU ahead" in shown
    assert "and +1.00 with the full network" in shown
    assert "| core | 1 | 20.00 | 20.00 |" in page.sections(results), "not every cell was tried yet"


def test_cells_that_validation_chose_get_all_seeds_and_stand_in_the_table_then(rank: Plan, tmp_path: Path) -> None:
    out, results = tmp_path / "runs", tmp_path / "results"
    results.mkdir()
    rows, best = rank.tuned_rows("1/32"), CELLS[2]

    def wanted() -> list[str]:
        """The runs at other cells that come next, with other seeds than the first."""
        labels = [job.label.partition(": ")[2] for job in command.ready({rank.name: rank}, out)]
        return [label for label in labels if "@" in label and not label.endswith("seed 0")]

    def table() -> str:
        store.write(rank, out / rank.name, results)
        return page.sections(results)

    for seed, row in product(range(SEEDS), rows):
        train_at(rank, out, row, "", seed, 20.0, 1.0)
    train_at(rank, out, "parted-1_32", "", 0, 22.0, 1.0)
    for cell, row in product(CELLS[1:], rows):
        assert not wanted(), "not every cell was tried yet"
        is_best = cell == best and row != "full"
        train_at(rank, out, row, cell, 0, 30.0 if is_best else 10.0, 2.0 if is_best else 0.5)
    assert wanted() == [f"{row}{best}, seed {seed}" for seed in (1, 2) for row in (rows[0], rows[2])]
    for seed in (1, 2):
        train_at(rank, out, rows[0], best, seed, 31.0, 2.0)
    assert "| core | 3 | 20.00 (0.00) | 20.00 (0.00) |" in table(), "the joint row has one seed there"
    for seed in (1, 2):
        assert wanted()
        train_at(rank, out, rows[2], best, seed, 33.0, 2.0)
    assert not wanted()
    first, second = table().split("Other schemes")
    assert (
        "| core | 3 | 30.67 (0.58) | 32.00 (1.73) |" in first and "| full | 3 | 20.00 (0.00) | 33.00 (1.73) |" in first
    )
    assert (
        "for these: Multi30k by rank, 1/32, core alone (lr0.012-warm240); Multi30k by rank, 1/32, both jointly" in first
    )
    assert "| core | 3 | 20.00 (0.00) | 20.00 (0.00) |" in second and "| core | 1 | 20.00 | 22.00 |" in second
    more = replace(rank, cells=(*rank.cells, Cell(0.1, 240)))  # a cell that is not tried yet
    folder, comparison = RunFolder(out / rank.name, more.experiment()), rank.comparison("joint", "1/32")
    assert other_cells.tuned(more, folder, comparison, "1/32").joint == f"{rows[2]}{best}"
    train_at(more, out, rows[0], "@lr0.1-warm240", 0, 40.0, 3.0)
    assert other_cells.tuned(more, folder, comparison, "1/32").joint == f"{rows[2]}{best}"


def test_a_cell_that_the_first_seed_chose_by_luck_does_not_stand_in_the_table(rank: Plan, tmp_path: Path) -> None:
    out, rows, lucky = tmp_path / "runs", rank.tuned_rows("1/32"), CELLS[2]
    for seed, row in product(range(SEEDS), rows):
        train_at(rank, out, row, "", seed, 20.0, 1.0)
    for cell, row in product(CELLS[1:], rows):
        train_at(rank, out, row, cell, 0, 10.0, 2.0 if (cell, row) == (lucky, rows[0]) else 0.5)
    for seed in (1, 2):
        train_at(rank, out, rows[0], lucky, seed, 1.0, 0.25)
    folder, comparison = RunFolder(out / rank.name, rank.experiment()), rank.comparison("joint", "1/32")
    assert other_cells.chosen(rank, folder, "1/32")[rows[0]] != rank.own_cell()
    assert other_cells.tuned(rank, folder, comparison, "1/32") == comparison


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
    assert lines[2:4] == [
        "| Multi30k by rank | 1/32 | alternating | core | 2 | 20.50 (0.71) | 21.00 (0.71) | +0.5 ± 0 | 0.975 |",
        "| Multi30k by rank | 1/32 | alternating | full | 2 | 30.00 (0.00) | 29.00 (0.00) | -1 ± 0 | 0.975 |",
    ]


def test_schemes_change_only_their_own_settings(rank: Plan, tmp_path: Path) -> None:
    trained(rank, tmp_path, "core-1_32", 0, {"full": 20.0}, {"full": 400.0})
    trained(rank, tmp_path, "full", 0, {"full": 30.0}, {"full": 1200.0})
    folder = RunFolder(tmp_path / rank.name, rank.experiment())
    rows: Any = {row.name: row.make(folder, 0) for row in rank.experiment().rows(folder)}
    options = {
        name.removesuffix("-1_32"): (made.distill, made.part_ways, made.state)
        for name, made in rows.items()
        if name.endswith("1_32") and made is not None
    }
    plain = (None, 0.0, "shared")
    assert options["core"] == options["joint"] == options["skewed"] == options["late"] == plain
    assert options["taught"] == ("cached", 0.0, "shared") and options["parted"] == (None, 0.15, "shared")
    assert options["both"] == ("cached", 0.15, "shared") and options["states"] == (None, 0.0, "per_level")
    assert rows["both-1_32"].max_steps == rows["joint-1_32"].max_steps
    assert (rows["d48"].nest, rows["d48"].d_model, rows["d48"].epochs) == ("none", 48, rank.base.epochs)


def test_networks_are_shown_with_their_size_and_latency(rank: Plan, tmp_path: Path) -> None:
    out, found = tmp_path / "runs", tmp_path / "results"
    found.mkdir()
    assert page.matched(found) == "No network is stored yet."
    for row, score in (("core-1_32", 20.0), ("full", 30.0), ("d48", 22.0)):
        trained(rank, out, row, 0, {"full": score}, {"full": 400.0})
    trained(rank, out, "joint-1_32", 0, {"core": 21.0, "full": 29.0}, {"core": 400.0, "full": 400.0})
    store.write(rank, out / rank.name, found)
    about = {"torch": "2.13.0", "python": "3.11.7", "date": "2026-01-01"}
    records = [
        {"network": f"{rank.name}/{row}", "median": 0.02, "least": 0.019, "largest": 0.03, **about}
        for row in ("core-1_32", "d48", "full")
    ]
    results.write(found / sizes.FILE, records)
    lines = page.matched(found).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:5]] == [
        "| core by rank, r = 1/32",
        "| ordinary, d_model 48, ffn 192",
        "| the whole network, d_model 64",
    ]
    assert lines[2].endswith("| 20.0 (19.0 – 30.0) | 20.00 | 21.00 | 1 |") and "| 22.00 | – | 1 |" in lines[3]


def test_other_schemes_stand_beside_plain_alternation(rank: Plan, tmp_path: Path) -> None:
    out, found = tmp_path / "runs", tmp_path / "results"
    found.mkdir()
    trained(rank, out, "core-1_32", 0, {"full": 20.0}, {"full": 400.0})
    trained(rank, out, "full", 0, {"full": 30.0}, {"full": 1200.0})
    for scheme, score in (("joint", 21.0), ("taught", 22.0)):
        both = {"core": score, "full": 31.0}
        trained(rank, out, f"{scheme}-1_32", 0, both, {"core": 400.0, "full": 1200.0})
    trained(rank, out, "first-nested-1_32", 0, {"full": 25.0}, {"full": 640.0})
    trained(rank, out, "nested-1_32", 0, {"core": 20.0, "full": 30.0}, {"core": 240.0, "full": 720.0})
    store.write(rank, out / rank.name, found)
    text = page.sections(found)
    late = "| the whole network first, nested after 40 % | core | 1 | 20.00 | 20.00 | +0 (one seed) | 1.000 |"
    assert late in text, "its FLOPs contain those of the first run"
    first, second = text.split("Other schemes")
    assert "In 2 of 2 rows" in first and "cached" not in first
    assert second.count("| alternating |") == 2 and second.count("| the core learns from cached outputs |") == 2
    assert page.in_short(found) in first


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
