"""Processes that train side by side: each has one job at a time, and says when it is done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from queue import Empty, Queue
from typing import final

from partialsgd.reproduce import worker
from partialsgd.reproduce.jobs import Job


@final
class Crew:
    """Workers that are started as they are needed, and end with us."""

    def __init__(self, size: int, logs: Path) -> None:
        self.size, self.logs = size, logs
        self.busy: dict[int, Job] = {}
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._answers: Queue[tuple[int, str]] = Queue()

    def has_room(self) -> bool:
        return len(self.busy) < self.size

    def give(self, job: Job) -> None:
        number = next(k for k in range(self.size) if k not in self.busy)
        if number not in self._processes:
            self._start(number)
        stdin = self._processes[number].stdin
        assert stdin is not None  # it was asked for
        stdin.write(json.dumps({"recipe": job.settings.recipe, "settings": asdict(job.settings)}) + "\n")
        stdin.flush()
        self.busy[number] = job

    def done(self, seconds: float) -> Job | None:
        """A job that was answered within so many seconds; what went wrong with it is raised."""
        try:
            number, answer = self._answers.get(timeout=seconds)
        except Empty:
            return None
        job = self.busy.pop(number)
        error = json.loads(answer)["error"] if answer else f"its process has ended, {self._code(number)}"
        if error:
            raise RuntimeError(f"{job.label} has failed: {error}; all that it said is in {self._log(number)}")
        return job

    def _start(self, number: int) -> None:
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

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # it was asked for
        for line in process.stdout:
            self._answers.put((number, line))
        if number in self.busy:
            self._answers.put((number, ""))

    def _log(self, number: int) -> Path:
        return self.logs / f"worker{number}.log"

    def _code(self, number: int) -> str:
        return f"exit code {self._processes[number].wait()}"

    def end(self) -> None:
        """The end of their input asks them to save and end; they have as long as a step and a write take."""
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes.values():
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@contextmanager
def crew(size: int, logs: Path) -> Iterator[Crew]:
    """Nobody is left behind."""
    working = Crew(size, logs)
    try:
        yield working
    finally:
        working.end()
