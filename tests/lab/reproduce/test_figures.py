"""The contents of the figures, read back from what was drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.reproduce import figures
from partialsgd.lab.reproduce.experiment import Comparison
from partialsgd.lab.reproduce.numbers import collect
from partialsgd.lab.reproduce.run_folder import RunFolder
from tests.lab.reproduce.made import experiment, open_folder, run, trio, valid


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = open_folder(tmp_path)
    for seed, value in enumerate((0.6, 0.7)):
        told: Any = {"settings": Images(seed=seed, epochs=2)}
        run(
            folder.run("core", seed),
            [valid(full=0.2), valid(full=value)],
            {"full": value},
            flops={"full": 100.0},
            **told,
        )
        joint = [valid(core=0.3, full=0.4), valid(core=0.5, full=0.8)]
        costs = {"core": 60.0 + seed, "full": 140.0}
        run(folder.run("joint", seed), joint, {"core": 0.5, "full": 0.8}, flops=costs, **told)
    return folder


def test_each_network_stands_at_its_size(folder: RunFolder) -> None:
    figure = figures.against_size(collect(experiment(trio()), folder))
    drawn = {each.get_label(): each for each in figure.axes[0].containers}
    alone, jointly = (drawn[label].lines[0] for label in ("alone", "jointly"))
    assert list(alone.get_xdata()) == [1000] and list(alone.get_ydata()) == pytest.approx([65.0])
    assert list(jointly.get_xdata()) == [400, 1000] and list(jointly.get_ydata()) == pytest.approx([50.0, 80.0])


def test_curves_are_over_the_flops_of_the_run_so_far(folder: RunFolder) -> None:
    figure = figures.along_the_training(experiment(trio()), folder)
    assert figure is not None
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert set(lines) == {"core jointly", "core alone", "full jointly"}  # the whole network alone is not trained yet
    assert list(lines["core alone"].get_xdata()) == [50, 100]
    assert list(lines["core alone"].get_ydata()) == pytest.approx([20.0, 65.0])
    assert list(lines["core jointly"].get_xdata()) == [100, 200]  # the mean of both seeds' 200 and 201, halved first
    assert list(lines["full jointly"].get_ydata()) == pytest.approx([40.0, 80.0])


def test_a_curve_looks_the_same_in_every_panel_also_where_the_first_lacks_one(folder: RunFolder) -> None:
    run(folder.run("other", 0), [valid(core=0.3, full=0.4)], {"core": 0.3, "full": 0.4})
    both = [
        Comparison("r = 1/4", "other", {"core": "untrained", "full": "full"}),
        Comparison("r = 1/2", "joint", {"core": "core", "full": "full"}),
    ]
    figure = figures.along_the_training(experiment(trio(), comparisons=lambda folder: both), folder)
    assert figure is not None
    first, second = ({line.get_label(): line.get_color() for line in axes.get_lines()} for axes in figure.axes)
    assert {"core jointly", "core alone", "full jointly"} == set(second) and len(set(second.values())) == 3
    assert first == {label: second[label] for label in first}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["core jointly", "core alone", "full jointly"]
    left, right = figure.axes
    assert left.get_xlim() == right.get_xlim() and left.get_ylim() == right.get_ylim()
    assert left.get_position().y0 == right.get_position().y0, "they stand beside each other"
    assert [axes.get_ylabel() for axes in figure.axes] == ["accuracy (validation)", ""]


def test_without_a_joint_run_there_are_no_curves(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    run(folder.run("core", 0), [valid(full=0.2)], {"full": 0.2})
    assert figures.along_the_training(experiment(trio()), folder) is None
    assert list(figures.draw(experiment(trio()), open_folder(tmp_path / "empty"), {"lines": []})) == []
