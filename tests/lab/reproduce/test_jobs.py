"""The runner goes on after failures; in real processes, stopped or killed, it repeats nothing and ends the same."""

from __future__ import annotations

import fcntl
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, final

import psutil
import pytest
from rich.console import Console

from partialsgd.lab.cli import main
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.reproduce.experiment import Row, always
from partialsgd.lab.reproduce.jobs import JobProgress, RunJob, train_or_resume
from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.lab.reproduce.workers import Job
from partialsgd.lab.training.errors import AlreadyThere, Stopped, WrongCall
from tests.lab.reproduce import made

module = import_module("partialsgd.lab.reproduce.reproduce")

CALL = ["reproduce", "table3", "--scale", "smoke", "--seeds", "1", "--rows", "alternating", "--out"]
LONG = Images(limit=40, width=4, batch=20, threads=1, epochs=100, evaluate_every=100, checkpoint_every=10**6)
"""200 steps."""
ALONE = """
import sys
from pathlib import Path
from tests.lab.reproduce.test_jobs import one_long_run
one_long_run(Path(sys.argv[1]))
"""


@final
class Pool:
    """Does each job at once, or ends it with an error."""

    size = 2

    def __init__(self, errors: dict[str, BaseException], digest: str) -> None:
        self.errors, self.digest = errors, digest
        self.busy: dict[int, Job] = {}
        self.started: list[str] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, job: Job) -> None:
        self.started.append(job.label)
        self.busy[len(self.started)] = job

    def wait(self, seconds: float) -> tuple[Job, Any]:
        job = self.busy.pop(min(self.busy))
        error = self.errors.get(job.label)
        if isinstance(error, KeyboardInterrupt):
            raise error
        if error is None:
            assert isinstance(job, RunJob)
            config = made.run(job.path, [made.valid(full=0.1)], {"full": 0.1}, settings=job.settings) / "config.json"
            config.write_text(json.dumps({**json.loads(config.read_text()), "data": self.digest}))
        return job, error


def run(
    path: Path, errors: dict[str, BaseException], page: io.StringIO, patch: pytest.MonkeyPatch, digest: str = "a"
) -> tuple[list[str], list[str]]:
    """The failures, and the labels of the jobs that were started."""
    pool, console = Pool(errors, digest), Console(file=page, width=200)
    patch.setattr(module, "WorkerPool", lambda size, logs: pool)
    plan = made.experiment([replace(row, tuned_as=None) for row in made.trio(seeds=2)])
    return module._train(plan, RunFolder(path, plan), (), 2, console), pool.started


def one_long_run(path: Path) -> list[str]:
    plan = made.experiment([Row("joint", always(LONG), 1, tuned_as=None)])
    return module._train(plan, RunFolder(path, plan), (), 1, Console(stderr=True))


def start(*command: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
    return subprocess.Popen([sys.executable, *command], cwd=Path(__file__).parents[3], **pipes)


def finished(out: Path) -> dict[Path, tuple[int, bytes]]:
    """The files of the runs at their end: when they were written, and what is in them."""
    runs = [path.parent for path in out.glob("*/*/*/summary.json")]
    files = [run / name for run in runs for name in ("config.json", "metrics.jsonl", "summary.json")]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def without_times(out: Path) -> Any:
    """Return the parts of a run that do not depend on how fast the machine was."""
    found = json.loads((out / "table3.json").read_text())
    for row in [*found["lines"], *found["costs"]]:
        for name in [name for name in row if name.endswith("seconds")]:
            del row[name]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    assert main([*CALL, str(out)]) == 0
    return out


def test_a_failure_is_told_at_the_end_all_else_goes_on_and_other_data_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = io.StringIO()
    errors = {"full, seed 1": RuntimeError("no memory"), "joint, seed 0": WrongCall("no teacher")}
    failed, given = run(tmp_path, errors, page, monkeypatch)
    assert failed == ["full, seed 1: no memory", "joint, seed 0: no teacher"]
    assert sorted(given) == [f"{row}, seed {seed}" for row in ("core", "full", "joint") for seed in (0, 1)]
    assert "full, seed 1 has failed, 0.0 minutes: no memory\n" in page.getvalue()
    with pytest.raises(AlreadyThere, match="was trained on other data than"):
        run(tmp_path, {}, io.StringIO(), monkeypatch, digest="b")
    shutil.rmtree(made.open_folder(tmp_path).run("full", 1))
    assert run(tmp_path, {}, page, monkeypatch) == ([], ["full, seed 1", "joint, seed 0"])


def test_interrupted_it_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = io.StringIO()
    with pytest.raises(Stopped, match=r"^stopped; the same call goes on$"):
        run(tmp_path, {"core, seed 0": KeyboardInterrupt()}, page, monkeypatch)
    assert page.getvalue().strip().endswith("once more to stop at once, without saving.")


def test_a_line_is_printed_when_a_run_starts_and_when_it_ends(tmp_path: Path) -> None:
    page = io.StringIO()
    good, bad = (RunJob(name, tmp_path / name, Images()) for name in ("good", "bad"))
    with JobProgress(Console(file=page, width=80), is_live=True) as progress:
        progress.started(good)
        progress.started(bad)
        progress.update([good, bad], left=2)
        made.run(good.path, [made.valid(full=0.1)], {"full": 0.1})
        made.run(bad.path, [made.valid(full=0.1)], None)
        progress.ended(good, None)
        progress.ended(bad, None)
        progress.started(good)
        progress.ended(good, ValueError("no"))
    assert page.getvalue().splitlines() == [
        "good begins",
        "bad begins",
        "good is done, 0.0 minutes",
        "bad is done, 0.0 minutes, it has diverged",
        "good goes on",
        "good has failed, 0.0 minutes: no",
    ]
    with (bad.path / "metrics.jsonl").open("a") as file:
        file.write('{"t": 10, "epo')  # a line that is being written
    assert replace(bad, settings=Images(epochs=4)).progress() == (0.25, "epoch 1.0 of 4")
    assert replace(bad, settings=Images(epochs=4, max_steps=20)).progress() == (0.5, "step 10 of 20")
    assert RunJob("none", tmp_path / "none", Images(epochs=4)).progress() == (0.0, "epoch 0.0 of 4")


def test_a_call_that_is_wrong_for_the_first_job_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    assert main([*CALL, str(tmp_path / "out"), "--data", str(tmp_path / "data"), "--jobs", "2"]) == 2
    said = capsys.readouterr().err
    assert "partialsgd: alternating, learning rate" in said and "data_batch" in said
    assert said.count(" begins") == 2 and not (tmp_path / "out" / "grid").exists(), "nothing else was started"


def test_killed_it_leaves_nobody_behind_and_goes_on_where_it_was(undisturbed: Path, tmp_path: Path) -> None:
    process = start("-m", "partialsgd", *CALL, str(tmp_path), "--jobs", "2")
    several = random.randint(1, 3)  # of 7 runs
    while len(finished(tmp_path)) < 3 * several and process.poll() is None:
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert len(workers) == 2 and not alive
    before = finished(tmp_path)
    assert 3 * several <= len(before) < len(finished(undisturbed)), "the kill came too late to show anything"
    assert main([*CALL, str(tmp_path)]) == 0
    after = finished(tmp_path)
    assert {path: after[path] for path in before} == before
    assert without_times(tmp_path) == without_times(undisturbed)


def test_stopped_and_killed_inside_a_run_it_goes_on_with_the_next_step(tmp_path: Path) -> None:
    train_or_resume(replace(LONG, out=str(tmp_path / "undisturbed")))
    metrics = made.open_folder(tmp_path).run("joint", 0) / "metrics.jsonl"
    with _ctrl_c_at(metrics, random.randint(1, 30)), pytest.raises(Stopped):
        one_long_run(tmp_path)
    _wait_until_nobody_trains(tmp_path, seconds=0)  # it has waited itself
    stopped = _lines(metrics)
    process = start("-c", ALONE, str(tmp_path))
    _wait_for(metrics, until := stopped + random.randint(1, 30))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    _wait_until_nobody_trains(tmp_path)
    killed = _lines(metrics)
    assert 0 < stopped < until <= killed < 200, "the kill came too late to show anything"
    assert one_long_run(tmp_path) == []
    log = (tmp_path / "logs" / "worker0.log").read_text()
    assert [line for line in log.splitlines() if line.startswith("Continuing")] == [
        f"Continuing from step {step} of 200." for step in (stopped, killed)
    ]
    assert metrics.read_bytes() == (tmp_path / "undisturbed" / "metrics.jsonl").read_bytes()


def test_a_table_is_made_of_the_files_alone(undisturbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("table3.md", "table3.json", "table3-size.png", "table3-size.svg")
    before = {name: (undisturbed / name).read_bytes() for name in names}
    runs = finished(undisturbed)
    for name in names:
        (undisturbed / name).unlink()
    for weights in undisturbed.glob("*/*/*/*/model.safetensors"):
        weights.unlink()
    assert main([*CALL, str(undisturbed), "--show"]) == 0
    assert {name: (undisturbed / name).read_bytes() for name in names} == before
    assert finished(undisturbed) == runs and "begins" not in capsys.readouterr().err


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _wait_for(metrics: Path, lines: int) -> None:
    deadline = time.monotonic() + 600
    while _lines(metrics) < lines and time.monotonic() < deadline:
        time.sleep(0.02)


@contextmanager
def _ctrl_c_at(metrics: Path, lines: int) -> Iterator[None]:
    """To this process, when so many steps are done."""

    def press() -> None:
        _wait_for(metrics, lines)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    finger = threading.Thread(target=press)
    finger.start()
    try:
        yield
    finally:
        finger.join()
        signal.signal(signal.SIGINT, before)


def _wait_until_nobody_trains(out: Path, seconds: float = 60) -> None:
    """Workers hold a lock while they train; it must come free though nobody told them to end."""
    deadline = time.monotonic() + seconds
    for path in out.glob("*/*/*/.lock"):
        with path.open() as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    assert time.monotonic() < deadline, f"{path.parent} is still being trained"
                    time.sleep(0.05)
