"""Ways to go on from a trained network: equal costs, the same start for all, one look at the test data."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from studies.trained_start import __main__ as command
from studies.trained_start import page, text, train
from studies.trained_start.train import Row, Schedule, stored
from studies.trained_start.ways import (
    APART,
    AXES,
    CORE_ALONE,
    FULL_ALONE,
    JOINT,
    KEPT,
    KEPT_TEACHES,
    LENGTHS,
    OF_LOW_RANK,
    RATES,
    SEEDS,
    trainings,
)

TRAINED, LENGTH = 2, 7
ALONE, OWN = (CORE_ALONE, FULL_ALONE), "jointly, the full network with weights of its own"


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "LOGS", tmp_path)
    monkeypatch.setattr(train, "RATES", (1e-3,))
    monkeypatch.setattr(train, "EVALUATED", 16)


@pytest.mark.parametrize(
    ("axis", "ways"),
    [
        ("low-rank", (*ALONE, "jointly", OWN, APART, KEPT, KEPT_TEACHES)),
        pytest.param("width", (*ALONE, *(way for way in JOINT if way not in OF_LOW_RANK)), marks=pytest.mark.slow),
    ],
)
def test_a_joint_run_has_the_flops_of_both_networks_alone_and_begins_as_they_do(axis: str, ways: Any) -> None:
    rows = {way: Row(**train.run(axis, LENGTH, way, 0, None, TRAINED)) for way in ways}
    together = rows[CORE_ALONE].flops + rows[FULL_ALONE].flops
    for way in set(ways) & set(JOINT):
        assert rows[way].flops == pytest.approx(together, rel=0.1)  # to a step of each network
        assert set(rows[way].test) == {"core", "full"}
    for row in rows.values():  # W + VU is W₀ up to rounding
        assert row.start == pytest.approx(rows[CORE_ALONE].start, rel=1e-5)
    for way in {KEPT, KEPT_TEACHES} & rows.keys():
        assert rows[way].test["full"] == pytest.approx(rows[way].start["full"], rel=1e-6)
        assert rows[way].steps > (2 if way == KEPT else 1) * LENGTH
    assert set(rows[CORE_ALONE].test) == {"core"} and set(rows[FULL_ALONE].test) == {"full"}
    for row in rows.values():
        chosen = f"{row.rate:g}" if row.full_rate is None else f"{row.rate:g}, full {row.full_rate:g}"
        assert chosen == min(row.reached, key=row.reached.__getitem__)
        assert all(math.isfinite(loss) for loss in row.test.values())
    assert len({row.test["core"] for row in rows.values() if "core" in row.test}) == len(rows) - 1  # each its own


def test_levels_that_share_nothing_are_the_networks_alone_but_for_the_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    untaught = replace(JOINT[APART], options=lambda steps: {}, full_rates=(), full_factor=1.0)
    start = train.trained_network(text.generated(), 0, TRAINED)
    flops = train._step_flops(train._nest(start(), "width"), start())
    losses = {}
    for name, joint in {"untaught": untaught, "taught": JOINT[APART]}.items():
        monkeypatch.setitem(train.JOINT, name, joint)
    for way in (*ALONE, "untaught", "taught"):
        trained = train.go_on(way, start, "width", LENGTH, (1e-3, 1e-3), text.generated(), 0, flops)
        assert trained is not None
        losses[way] = trained.losses(text.generated(), "valid")
    same = pytest.approx(losses[FULL_ALONE]["full"], rel=1e-6)  # the units have another order
    assert losses["taught"]["full"] == same  # the same batches and rates
    assert losses["untaught"]["full"] != same  # every other batch
    assert losses["taught"]["core"] != losses[CORE_ALONE]["core"] != losses["untaught"]["core"]


def test_rates_of_both_levels_are_as_many_trials_as_both_networks_alone_have() -> None:
    rates = JOINT[APART].trials(RATES)
    assert len(rates) == len(set(rates)) == 2 * len(RATES)
    assert JOINT["jointly"].trials(RATES) == [(rate, rate) for rate in RATES]


def test_each_way_is_trained_on_each_axis_that_has_it_and_those_on_trial_once() -> None:
    every = list(trainings())
    assert len(set(every)) == len(every)
    counts = {(axis, way): sum(each[2:] == (axis, way) for each in every) for axis in AXES for way in (*ALONE, *JOINT)}
    assert [counts.pop(("width", way)) for way in OF_LOW_RANK] == [0, 0]
    for (_, way), count in counts.items():
        assert count == len(LENGTHS) * (1 if way in JOINT and JOINT[way].is_screened else len(SEEDS))


def test_rows_with_other_settings_than_todays_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row("jointly", 0, settings="old").save(file)
    row(CORE_ALONE, 0, settings=train.describe()).save(file)
    assert "| jointly |" not in page.sections(file) and "| core alone | 1 |" in page.sections(file)


def test_a_run_is_the_same_again_and_the_trained_network_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "RATES", (1e-3, 3e-3))
    first = train.run("width", LENGTH, "jointly", 1, None, TRAINED)
    assert (
        first["rate"] == float(min(first["reached"], key=first["reached"].__getitem__)) and len(first["reached"]) == 2
    )
    assert [path.suffix for path in (tmp_path / "trained_start").iterdir()] == [".safetensors"]
    assert train.run("width", LENGTH, "jointly", 1, None, TRAINED) == first


def test_the_rate_rises_and_falls_in_a_line_also_in_two_parts() -> None:
    whole = Schedule(1.0, warm_up=4)
    assert [whole.at(t, 8) for t in range(8)] == [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]
    joint, apart = Schedule(1.0, end=0.2, warm_up=0), Schedule(1.0, begin=0.2, warm_up=0)
    line = [joint.at(t, 8) for t in range(8)] + [apart.at(t, 2) for t in range(2)]
    assert line == pytest.approx([1 - t / 10 for t in range(10)])
    assert [Schedule(1.0, warm_up=4, turns=2).at(t, 16) for t in range(16)] == [whole.at(t // 2, 8) for t in range(16)]


def row(way: str, seed: int, **known: Any) -> Row:
    levels = {"core": 2.0, "full": 1.5}
    test = {level: loss for level, loss in levels.items() if way.startswith((level, "jointly"))}
    made = Row(
        "t abc",
        "width",
        100,
        way,
        seed,
        "s",
        {"0.1": 1.0},
        0.1,
        9,
        9.0,
        test,
        levels,
        {"core": 1, "full": 2},
        "2030-01-02",
        "2",
        "3",
    )
    return replace(made, **known)


def test_differences_are_taken_seed_by_seed_and_gains_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for seed in (0, 1):
        row(CORE_ALONE, seed, test={"core": 2.0 + seed}).save(file)
        row(FULL_ALONE, seed).save(file)
        row("jointly", seed, test={"core": 1.875 + seed, "full": 1.625}).save(file)
    written = page.sections(file)
    assert "| jointly | 2 | 2.375 | -0.125 ± 0 | 1.625 | +0.125 ± 0 | 0.1 |" in written
    assert "- Jointly: at least as good as alone is the core in 1 of 1 and the full in 0 of 1 tables." in written
    assert page.sections(tmp_path / "none.jsonl") == "No training is stored yet."


def test_what_is_stored_is_not_trained_again_and_a_wrong_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file, source = tmp_path / "rows.jsonl", text.generated()
    settings = {"text": f"{source.name} {source.digest}", "settings": train.describe(TRAINED)}
    row(CORE_ALONE, 0, **settings).save(file)
    options = ["--results", str(file), "--trained-steps", str(TRAINED)]
    command.main([*options, "--rows", "width/100/core alone/0"])
    assert stored(file) == [row(CORE_ALONE, 0, **settings)]
    assert "1 of 1 trainings are stored" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main([*options, "--data", str(tmp_path)])
    assert "give a folder with three such files" in capsys.readouterr().err


def test_unknown_characters_are_one_and_windows_overlap_by_one() -> None:
    made = text.Text("t", {"train": "abcabc", "valid": "axb"})
    assert made.tensor("valid").tolist() == [1, 0, 2]
    assert made.windows("train", 2, 9).tolist() == [[1, 2, 3], [3, 1, 2]]
    assert torch.equal(made.windows("train", 2, 1), made.windows("train", 2, 9)[:1])


def test_networks_that_differ_by_rounding_only_are_as_good(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for seed in (0, 1):
        row(CORE_ALONE, seed).save(file)
        row(FULL_ALONE, seed).save(file)
        row(APART, seed, test={"core": 1.875, "full": 1.5 + 3e-7}, rate=0.2, full_rate=0.1).save(file)
    written = page.sections(file)
    assert f"| {APART} | 2 | 1.875 | -0.125 ± 0 | 1.500 | +0 ± 0 | 0.2; full 0.1 |" in written
    assert "at least as good as alone is the core in 1 of 1 and the full in 1 of 1 tables." in written
