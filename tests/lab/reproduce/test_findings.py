"""Sentences that say no more than the numbers."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from partialsgd.lab.reproduce import EXPERIMENTS, findings, make_experiment
from partialsgd.lab.reproduce.experiment import Request
from partialsgd.lab.reproduce.findings import sentences
from tests.lab.reproduce.made import open_folder


def line(network: str, trained: str, scores: list[float], paper: str | None = None, **more: Any) -> dict[str, Any]:
    told = {"group": "1/8", "network": network, "trained": trained, "scores": by_seed(scores), "paper": paper}
    return {**told, "row": f"{network} {trained}", "equal_flops": {}, "diverged": 0, **more}


def by_seed(scores: list[float]) -> dict[str, float]:
    return {str(seed): score for seed, score in enumerate(scores)}


def read(*lines: dict[str, Any], score: str = "BLEU", costs: tuple[dict[str, Any], ...] = ()) -> list[str]:
    return sentences({"score": score, "lines": list(lines), "costs": list(costs), "grid": []})


def test_a_difference_that_may_be_chance_is_called_so() -> None:
    alone, jointly = line("full", "alone", [30.0, 34.0], "32.48"), line("full", "jointly", [29.0, 34.0], "31.62 (0.13)")
    (said,) = read(alone, jointly)
    assert "0.50 BLEU behind the one trained alone, of as many epochs, which 2 seeds cannot tell from chance" in said
    assert "from chance (paper: 0.86" in said


def test_what_is_not_trained_is_not_compared() -> None:
    assert read(line("core", "alone", []), line("core", "jointly", [1.0])) == []


def test_a_best_cell_at_the_edge_of_the_grid_is_told() -> None:
    cells = [("full", 0.1, False), ("full", 0.2, True), ("core", 0.2, False), ("core", 0.4, True)]
    grid = [{"row": row, "lr": lr, "chosen": chosen, "earlier": False, "warm_up": 60} for row, lr, chosen in cells]
    found = {"score": "BLEU", "lines": [], "costs": [], "grid": grid}
    assert sentences(found) == [
        "The chosen learning rate is the outermost of the grid for core: better ones may lie beyond."
    ]
    assert sentences({**found, "grid": grid[:1]}) == []
    before = {"row": "core", "lr": 0.8, "chosen": False, "earlier": True, "warm_up": 240}  # nothing is chosen from it
    assert sentences({**found, "grid": [*grid, before]}) == sentences(found)


def test_seeds_are_compared_one_by_one() -> None:
    """What all runs of a seed share, like its order of batches, is no reason for doubt."""
    (said,) = read(line("core", "alone", [20.0, 25.0, 30.0]), line("core", "jointly", [22.0, 27.1, 31.9]))
    assert "2.00 BLEU ahead of the one trained alone, of as many epochs." in said


@pytest.mark.parametrize(("seeds", "quantile"), [(2, 12.706), (3, 4.303), (4, 3.182), (5, 2.776), (9, 2.306)])
def test_the_doubt_is_students(seeds: int, quantile: float) -> None:
    """Differences with mean 1 whose standard error is 1/t: a little larger t is clear, a smaller one is not."""
    spread = [(-1.0) ** k for k in range(seeds)] if seeds % 2 == 0 else [0.0, *((-1.0) ** k for k in range(seeds - 1))]
    unit = math.sqrt(seeds) / stdev(spread)
    for t, is_clear in ((quantile * 1.15, True), (quantile * 0.99, False)):
        scores = [21.0 + unit / t * each for each in spread]
        (said,) = read(line("core", "alone", [20.0] * seeds), line("core", "jointly", scores))
        assert ("cannot tell from chance" not in said) == is_clear


def test_where_every_run_of_one_has_diverged_this_is_told() -> None:
    alone = line("core", "alone", [], "17.95 (3.65)", diverged=3)
    (said,) = read(alone, line("core", "jointly", [24.0, 25.0, 26.0], "24.03 (0.77)"))
    assert said == "r = 1/8, core: jointly it reaches BLEU 25.00; alone, every run has diverged (3)."


def test_each_other_way_is_compared() -> None:
    said = read(
        line("core", "alternating", [50.0]),
        line("core", "slimmable", []),
        line("core", "alone", [51.0]),
        score="accuracy",
    )
    assert said == [
        "r = 1/8, core: by alternating training it is 1.00 points behind the one trained alone, of as many epochs, "
        "by one seed."
    ]


def test_only_seeds_that_both_have_are_compared_and_diverged_ones_are_told() -> None:
    alone = {**line("core", "alone", [], diverged=1), "scores": {"1": 20.0, "2": 20.0}}
    (said,) = read(alone, line("core", "jointly", [99.0, 21.0, 21.2]))
    assert "1.10 BLEU ahead" in said and "diverged and left out: 1 alone" in said


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("table")])
def test_every_way_of_training_in_a_table_has_words(name: str, tmp_path: Path) -> None:
    lines = make_experiment(name, Request()).lines(open_folder(tmp_path))
    assert {line.trained for line in lines} <= findings._OURS.keys() | findings._OTHERS.keys()


def test_lines_of_a_figure_are_not_compared() -> None:
    assert read(line("full", "standard", [1.0]), line("full", "alternating", [1.0])) == []
