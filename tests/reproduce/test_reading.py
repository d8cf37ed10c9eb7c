"""Sentences that say no more than the numbers."""

from __future__ import annotations

from typing import Any

from partialsgd.reproduce.reading import sentences


def line(network: str, trained: str, scores: list[float], paper: str | None = None, **more: Any) -> dict[str, Any]:
    told = {"group": "1/8", "network": network, "trained": trained, "scores": by_seed(scores), "paper": paper}
    return {**told, "row": f"{network} {trained}", "equal_flops": {}, "diverged": 0, **more}


def by_seed(scores: list[float]) -> dict[str, float]:
    return {str(seed): score for seed, score in enumerate(scores)}


def read(*lines: dict[str, Any], score: str = "BLEU", costs: tuple[dict[str, Any], ...] = ()) -> list[str]:
    return sentences({"score": score, "lines": list(lines), "costs": list(costs), "grid": [], "elsewhere": []})


def test_a_clear_difference_is_told_beside_the_papers() -> None:
    alone = line("core", "alone", [20.0, 20.2, 19.8], "27.87 (0.11)")
    jointly = line("core", "jointly", [22.0, 22.2, 21.8], "28.20 (0.48)")
    assert read(alone, jointly) == [
        "r = 1/8, core: jointly trained it is 2.00 BLEU ahead of the one trained alone, of as many epochs "
        "(paper: 0.33 ahead at equal epochs)."
    ]


def test_a_difference_within_the_noise_of_the_seeds_is_called_so() -> None:
    alone, jointly = line("full", "alone", [30.0, 34.0], "32.48"), line("full", "jointly", [29.0, 34.0], "31.62 (0.13)")
    (said,) = read(alone, jointly)
    assert (
        "0.50 BLEU behind the one trained alone, of as many epochs, no more than the seeds differ (paper: 0.86" in said
    )


def test_one_seed_is_called_one_seed_and_equal_flops_are_told() -> None:
    alone = line("core", "alone", [20.0], equal_flops=by_seed([23.0]))
    (said,) = read(alone, line("core", "jointly", [22.0]))
    assert "2.00 BLEU ahead of the one trained alone, of as many epochs, by one seed;" in said
    assert "1.00 BLEU behind it at equal FLOPs, by one seed." in said
    assert "paper" not in said


def test_accuracies_are_points_and_methods_are_named() -> None:
    said = read(line("core", "alternating", [93.0]), line("core", "slimmable", [92.0]), score="accuracy")
    assert said == [
        "r = 1/8, core: by alternating training it is 1.00 points ahead of that of slimmable training, "
        "of as many epochs, by one seed."
    ]


def test_what_is_not_trained_is_not_compared() -> None:
    assert read(line("core", "alone", []), line("core", "jointly", [1.0])) == []


def test_the_cost_is_that_of_the_joint_run_over_both() -> None:
    cost = {"label": "r = 1/8", "joint_flops": 3.0, "alone_flops": 6.0, "joint_seconds": 4.0, "alone_seconds": 5.0}
    (said,) = read(costs=(cost,))
    assert "0.50 of the FLOPs of the separate runs together, and 0.80 of their time" in said
    assert read(costs=({**cost, "alone_flops": None},)) == []


def test_a_best_cell_at_the_edge_of_the_grid_is_told() -> None:
    cells = [("full", 0.1, False), ("full", 0.2, True), ("core", 0.2, False), ("core", 0.4, True)]
    grid = [{"row": row, "lr": lr, "chosen": chosen, "earlier": False} for row, lr, chosen in cells]
    found = {"score": "BLEU", "lines": [], "costs": [], "grid": grid, "elsewhere": []}
    assert sentences(found) == [
        "The chosen learning rate is the outermost of the grid for core: better ones may lie beyond."
    ]
    assert sentences({**found, "grid": grid[:1]}) == []
    before = {"row": "core", "lr": 0.8, "chosen": False, "earlier": True}  # nothing is chosen from it
    assert sentences({**found, "grid": [*grid, before]}) == sentences(found)


def test_two_standard_errors_of_three_seeds_are_not_enough() -> None:
    """With four degrees of freedom Student's quantile is 2.78: here it is 2.45 standard errors."""
    (said,) = read(line("core", "alone", [20.0, 21.0, 22.0]), line("core", "jointly", [22.0, 23.0, 24.0]))
    assert "2.00 BLEU ahead" in said and "no more than the seeds differ" in said


def test_only_seeds_that_both_have_are_compared_and_diverged_ones_are_told() -> None:
    alone = {**line("core", "alone", [], diverged=1), "scores": {"1": 20.0, "2": 20.0}}
    (said,) = read(alone, line("core", "jointly", [99.0, 21.0, 21.2]))
    assert "1.10 BLEU ahead" in said and "diverged and left out: 1 alone" in said


def at(row: str, lr: float, scores: list[float], *, chosen: bool = False, level: str = "full") -> dict[str, Any]:
    return {"row": row, "lr": lr, "warm_up": 60, "level": level, "scores": by_seed(scores), "chosen": chosen}


def test_whole_runs_at_other_cells_are_told_for_better_or_worse() -> None:
    lines = [line("core", "alone", [29.0], row="core-1_8"), line("core", "jointly", [30.0], row="joint-1_8")]
    cells = [
        *(at("core-1_8", 0.1, [32.0]), at("core-1_8", 0.2, [29.0], chosen=True), at("core-1_8", 0.4, [])),
        *(at("joint-1_8", 0.4, [28.0], level="core"), at("joint-1_8", 0.4, [1.0], level="full")),
        at("another", 0.4, [1.0]),
    ]
    (said,) = sentences({"score": "BLEU", "lines": lines, "costs": [], "grid": [], "elsewhere": cells})
    words = "and warm-up 60, which the grid has not chosen for it,"
    assert said == (
        "r = 1/8, core: jointly trained it is 1.00 BLEU ahead of the one trained alone, of as many epochs, by one seed"
        f"; 2.00 BLEU behind the one at learning rate 0.1 {words} by one seed"
        f"; at learning rate 0.4 {words} 1.00 BLEU behind the other, by one seed."
    )


def test_of_a_method_that_trains_both_networks_each_is_compared_with_its_own() -> None:
    lines = [line("core", trained, [90.0], row=trained) for trained in ("alternating", "slimmable")]
    cells = [at("slimmable", 0.1, [score], level=level) for level, score in (("core", 91.0), ("full", 99.0))]
    (said,) = sentences({"score": "accuracy", "lines": lines, "costs": [], "grid": [], "elsewhere": cells})
    assert "; 1.00 points behind the one at learning rate 0.1" in said and said.count("learning rate") == 1


def test_a_seed_that_only_one_side_has_is_left_out_and_this_is_told() -> None:
    (said,) = read(line("core", "alone", [20.0, 30.0]), line("core", "jointly", [22.0]))
    assert "2.00 BLEU ahead of the one trained alone, of as many epochs, with the one seed that both have." in said
