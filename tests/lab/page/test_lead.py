"""The first sentences of a page."""

from __future__ import annotations

from pathlib import Path

from partialsgd.lab.page import cost
from partialsgd.lab.page.lead import lead
from partialsgd.lab.page.stored import read
from tests.lab.page import made, seen


def said(paths: list[Path]) -> str:
    runs = read(paths)
    return seen.words(seen.tree(lead(runs, cost.comparisons(runs))))


def test_one_run_says_which_sizes_how_good_and_at_what_cost(tmp_path: Path) -> None:
    assert said([made.run(tmp_path)]) == (
        "core reaches BLEU 21.50 with 1,000 parameters, 10 % of the whole. full reaches BLEU 30.12 with 10,000 "
        "parameters. One run for all took 2.20 × 10¹¹ FLOPs and 1 min 30 s; a run for each takes 2 times the FLOPs "
        "(computed, for the same epochs)."
    )


def test_a_level_alone_says_what_it_took(tmp_path: Path) -> None:
    _, core, _ = made.three(tmp_path)
    assert said([core]) == (
        "core reaches BLEU 20.00 with 1,000 parameters. The training took 4.00 × 10¹⁰ FLOPs and 1 min 30 s."
    )


def test_several_runs_say_which_has_the_best_of_each_level(tmp_path: Path) -> None:
    assert said(made.three(tmp_path)) == (
        "The best of each level: core, BLEU 21.50 (joint), full, BLEU 30.12 (joint). joint: One run for all took "
        "2.20 × 10¹¹ FLOPs and 1 min 30 s; a run for each takes 2 times the FLOPs (in 3 min); "
        "jointly less alone, BLEU: core +1.5, full +0."
    )


def test_before_its_end_a_run_says_nothing_here(tmp_path: Path) -> None:
    assert said([made.run(tmp_path, ends=False)]) == ""
    assert "half" not in said([made.run(tmp_path, "half", ends=False), made.run(tmp_path, "whole")])
