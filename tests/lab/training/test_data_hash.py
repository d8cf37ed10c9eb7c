"""A run keeps to the data that it was started with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop
from partialsgd.lab.training import recipe_tools as data_hash


def test_a_digest_is_of_numbers_types_and_shapes() -> None:
    x = torch.arange(6.0)
    others = [x + (torch.arange(6) == 3), x.double(), x.reshape(2, 3), x[:5]]
    assert len({data_hash.hash_tensors(tensor) for tensor in (x, *others)}) == 5
    assert data_hash.hash_tensors(x, x) != data_hash.hash_tensors(x) == data_hash.hash_tensors(x.clone())
    assert data_hash.hash_texts("a", "bc") != data_hash.hash_texts("ab", "c")


def test_other_data_are_refused_and_a_run_from_before_has_none_to_compare(tmp_path: Path) -> None:
    run = Run.new(Images(out=str(tmp_path / "run")), "these")
    run.require_data("these")
    with pytest.raises(ValueError, match=r"not those that .*run started with: the files changed, or a library"):
        run.require_data("those")
    Run.new(Images(out=str(tmp_path / "old"))).require_data("any")


def test_what_else_a_training_reads_must_be_the_same_where_it_is_read(tmp_path: Path) -> None:
    run = Run.new(Translation(out=str(tmp_path / "run"), teacher="runs/whole"), "these teacher:one start:two")
    run.require_data("these teacher:one start:two")
    run.require_data("these")  # to score a network its teacher is not needed
    with pytest.raises(ValueError, match=r"weights of the teacher are not .*; restore the run at runs/whole, or"):
        run.require_data("these teacher:three start:two")
    with pytest.raises(ValueError, match=r"weights of the start are not"):
        run.require_data("these teacher:one start:one")
    with pytest.raises(ValueError, match=r"the data are not those"):
        run.require_data("those teacher:one start:one")


def test_a_path_from_here_is_stored_as_one_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert loop.pin(Images(data="cifar")).data == str(tmp_path / "cifar")
    found = loop.pin(Translation(start="one", init="svd", teacher="../two"))
    assert isinstance(found, Translation)
    assert (found.start, found.teacher) == (str(tmp_path / "one"), str(tmp_path.parent / "two"))
    assert loop.pin(Images()).data is None and loop.pin(Images(threads=3)).threads == 3
