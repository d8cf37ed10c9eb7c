"""Worker processes: their answers, a run made or resumed by one, and what is left when one of them dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.reproduce import workers
from partialsgd.lab.reproduce.jobs import RunJob, train_or_resume
from partialsgd.lab.reproduce.workers import WorkerPool, work
from partialsgd.lab.runs.run import FAILED
from partialsgd.lab.training.errors import WrongCall
from tests.lab.reproduce.made import open_folder

TINY = Images(epochs=1, limit=40, width=4, batch=20, threads=1)
ANSWER = "print(json.dumps({'result': None}), flush=True)"

MakePool: TypeAlias = Callable[[str, int], WorkerPool]


def job(path: Path, **changes: Any) -> RunJob:
    return RunJob(path.name, path, replace(TINY, **changes))


def wait(pool: WorkerPool) -> tuple[Any, Any]:
    """The next job that ended, and its result or the text of its error."""
    for _ in range(600):
        if (outcome := pool.wait(0.5)) is not None:
            return outcome[0], str(outcome[1]) if isinstance(outcome[1], Exception) else outcome[1]
    raise TimeoutError


@pytest.fixture
def pool_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePool:
    """A pool whose processes run the given code instead of training."""

    def make(code: str, size: int = 1) -> WorkerPool:
        (tmp_path / "actor.py").write_text(f"import json, os, sys, time\n{code}\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return WorkerPool(size, tmp_path / "logs", module="actor")

    return make


def test_one_process_does_job_after_job_and_saves_when_it_is_told_to_end(tmp_path: Path) -> None:
    with WorkerPool(1, tmp_path / "logs") as pool:
        for name in ("a", "b"):
            pool.start(first := job(tmp_path / name))
            assert wait(pool) == (first, None) and (tmp_path / name / "summary.json").exists()
        pool.start(job(tmp_path / "c", epochs=1000, checkpoint_every=10**6))
        while not (tmp_path / "c" / "metrics.jsonl").exists():
            assert pool.wait(0.05) is None
        assert len(pool._processes) == 1 and len(list((tmp_path / "logs").iterdir())) == 1
    assert len(list((tmp_path / "c" / "checkpoints").iterdir())) == 1


def test_a_failure_and_a_wrong_call_are_reported_and_the_next_job_has_a_new_process(
    tmp_path: Path, pool_of: MakePool
) -> None:
    answers = "{'error': 'no'} if 'bad' in line else {'wrong call': 'no data'} if 'mistaken' in line else {'result': 7}"
    with pool_of(f"for line in sys.stdin: print(json.dumps({answers}), flush=True)", 1) as pool:
        pool.start(bad := job(tmp_path / "bad"))
        (before,) = pool._processes.values()
        assert wait(pool) == (bad, f"no; its output is in {tmp_path / 'logs' / 'worker0.log'}")
        pool.start(good := job(tmp_path / "good"))
        assert wait(pool) == (good, 7) and pool._processes[0] is not before
        pool.start(wrong := job(tmp_path / "mistaken"))
        while (outcome := pool.wait(60.0)) is None:
            pass  # the end of the process that failed
    ended, error = outcome
    assert ended is wrong and isinstance(error, WrongCall) and str(error) == "no data"


@pytest.mark.parametrize("code", ["sys.exit(3)", "input(); sys.exit(3)", "os.close(0); time.sleep(0.1); sys.exit(3)"])
def test_a_process_that_dies_with_a_job_is_noticed(tmp_path: Path, code: str, pool_of: MakePool) -> None:
    with pool_of(code, 2) as pool:
        for name in ("a", "b"):
            pool.start(first := job(tmp_path / name))
            failed, error = wait(pool)
            assert failed is first and error.startswith("its process has ended, exit code 3; its output is in")


def test_the_death_of_a_process_that_has_answered_is_no_answer_and_one_that_dies_idle_is_replaced(
    tmp_path: Path, pool_of: MakePool
) -> None:
    with pool_of(f"input(); {ANSWER}", 1) as pool:
        for name in ("a", "b", "c"):
            pool.start(first := job(tmp_path / name))
            pool._processes[0].wait()
            assert wait(pool) == (first, None)
            if name == "a":  # the end of b is read after c was given
                assert pool.wait(60.0) is None and not pool._processes
    with pool_of(f"for _ in sys.stdin: {ANSWER}", 2) as pool:
        for name in ("a", "b"):
            pool.start(first := job(tmp_path / name))
            assert wait(pool) == (first, None)
            os.kill(pool._processes[0].pid, signal.SIGKILL)
            pool._processes[0].wait()


def test_a_process_that_does_not_end_in_time_is_killed(
    tmp_path: Path, pool_of: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_PATIENCE", 0.2)
    with pool_of(f"input(); os.close(0); {ANSWER}; time.sleep(1000)", 1) as pool:
        pool.start(job(tmp_path / "a"))
        wait(pool)
        pool.start(job(tmp_path / "b"))  # nobody reads it: neither this nor the end of the input is an error
        (process,) = pool._processes.values()
    assert process.returncode == -signal.SIGKILL


def test_a_second_interruption_leaves_no_process(
    tmp_path: Path, pool_of: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return type(process).wait(process)

    with pytest.raises(KeyboardInterrupt), pool_of("time.sleep(1000)", 1) as pool:
        pool.start(job(tmp_path / "a"))
        (process,) = pool._processes.values()
        monkeypatch.setattr(process, "wait", interrupted)
    assert process.returncode == -signal.SIGKILL


IN_ITS_LAST_STEP = """
import time
from partialsgd.lab.training.errors import stop_on_signal

def run():
    with stop_on_signal(lambda line: None) as is_asked:
        print("begun", flush=True)
        while not is_asked():
            time.sleep(0.01)
"""


def test_a_worker_that_is_told_to_end_in_the_last_step_of_a_run_answers_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "last_step.py").write_text(IN_ITS_LAST_STEP)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    pipes: Any = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    command = [sys.executable, "-m", "partialsgd.lab.reproduce.workers"]
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(json.dumps({"label": "it", "call": "last_step:run", "arguments": {}}) + "\n")
        process.stdin.flush()
        assert process.stderr.readline() == "begun\n"
        process.stdin.close()
        assert process.stdout.read() == '{"result": null}\n'
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_a_finished_run_stays_as_it_is_and_a_diverged_one_says_so(tmp_path: Path) -> None:
    settings = replace(TINY, out=str(tmp_path / "r"))
    train_or_resume(settings)
    before = (tmp_path / "r" / "summary.json").read_bytes()
    train_or_resume(settings)
    assert (tmp_path / "r" / "summary.json").read_bytes() == before
    folder = open_folder(tmp_path)
    path = folder.run("core", 0)
    train_or_resume(replace(TINY, lr=1e30, epochs=3, out=str(path)))
    assert "NaN or infinite" in json.loads((path / FAILED).read_text())["error"]
    assert len(folder.seeds("core")) == 1 and folder.scored("core") == []


def test_where_a_job_went_wrong_is_in_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.json").write_text("half of it")
    damaged = job(tmp_path / "r")
    answer = work(damaged.label, damaged.call, damaged.arguments)
    assert answer.keys() == {"error"} and answer["error"].startswith("ValueError: ")
    log = capsys.readouterr().err
    assert "r failed\nTraceback (most recent call last)" in log and "jobs.py" in log
    wrong = job(tmp_path / "s", data=str(tmp_path / "nothing"))
    answer = work(wrong.label, wrong.call, wrong.arguments)
    assert answer.keys() == {"wrong call"} and "nothing" in answer["wrong call"]
    assert capsys.readouterr().err == f"s failed: {answer['wrong call']}\n"


def test_data_that_were_moved_are_found_at_their_new_path(tmp_path: Path) -> None:
    """The run knows the old path; the hash says whether the data are the same."""
    lines = [f"eins zwei {k} drei {k % 7}\n" for k in range(60)]
    old, new = tmp_path / "old" / "corpus", tmp_path / "new" / "corpus"
    old.mkdir(parents=True)
    for part, own in (("train", lines[:40]), ("valid", lines[40:50]), ("test", lines[50:])):
        for language in ("de", "en"):
            (old / f"{part}.{language}").write_text("".join(own))
    small = Translation(layers=1, d_model=16, ffn=16, heads=2, vocabulary=300, epochs=1, threads=1, beam=1)
    settings = replace(small, nest="none", method="plain", data=str(old), source="de", target="en")
    settings = replace(settings, out=str(tmp_path / "r"))
    train_or_resume(settings)
    (tmp_path / "r" / "summary.json").unlink()  # killed before its last file
    new.parent.mkdir()
    old.rename(new)
    train_or_resume(replace(settings, data=str(new)))
    assert (tmp_path / "r" / "summary.json").exists()
    (new / "train.de").write_text("etwas anderes\n" * 40)
    (tmp_path / "r" / "summary.json").unlink()
    with pytest.raises(ValueError, match=r"the data are not those that .* started with"):
        train_or_resume(replace(settings, data=str(new)))
