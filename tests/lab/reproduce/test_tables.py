"""An experiment's numbers as tables."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.reproduce import tables
from partialsgd.lab.reproduce.numbers import Numbers, collect
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


def start(name: str, *scores: float | str | None, merit: float | None, is_known: bool = True) -> Numbers:
    told = dict(zip(("core_alone", "core", "full"), scores, strict=True))
    return {"start": name, **told, "is_known": is_known, "selection_score": merit}


def starts_of(numbers: Numbers) -> tuple[tuple[str, ...], ...]:
    return next(table for table in tables.tables(numbers) if table.title.startswith("How the low-rank")).rows


def test_a_start_that_is_not_trained_yet_has_not_diverged(numbers: Numbers) -> None:
    numbers["starts"] = [start("svd", 1.0, None, None, merit=None, is_known=False)]
    assert starts_of(numbers) == (("svd", "1.00", "–", "–", "–"),)


def test_no_start_is_the_best_before_all_are_known(numbers: Numbers) -> None:
    numbers["starts"] = [start("zero", 1.0, 2.0, 3.0, merit=-2.0), start("svd", 1.0, 2.0, 3.0, merit=None)]
    numbers["starts"][1]["is_known"] = False

    def marked() -> list[str]:
        return [row[0] for row in starts_of(numbers) if "best" in row[0]]

    assert marked() == []
    numbers["starts"][1] |= {"is_known": True, "selection_score": -1.5}
    assert marked() == ["svd (best by validation)"]
    numbers["starts"][1]["selection_score"] = None  # it has diverged
    assert marked() == ["zero (best by validation)"]


def test_a_start_whose_runs_have_diverged_is_shown_as_such(numbers: Numbers) -> None:
    numbers["starts"] = [start("svd", "diverged", "diverged", "diverged", merit=None)]
    assert starts_of(numbers) == (("svd", "diverged", "diverged", "diverged", "diverged"),)


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
