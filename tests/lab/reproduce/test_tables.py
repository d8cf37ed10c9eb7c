"""An experiment's numbers as tables and figures; figures are read back from what was drawn."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.reproduce import figures, tables
from partialsgd.lab.reproduce.experiment import Comparison
from partialsgd.lab.reproduce.numbers import Numbers, collect
from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.lab.reproduce.tables import Table, to_rich
from tests.lab.reproduce.made import experiment, open_folder, run, search, trio, valid


@pytest.fixture
def numbers(tmp_path: Path) -> Numbers:
    folder = open_folder(tmp_path)
    search(folder, "core", [0.5, 0.2])
    for seed, value in enumerate((0.7, 0.72)):
        seeded = {"settings": Images(seed=seed, epochs=1)}
        run(folder.run("core", seed), [valid(full=value)], {"full": value}, **seeded)
        run(folder.run("joint", seed), [valid(core=0.5, full=0.8)], {"core": 0.6, "full": 0.8}, **seeded)
    run(folder.run("full", 0), [valid(full=0.9)], {"full": 0.9})
    return collect(experiment(trio()), folder)


def test_means_have_their_deviation_in_brackets_as_the_paper_prints_them() -> None:
    assert tables.spread([70.0, 72.0]) == "71.00 (1.41)"
    assert tables.spread([70.0]) == "70.00"
    assert tables.spread([]) == "–"
    assert tables.spread([1.0, None]) == "no bound"


def test_a_loss_is_shown_as_it_is_measured(numbers: Numbers) -> None:
    numbers["criterion"] = "loss"
    numbers["grid"][0]["selection_score"] = -3.25
    assert tables.tables(numbers)[-1].rows[0][3] == "3.2500"
    numbers["grid"][0]["selection_score"] = None
    assert tables.tables(numbers)[-1].rows[0][3] == "diverged"


def test_a_group_without_a_run_of_its_own_is_not_shown(numbers: Numbers) -> None:
    """The whole network alone stands beside every ratio; it does not make one."""
    other = {**numbers["lines"][2], "group": "1/8"}
    numbers["lines"] = [other, *numbers["lines"]]
    assert {row[0] for row in tables.tables(numbers)[0].rows} == {"1/2"}
    numbers["lines"] = [other]
    assert {row[0] for row in tables.tables(numbers)[0].rows} == {"1/8"}


def test_the_best_start_is_marked_once_all_are_known_and_missing_and_diverged_ones_are_shown(numbers: Numbers) -> None:
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


def test_what_diverged_at_equal_flops_is_said_in_its_column(numbers: Numbers) -> None:
    numbers["lines"][0]["equal_flops_diverged"] = 2
    assert tables.tables(numbers)[0].rows[0][-2:] == ("71.00 (1.41)", "–, 2 diverged")


@pytest.mark.parametrize(("score", "groups"), [("accuracy", ["network"]), ("BLEU", ["network", "layers"])])
def test_the_criteria_fit_into_eighty_columns_and_say_of_what_they_are(
    numbers: Numbers, score: str, groups: list[str]
) -> None:
    values = {key: [11.11, 12.34] for key in ("c_norm²", "c_sim²", "c_align²", "cosine")}
    curve = {"curve": "without dropout", "row": "core", "seeds": [0, 1], "negative": [0.1, 0.3]}
    numbers |= {"score": score, "criteria": [{**curve, "of": group} | values for group in groups]}
    (table,) = tables.tables(numbers)
    page = io.StringIO()
    Console(file=page, width=80).print(tables.to_rich(table))
    assert "…" not in page.getvalue() and ("layers" in page.getvalue()) == (len(groups) == 2)
    assert len({len(row) for row in (table.head, *table.rows)}) == 1 and ("of" in table.head) == (len(groups) == 2)


SIZES = Table("Sizes", ("r", "network", "BLEU"), (("1/4", "core", "1.00"), ("1/8", "core", "–")), words=2, note="Told.")


def test_in_a_terminal_a_line_parts_what_differs_in_the_first_column() -> None:
    page = io.StringIO()
    Console(file=page, width=40).print(to_rich(SIZES))
    lines = [line.strip() for line in page.getvalue().splitlines()]
    first, second = (next(k for k, line in enumerate(lines) if ratio in line) for ratio in ("1/4", "1/8"))
    assert lines[0] == "Sizes" and lines[-1] == "Told."
    assert second == first + 2 and lines[first + 1].startswith("├")


def test_a_wide_table_keeps_every_letter_in_eighty_columns() -> None:
    head = ("r", "network", "trained", "parameters", "FLOPs", "FLOPs, paper", "ours, as it counts", "time")
    row = ("1/2", "core", "alternating", "11,173,962", "1.18e+12", "3.13e+13", "3.99e+11", "36.1 s")
    page = io.StringIO()
    Console(file=page, width=80).print(to_rich(Table("Sizes", head, (row,), words=3)))
    (line,) = (line for line in page.getvalue().splitlines() if "core" in line)
    assert line.replace("│", " ").split() == " ".join(row).split() and len(line) <= 80


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = open_folder(tmp_path)
    for seed, value in enumerate((0.6, 0.7)):
        told: Any = {"settings": Images(seed=seed, epochs=2)}
        alone = [valid(full=0.2), valid(full=value)]
        run(folder.run("core", seed), alone, {"full": value}, flops={"full": 100.0}, **told)
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
