"""Processes that train side by side: each has one job at a time, and says when it is done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, Queue
from typing import TypeAlias, final

from partialsgd.lab.reproduce import worker
from partialsgd.lab.reproduce.jobs import Job
from partialsgd.lab.training.errors import WrongCall

_Process: TypeAlias = "subprocess.Popen[str]"

_PATIENCE = 120.0
"""Seconds in which whoever is told to end may finish a step, evaluate and save."""


@final
class Crew:
    """Workers that are started as they are needed, and end with us."""

    def __init__(self, size: int, logs: Path) -> None:
        self.size, self.logs = size, logs
        self.busy: dict[int, Job] = {}
        self._processes: dict[int, _Process] = {}
        self._answers: Queue[tuple[int, _Process, str | None]] = Queue()

    def has_room(self) -> bool:
        return len(self.busy) < self.size

    def give(self, job: Job) -> None:
        number = next(k for k in range(self.size) if k not in self.busy)
        if number in self._processes and self._processes[number].poll() is not None:
            self._forget(number)
        process = self._processes.get(number) or self._start(number)
        self.busy[number] = job
        assert process.stdin is not None  # it was asked for
        with suppress(BrokenPipeError):  # it has just died, which the end of its answers will tell
            process.stdin.write(json.dumps({"recipe": job.settings.recipe, "settings": asdict(job.settings)}) + "\n")
            process.stdin.flush()

    def done(self, seconds: float) -> tuple[Job, Exception | None] | None:
        """A job that was answered within so many seconds, and what went wrong with it."""
        try:
            number, process, answer = self._answers.get(timeout=seconds)
        except Empty:
            return None
        if process is not self._processes.get(number):
            return None  # another has taken its place
        job = self.busy.pop(number, None)  # none where it died idle
        error = self._error(number, answer)
        return None if job is None else (job, error)

    def _error(self, number: int, answer: str | None) -> Exception | None:
        """What an answer says went wrong. The next job begins in a new process then."""
        said = json.loads(answer) if answer else {"error": "its process has ended"}
        if not said:
            return None
        code = self._forget(number)
        if "wrong call" in said:
            return WrongCall(said["wrong call"])
        died = "" if answer else f", exit code {code}"
        return RuntimeError(f"{said['error']}{died}; all that it said is in {self._log(number)}")

    def _start(self, number: int) -> _Process:
        self.logs.mkdir(parents=True, exist_ok=True)
        threads = {"OMP_NUM_THREADS": "1"} if self.size > 1 else {}
        with self._log(number).open("a", encoding="utf-8") as log:
            process = self._processes[number] = subprocess.Popen(
                [sys.executable, "-m", worker.__name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **threads},
                start_new_session=True,  # Ctrl-C is for us, and we tell them
            )
        threading.Thread(target=self._listen, args=[number, process], daemon=True).start()
        return process

    def _listen(self, number: int, process: _Process) -> None:
        assert process.stdout is not None  # it was asked for
        with process.stdout as answers:
            for line in answers:
                self._answers.put((number, process, line))
        self._answers.put((number, process, None))

    def _log(self, number: int) -> Path:
        return self.logs / f"worker{number}.log"

    def _forget(self, number: int) -> int:
        process = self._processes.pop(number)
        _tell_to_end(process)
        return process.wait()

    def end(self) -> None:
        """Whoever does not save and end in time is killed; so is everyone where we are interrupted here."""
        deadline = time.monotonic() + _PATIENCE
        for process in self._processes.values():
            _tell_to_end(process)
        try:
            with suppress(subprocess.TimeoutExpired):
                for process in self._processes.values():
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()


def _tell_to_end(process: _Process) -> None:
    """By the end of its input."""
    assert process.stdin is not None  # it was asked for
    with suppress(BrokenPipeError):  # dead, with a job that it has not read
        process.stdin.close()


@contextmanager
def crew(size: int, logs: Path) -> Iterator[Crew]:
    """Nobody is left behind."""
    working = Crew(size, logs)
    try:
        yield working
    finally:
        working.end()
