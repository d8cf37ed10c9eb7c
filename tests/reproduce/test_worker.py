"""A run by a worker: made, gone on with, refused, or diverged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from partialsgd.recipes.images.settings import Images
from partialsgd.reproduce.folder import FAILED, Folder
from partialsgd.reproduce.worker import work

TINY = Images(epochs=1, limit=40, width=4, batch=20, threads=1)


def test_a_run_that_is_at_its_end_stays_as_it_is(tmp_path: Path) -> None:
    settings = replace(TINY, out=str(tmp_path / "r"))
    work(settings)
    before = (tmp_path / "r" / "summary.json").read_bytes()
    work(settings)
    assert (tmp_path / "r" / "summary.json").read_bytes() == before


def test_numbers_that_leave_the_finite_are_kept_as_an_outcome(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    path = folder.run("core", 0)
    work(replace(TINY, lr=1e30, epochs=3, out=str(path)))
    assert "NaN or infinite" in json.loads((path / FAILED).read_text())["error"]
    assert len(folder.seeds("core")) == 1 and folder.scored("core") == []
