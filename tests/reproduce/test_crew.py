"""Processes that train: what they answer, and what they leave when one of them dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from partialsgd.recipes.images.settings import Images
from partialsgd.reproduce.crew import Crew, crew
from partialsgd.reproduce.jobs import Job

TINY = Images(epochs=1, limit=40, width=4, batch=20, threads=1)


def job(path: Path, **changes: object) -> Job:
    told = {**vars(TINY), **changes, "out": str(path)}
    return Job(path.name, path, Images(**told))


def answer(working: Crew) -> Job:
    for _ in range(600):
        if (done := working.done(0.5)) is not None:
            return done
    raise TimeoutError


def test_one_process_does_job_after_job(tmp_path: Path) -> None:
    with crew(1, tmp_path / "logs") as working:
        for name in ("a", "b"):
            given = job(tmp_path / name)
            working.give(given)
            assert not working.has_room()
            assert answer(working) is given and (tmp_path / name / "summary.json").exists()
        assert len(list((tmp_path / "logs").iterdir())) == 1


def test_a_failure_is_told_with_its_reason_and_where_the_rest_is(tmp_path: Path) -> None:
    with crew(1, tmp_path / "logs") as working:
        working.give(job(tmp_path / "a", data=str(tmp_path / "nothing")))
        with pytest.raises(RuntimeError, match=r"a has failed: .*nothing.*worker0\.log"):
            answer(working)


def test_a_process_that_dies_is_noticed(tmp_path: Path) -> None:
    with crew(1, tmp_path / "logs") as working:
        working.give(job(tmp_path / "a", epochs=1000))
        while not (tmp_path / "a" / "metrics.jsonl").exists():
            assert working.done(0.05) is None
        (process,) = working._processes.values()
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="a has failed: its process has ended, exit code -9"):
            answer(working)


def test_who_is_told_to_end_has_saved(tmp_path: Path) -> None:
    with crew(1, tmp_path / "logs") as working:
        working.give(job(tmp_path / "a", epochs=1000, checkpoint_every=10**6))
        while not (tmp_path / "a" / "metrics.jsonl").exists():
            assert working.done(0.05) is None
    assert len(list((tmp_path / "a" / "checkpoints").iterdir())) == 1
