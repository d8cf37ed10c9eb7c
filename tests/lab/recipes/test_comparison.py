"""The table of a comparison: the numbers of finished runs, each in its row."""

from __future__ import annotations

import io
import json
from statistics import stdev
from typing import Any

import pytest
from partialsgd.lab.recipes.comparison import Pair
from rich.console import Console

from partialsgd.lab.recipes import comparison


def summary(seconds: float, **scores: float) -> dict[str, Any]:
    rows = {level: {"updates": 10, "flops": 100.0, "test": {"accuracy": score}} for level, score in scores.items()}
    return {"recipe": "images", "score": "accuracy", "seconds": seconds, "levels": rows}


PAIRS = [
    Pair(0, summary(8, core=0.5, full=0.8), {"core": summary(3, core=0.6, full=0.0), "full": summary(7, full=0.9)}),
    Pair(1, summary(10, core=0.7, full=0.8), {"core": summary(5, core=0.6, full=0.0), "full": summary(7, full=0.7)}),
]


def test_a_row_is_the_mean_over_the_seeds_of_the_right_runs() -> None:
    rows = {(row.level, row.trained): row for row in comparison.rows(PAIRS)}
    assert rows["core", "jointly"].scores == (0.5, 0.7) and rows["core", "alone"].scores == (0.6, 0.6)
    assert rows["full", "alone"].scores == (0.9, 0.7) and rows["full", "alone"].seconds == 7
    assert rows["core", "alone"].seconds == 4 and rows["core", "jointly"].seconds is None
    total, separately = rows["all", "jointly"], rows["all", "alone"]
    assert (total.updates, total.flops, total.seconds, total.scores) == (20, 200.0, 9, ())
    assert (separately.updates, separately.flops, separately.seconds) == (20, 200.0, 11)


def test_mean_and_deviation() -> None:
    assert comparison.spread([0.5, 0.7]) == f"0.6 ± {stdev([0.5, 0.7]):.2g}" == "0.6 ± 0.14"
    assert comparison.spread([31.25]) == "31.25" and comparison.spread([]) == ""


def test_the_table_is_the_same_in_markdown_and_in_the_terminal() -> None:
    rows = comparison.rows(PAIRS)
    text = comparison.as_markdown(rows, PAIRS, "epochs")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == ["level", "trained", "accuracy", "updates", "training FLOPs", "time"]
    assert lines[2] == ["core", "jointly", "0.6 ± 0.14", "10", "100", ""]
    assert lines[-1] == ["all", "alone", "", "20", "200", "11 s"]
    page = io.StringIO()
    Console(file=page, width=80).print(comparison.table(rows, PAIRS, "epochs"))
    shown = [[cell.strip() for cell in row.split("│")[1:-1]] for row in page.getvalue().splitlines()]
    assert all(line in shown for line in lines[2:])


@pytest.mark.parametrize(
    ("budget", "alone"),
    [("epochs", "the same epochs"), ("updates", "the same updates"), ("flops", "the FLOPs of the whole joint run")],
)
def test_the_title_says_what_a_level_alone_gets_and_the_last_line_which_seeds(budget: str, alone: str) -> None:
    for pairs, last in (
        (PAIRS, "accuracy on the test data, seeds 0, 1; means ± deviations of 2 runs"),
        (PAIRS[1:], "accuracy on the test data, seed 1"),
    ):
        lines = comparison.as_markdown(comparison.rows(pairs), pairs, budget).splitlines()
        assert lines[0] == f"# images: jointly and alone; alone each level gets {alone}" and lines[-1] == last


def test_the_numbers_are_in_a_file() -> None:
    said = json.loads(json.dumps(comparison.as_json(comparison.rows(PAIRS), PAIRS, "flops")))
    assert (said["budget"], said["seeds"], said["score"]) == ("flops", [0, 1], "accuracy")
    assert said["rows"][0]["scores"] == [0.5, 0.7]
