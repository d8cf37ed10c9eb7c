"""Processes that train: what they answer, and what they leave when one of them dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from partialsgd.lab.reproduce.crew import Crew, crew
from partialsgd.lab.reproduce.jobs import Job

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.reproduce import crew as module
from partialsgd.lab.training.errors import WrongCall

TINY = Images(epochs=1, limit=40, width=4, batch=20, threads=1)
SAYS_DONE = "print(json.dumps({}), flush=True)"

Told: TypeAlias = Callable[[str], None]


def job(path: Path, **changes: object) -> Job:
    told = {**vars(TINY), **changes, "out": str(path)}
    return Job(path.name, path, Images(**told))


def answer(working: Crew) -> tuple[Job, str | None]:
    for _ in range(600):
        if (done := working.done(0.5)) is not None:
            job, error = done
            return job, None if error is None else f"{error}"
    raise TimeoutError


@pytest.fixture
def workers_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Processes that only do what they are told here, instead of training."""

    def do(code: str) -> None:
        (tmp_path / "actor.py").write_text(f"import json, os, sys, time\n{code}\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(module.worker, "__name__", "actor")

    return do


def test_one_process_does_job_after_job_and_saves_when_it_is_told_to_end(tmp_path: Path) -> None:
    with crew(1, tmp_path / "logs") as working:
        for name in ("a", "b"):
            working.give(given := job(tmp_path / name))
            assert not working.has_room()
            assert answer(working) == (given, None) and (tmp_path / name / "summary.json").exists()
        working.give(job(tmp_path / "c", epochs=1000, checkpoint_every=10**6))
        while not (tmp_path / "c" / "metrics.jsonl").exists():
            assert working.done(0.05) is None
        assert len(working._processes) == 1 and len(list((tmp_path / "logs").iterdir())) == 1
    assert len(list((tmp_path / "c" / "checkpoints").iterdir())) == 1


def test_a_failure_is_told_and_the_next_job_has_a_new_process(tmp_path: Path, workers_that: Told) -> None:
    workers_that("for line in sys.stdin: print(json.dumps({'error': 'no'} if 'bad' in line else {}), flush=True)")
    with crew(1, tmp_path / "logs") as working:
        working.give(bad := job(tmp_path / "bad"))
        (before,) = working._processes.values()
        assert answer(working) == (bad, f"no; all that it said is in {tmp_path / 'logs' / 'worker0.log'}")
        working.give(good := job(tmp_path / "good"))
        assert answer(working) == (good, None) and working._processes[0] is not before


def test_a_wrong_call_is_told_as_one(tmp_path: Path, workers_that: Told) -> None:
    workers_that("for line in sys.stdin: print(json.dumps({'wrong call': 'no such data'}), flush=True)")
    with crew(1, tmp_path / "logs") as working:
        working.give(given := job(tmp_path / "a"))
        found, error = working.done(60.0) or (None, None)
    assert found is given and isinstance(error, WrongCall) and str(error) == "no such data"


@pytest.mark.parametrize("code", ["sys.exit(3)", "input(); sys.exit(3)", "os.close(0); time.sleep(0.1); sys.exit(3)"])
def test_a_process_that_dies_with_a_job_is_noticed(tmp_path: Path, code: str, workers_that: Told) -> None:
    workers_that(code)
    with crew(2, tmp_path / "logs") as working:
        for name in ("a", "b"):
            working.give(given := job(tmp_path / name))
            failed, error = answer(working)
            assert failed is given and error is not None
            assert error.startswith("its process has ended, exit code 3; all that it said is in")


def test_the_death_of_one_that_has_answered_is_no_answer(tmp_path: Path, workers_that: Told) -> None:
    workers_that(f"input(); {SAYS_DONE}")
    with crew(1, tmp_path / "logs") as working:
        for name in ("a", "b", "c"):
            working.give(given := job(tmp_path / name))
            working._processes[0].wait()
            assert answer(working) == (given, None)
            if name == "a":  # the end of b is read after c was given
                assert working.done(60.0) is None and not working._processes


def test_who_dies_idle_is_replaced(tmp_path: Path, workers_that: Told) -> None:
    workers_that(f"for _ in sys.stdin: {SAYS_DONE}")
    with crew(2, tmp_path / "logs") as working:
        for name in ("a", "b"):
            working.give(given := job(tmp_path / name))
            assert answer(working) == (given, None)
            os.kill(working._processes[0].pid, signal.SIGKILL)
            working._processes[0].wait()


def test_who_does_not_end_in_time_is_killed(
    tmp_path: Path, workers_that: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    workers_that(f"input(); os.close(0); {SAYS_DONE}; time.sleep(1000)")
    with crew(1, tmp_path / "logs") as working:
        working.give(job(tmp_path / "a"))
        answer(working)
        working.give(job(tmp_path / "b"))  # nobody reads it: neither this nor the end of the input is an error
        (process,) = working._processes.values()
    assert process.returncode == -signal.SIGKILL


def test_a_second_interruption_leaves_nobody_behind(
    tmp_path: Path, workers_that: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return type(process).wait(process)

    workers_that("time.sleep(1000)")
    with pytest.raises(KeyboardInterrupt), crew(1, tmp_path / "logs") as working:
        working.give(job(tmp_path / "a"))
        (process,) = working._processes.values()
        monkeypatch.setattr(process, "wait", interrupted)
    assert process.returncode == -signal.SIGKILL
