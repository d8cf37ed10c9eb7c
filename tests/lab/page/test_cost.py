"""Joint against separate: from runs where they are given, else computed, and said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from partialsgd.lab.page import cost
from partialsgd.lab.page.stored import read
from tests.lab.page import made, seen


def test_without_the_other_runs_it_is_computed_for_as_many_steps(tmp_path: Path) -> None:
    (one,) = cost.comparisons(read([made.run(tmp_path, steps=40)]))
    assert [(a.level, a.updates, a.flops, a.run) for a in one.alone] == [
        ("core", 40, 4e10, None),
        ("full", 40, 4e11, None),
    ]
    assert (one.flops, one.seconds, one.is_computed) == (4.4e11, None, True)
    part = cost.shown([one])
    assert seen.rows(part)[2] == ["core", "alone, computed", "–", "40", "4.00 × 10¹⁰", "–"]
    assert seen.rows(part)[5:] == [
        ["all", "jointly", "–", "40", "2.20 × 10¹¹", "1 min 30 s"],
        ["all", "alone", "–", "80", "4.40 × 10¹¹", "–"],
    ]
    said = " ".join(seen.paragraphs(part))
    assert "would take 4.40 × 10¹¹ FLOPs, 2 times as many" in said and "Computed: this run's own FLOPs" in said
    assert "with as many updates each, the FLOPs would be about the same" in said


def test_with_the_other_runs_it_is_theirs(tmp_path: Path) -> None:
    (one,) = cost.comparisons(read(made.three(tmp_path)))
    assert [(a.level, a.run, a.score, a.seconds) for a in one.alone] == [
        ("core", "core-alone", 20.0, 90.0),
        ("full", "full-alone", 30.125, 90.0),
    ]
    assert (one.flops, one.seconds, one.is_computed) == (4.4e11, 180.0, False)
    part = cost.shown([one])
    assert "Computed" not in " ".join(seen.paragraphs(part)) and seen.rows(part)[2][2] == "20.00"
    assert "(2 times) and 3 min" in seen.paragraphs(part)[0]


def test_what_is_missing_is_computed_and_then_the_time_is_not_known(tmp_path: Path) -> None:
    joint, _, full = made.three(tmp_path)
    (one,) = cost.comparisons(read([joint, full]))
    assert [a.run for a in one.alone] == [None, "full-alone"] and one.is_computed and one.seconds is None


@pytest.mark.parametrize(
    "other",
    [{"recipe": "images"}, {"d_model": 99}, {"ends": False}, {"updates": {"core": 1, "full": 1}}],
    ids=lambda other: next(iter(other)),
)
def test_another_network_is_not_a_level_alone(tmp_path: Path, other: dict[str, object]) -> None:
    joint = made.run(tmp_path, d_model=16)
    options = {"levels": ["full"], "nest": "none", "method": "plain", "d_model": 16, **other}
    if "updates" in other:
        options["levels"] = ["core", "full"]
    alone = made.run(tmp_path, "other", **options)
    first = cost.comparisons(read([joint, alone]))[0]
    assert [a.run for a in first.alone] == [None, None]


def test_a_smaller_level_of_another_size_is_another_network(tmp_path: Path) -> None:
    joint, core, _ = made.three(tmp_path)
    text = (core / "summary.json").read_text()
    (core / "summary.json").write_text(text.replace('"parameters": 1000', '"parameters": 999'))
    assert [a.run for a in cost.comparisons(read([joint, core]))[0].alone] == [None, None]


def test_of_several_the_one_with_the_same_seed_is_taken(tmp_path: Path) -> None:
    alone = [
        made.run(tmp_path, f"seed{seed}", levels=["full"], nest="none", method="plain", seed=seed) for seed in (0, 1, 2)
    ]
    for seed in (1, 2):
        (one,) = cost.comparisons(read([made.run(tmp_path, f"joint{seed}", seed=seed), *alone]))
        assert one.alone[1].run == f"seed{seed}"


def test_a_slimmable_run_trains_every_level_at_each_step_and_saves_no_updates(tmp_path: Path) -> None:
    (one,) = cost.comparisons(read([made.run(tmp_path, updates={"core": 40, "full": 40})]))
    assert one.flops == one.joint.flops
    assert "with as many updates" not in " ".join(seen.paragraphs(cost.shown([one])))


def test_where_there_is_nothing_to_compare_it_says_so(tmp_path: Path) -> None:
    _, core, full = made.three(tmp_path)
    assert "No run on this page" in seen.paragraphs(cost.shown(cost.comparisons(read([core, full]))))[0]


def test_of_several_runs_alone_the_one_most_like_the_joint_run_counts(tmp_path: Path) -> None:
    """Of as many epochs first, then of the same start, then of the same seed; and data may lie elsewhere."""
    joint = made.run(tmp_path, epochs=8, init="zero", seed=0, data="here/corpus")
    whole = {"levels": ["full"], "nest": "none", "method": "plain", "data": "there/corpus"}
    names = {
        "a-longer": {"epochs": 12, "init": "zero", "seed": 0},
        "b-other-start": {"epochs": 8, "init": "svd", "seed": 0},
        "c-other-seed": {"epochs": 8, "init": "zero", "seed": 1},
    }
    others = [made.run(tmp_path, name, **whole, **told) for name, told in names.items()]
    (one,) = cost.comparisons(read([joint, *others]))
    assert one.alone[-1].run == "c-other-seed"
