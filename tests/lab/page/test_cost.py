"""Joint and separate training: separate costs come from runs on the page, or are computed and marked as computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from partialsgd.lab.page import cost
from partialsgd.lab.page.cost import Comparison
from partialsgd.lab.page.run_files import read_runs
from tests.lab.page import example_runs
from tests.lab.page.page_parts import rows, section, texts


def compare(*paths: Path) -> Comparison:
    """Compare the first run with the others."""
    return cost.compare(read_runs(paths))[0]


def separate_runs(*paths: Path) -> list[str | None]:
    return [one.run for one in compare(*paths).separate]


def test_cost_of_levels_without_a_run_is_computed_for_as_many_steps(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, steps=40)
    comparison = compare(path)
    assert (comparison.flops, comparison.seconds, comparison.is_computed) == (4.4e11, None, True)
    part = section("cost", [path])
    assert rows(part)[2] == ["core", "alone, computed", "–", "40", "4.00 × 10¹⁰", "–"]
    assert rows(part)[5:] == [
        ["all", "joint", "–", "40", "2.20 × 10¹¹", "1 min 30 s"],
        ["all", "alone", "–", "80", "4.40 × 10¹¹", "–"],
    ]
    sentences, note = texts(part, "p")
    assert "would take 4.40 × 10¹¹ FLOPs, 2 times as many" in sentences and "Computed means" in note
    assert comparison.steps_at_equal_sum == 20
    assert "For the same total FLOPs, separate runs would have 20 steps each, where this one had 40." in sentences
    assert "With the same number of updates for each level, the FLOPs would be about the same" in note


def test_cost_of_levels_with_a_run_is_that_of_the_run(tmp_path: Path) -> None:
    paths = example_runs.three(tmp_path)
    comparison = compare(*paths)
    assert (comparison.flops, comparison.seconds, comparison.is_computed) == (4.4e11, 180.0, False)
    joint, core, full = paths
    assert compare(joint, full).is_computed and compare(joint, full).seconds is None
    assert texts(section("cost", [core, full]), "p") == ["No finished run on this page trained several levels."]
    part = section("cost", paths)
    assert rows(part)[2] == ["core", "alone, core-alone", "20.00", "40", "4.00 × 10¹⁰", "1 min 30 s"]
    assert "2 times as many, and 3 min" in texts(part, "p")[0] and "Computed" not in texts(part, "p")[1]


@pytest.mark.parametrize(
    "other",
    [{"recipe": "images"}, {"d_model": 99}, {"ends": False}, {"levels": ["core", "full"]}, {"size": 9999}],
    ids=lambda other: next(iter(other)),
)
def test_run_of_another_network_is_not_compared(tmp_path: Path, other: dict[str, object]) -> None:
    joint = example_runs.run(tmp_path, d_model=16)
    options = {**example_runs.PLAIN, "d_model": 16, **other}
    path = example_runs.run(tmp_path, "other", **options)
    if "size" in other:
        path.joinpath("summary.json").write_text((path / "summary.json").read_text().replace("10000,", "9999,"))
    assert separate_runs(joint, path) == [None, None]


def test_most_similar_run_is_taken_if_several_train_the_same_level(tmp_path: Path) -> None:
    """The number of epochs counts more than the initialization, and that more than the seed; data may be moved."""
    joint = example_runs.run(tmp_path, epochs=8, init="zero", seed=0, data="here/corpus")
    settings = {
        "a-longer": {"epochs": 12, "init": "zero", "seed": 0},
        "b-other-start": {"epochs": 8, "init": "svd", "seed": 0},
        "c-other-seed": {"epochs": 8, "init": "zero", "seed": 1},
    }
    others = [
        example_runs.run(tmp_path, name, **example_runs.PLAIN, data="there/corpus", **own)
        for name, own in settings.items()
    ]
    assert separate_runs(joint, *others)[-1] == "c-other-seed"
    joint_seed_1 = example_runs.run(tmp_path, "joint1", epochs=8, init="zero", seed=1, data="here/corpus")
    same_seed = example_runs.run(tmp_path, "d", **example_runs.PLAIN, epochs=8, init="zero", seed=0)
    assert separate_runs(joint_seed_1, same_seed, *others)[-1] == "c-other-seed"


def test_slimmable_run_updates_every_level_at_each_step(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, updates={"core": 40, "full": 40})
    assert compare(path).flops == compare(path).joint.flops
    assert "same number of updates" not in " ".join(texts(section("cost", [path]), "p"))
