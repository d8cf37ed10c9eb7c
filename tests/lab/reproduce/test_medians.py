"""Medians of measured criteria, from records whose numbers are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.medians import of_figure
from partialsgd.lab.reproduce.plans import Figure
from partialsgd.logging import metrics_log
from tests.lab.reproduce.made import look, run


def measured(folder: Folder, row: str, seed: int, cosines: list[float]) -> None:
    """A measurement at each step; c_norm is the step's number, c_align the inverse of the cosine."""
    path = run(folder.run(row, seed), [look(full=0.5)], {"full": 0.5}, settings=Images(seed=seed))
    lines = []
    for t, cosine in enumerate(cosines):
        one = {"level": None, "c_norm": float(t), "c_sim": 0.5, "c_align": 1 / cosine, "cosine": cosine}
        groups = {"layers": {**one, "c_norm": 10.0 * t}}
        step = {"t": t, "level": None, "loss": {}, "lr": 0.1, "backwards": 1, "epoch": 1.0}
        lines.append(metrics_log.to_line({**step, "criteria": [{**one, "groups": groups}]}))
    (path / "metrics.jsonl").write_bytes(b"".join(lines))


def test_they_are_of_the_second_half_and_squared(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    measured(folder, "dropout", 0, [0.1, 0.1, 0.1, 0.5, 0.5, 0.8])
    measured(folder, "dropout", 1, [0.1, 0.1, 0.1, 0.5, 0.25, -0.5])
    (found,) = of_figure(Figure(2, {"with dropout": "dropout", "never trained": "x"}), folder)
    assert (found["curve"], found["row"], found["of"], found["seeds"]) == ("with dropout", "dropout", "network", [0, 1])
    assert found["c_norm²"] == [16.0, 16.0] and found["c_sim²"] == [0.25, 0.25]
    assert found["c_align²"] == pytest.approx([4.0, 16.0])  # of 4, 16 and what has no bound the second is in the middle
    assert found["cosine"] == pytest.approx([0.6, 0.25 / 3]) and found["negative"] == pytest.approx([0.0, 1 / 3])


def test_where_most_steps_go_uphill_there_is_no_bound(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    measured(folder, "dropout", 0, [0.5, 0.5, -0.5, -0.5])
    (found,) = of_figure(Figure(2, {"with dropout": "dropout"}), folder)
    assert found["c_align²"] == [None]  # JSON has no infinity


def test_a_group_of_layers_has_rows_of_its_own(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    measured(folder, "dropout", 0, [0.5, 0.5])
    whole, layers = of_figure(Figure(4, {"a": "dropout"}, group="layers"), folder)
    assert (whole["of"], whole["c_norm²"]) == ("network", [1.0])
    assert (layers["of"], layers["c_norm²"]) == ("layers", [100.0])


def test_where_no_cosine_is_defined_there_is_no_row(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    measured(folder, "dropout", 0, [0.5, float("nan"), float("nan")])
    assert list(of_figure(Figure(2, {"with dropout": "dropout"}), folder)) == []
