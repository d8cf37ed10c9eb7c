"""A reproduction in real processes: killed half-way it repeats no finished run, and ends with the same table."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "partialsgd", "reproduce", "table3", "--scale", "smoke", "--seeds", "1"]
ROWS = ["--rows", "alternating", "--jobs", "2"]


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
    return subprocess.Popen([*COMMAND, *ROWS, "--out", str(out), *more], **pipes)


def finish(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def finished(out: Path) -> dict[Path, tuple[int, bytes]]:
    """The files of the runs at their end: when they were written, and what is in them."""
    runs = [path.parent for path in out.glob("*/*/*/summary.json")]
    files = [run / name for run in runs for name in ("config.json", "metrics.jsonl", "summary.json")]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def without_times(out: Path) -> Any:
    """What does not depend on how fast the machine was."""
    found = json.loads((out / "table.json").read_text())
    for row in [*found["lines"], *found["costs"]]:
        for name in [name for name in row if name.endswith("seconds")]:
            del row[name]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    finish(start(out))
    return out


def test_killed_it_leaves_nobody_behind_and_goes_on_where_it_was(undisturbed: Path, tmp_path: Path) -> None:
    process = start(tmp_path)
    several = random.randint(1, 5)
    while len(finished(tmp_path)) < 3 * several and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    _wait_until_nobody_trains(tmp_path)
    before = finished(tmp_path)
    assert 3 * several <= len(before) < len(finished(undisturbed)), "the kill came too late to show anything"
    finish(start(tmp_path))
    after = finished(tmp_path)
    assert {path: after[path] for path in before} == before
    assert without_times(tmp_path) == without_times(undisturbed)


def test_a_table_is_made_of_the_files_alone(undisturbed: Path) -> None:
    names = ("table.md", "table.csv", "table.json", "size.png", "size.svg")
    before = {name: (undisturbed / name).read_bytes() for name in names}
    runs = finished(undisturbed)
    for name in names:
        (undisturbed / name).unlink()
    for weights in undisturbed.glob("*/*/*/*/model.safetensors"):
        weights.unlink()
    said = finish(start(undisturbed, "--show"))
    assert {name: (undisturbed / name).read_bytes() for name in names} == before
    assert finished(undisturbed) == runs and "begins" not in said


def _wait_until_nobody_trains(out: Path) -> None:
    """Workers hold a lock while they train; it must come free though nobody told them to end."""
    deadline = time.monotonic() + 60
    for path in out.glob("*/*/*/.lock"):
        with path.open() as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    assert time.monotonic() < deadline, f"{path.parent} is still being trained"
                    time.sleep(0.05)
