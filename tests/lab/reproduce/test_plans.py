"""The small parts of an experiment."""

from __future__ import annotations

from pathlib import Path

import pytest
from partialsgd.lab.reproduce.plans import Asked, Cell, default_out

from partialsgd.lab.recipes.images.settings import Images


def test_a_cell_changes_learning_rate_and_warm_up_only() -> None:
    settings = Cell(0.3, 7).of(Images(epochs=4, seed=2))
    assert settings == Images(epochs=4, seed=2, lr=0.3, warm_up=7)


def test_a_cells_name_is_a_directory_of_its_own() -> None:
    assert Cell(1.5e-3, 60).name == "lr0.0015-warm60" != Cell(1.5e-3, 240).name
    for cell in (Cell(1.5e-3, 60), Cell(1e-5, 0), Cell(2.0, 4000)):
        assert Cell.named(cell.name) == cell
    for other in ("lr0.0015-warm60.old", "lr0.0015", "lr0.00150-warm60", "lr-warm", "notes"):
        assert Cell.named(other) is None


def test_each_experiment_scale_and_corpus_has_a_place_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corpus").mkdir()
    monkeypatch.chdir(tmp_path / "corpus")
    assert default_out("table1a", Asked(data=".")) == Path("runs/reproduce/table1a-laptop-corpus")
    assert default_out("table1a", Asked()) == Path("runs/reproduce/table1a-laptop")
    assert default_out("table1a", Asked("paper", "/data/iwslt14")) == Path("runs/reproduce/table1a-paper-iwslt14")
