"""Processes that work on jobs side by side, one job at a time each; as a program, one of these processes.

A worker reads jobs as lines of JSON from its standard input, and answers each with one line. The process that gives the
jobs holds the other end of that pipe. When it ends, even by a kill, the current run saves its state and the worker ends
too, so that nothing goes on training unattended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Protocol, TypeAlias, final

from partialsgd._util import files
from partialsgd.lab.training.errors import Stopped, WrongCall

_Process: TypeAlias = "subprocess.Popen[str]"

_PATIENCE = 120.0
"""Seconds in which a worker that is told to end may finish a step, evaluate and save."""


class Job(Protocol):
    """A call that a worker makes. Done again, it goes on where it stopped."""

    @property
    def label(self) -> str: ...

    @property
    def call(self) -> str:
        """The function, as `package.module:function`."""

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Its keyword arguments, which JSON can hold."""


Outcome: TypeAlias = tuple[Job, Any]
"""A job and its result, or the exception that it ended with."""


@final
class WorkerPool:
    """Workers that start when they are needed and end with this process."""

    def __init__(self, size: int, logs: Path, module: str = __name__) -> None:
        self.size, self.logs, self.module = size, logs, module
        self.busy: dict[int, Job] = {}
        self._processes: dict[int, _Process] = {}
        self._answers: Queue[tuple[int, _Process, str | None]] = Queue()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        """Tell all workers to end. Those that do not in time are killed, and all are if we are interrupted here."""
        deadline = time.monotonic() + _PATIENCE
        for process in self._processes.values():
            _close_input(process)
        try:
            with suppress(subprocess.TimeoutExpired):
                for process in self._processes.values():
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()

    def start(self, job: Job) -> None:
        number = next(k for k in range(self.size) if k not in self.busy)
        if number in self._processes and self._processes[number].poll() is not None:
            self._remove(number)
        process = self._processes.get(number) or self._launch(number)
        self.busy[number] = job
        assert process.stdin is not None  # it is a pipe
        with suppress(BrokenPipeError):  # the worker died; the end of its answers will say so
            message = {"label": job.label, "call": job.call, "arguments": job.arguments}
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()

    def wait(self, seconds: float) -> Outcome | None:
        """A job that ended within so many seconds."""
        try:
            number, process, answer = self._answers.get(timeout=seconds)
        except Empty:
            return None
        if process is not self._processes.get(number):
            return None  # the end of a worker that was replaced
        job = self.busy.pop(number, None)
        result = self._result(number, answer)
        return None if job is None else (job, result)  # a worker may die idle

    def _result(self, number: int, answer: str | None) -> Any:
        """The result in an answer, or its error, after which the next job gets a new process."""
        message = json.loads(answer) if answer else {"error": "its process has ended"}
        if "result" in message:
            return message["result"]
        code = self._remove(number)
        if "wrong call" in message:
            return WrongCall(message["wrong call"])
        exit_code = "" if answer else f", exit code {code}"
        return RuntimeError(f"{message['error']}{exit_code}; its output is in {self._log(number)}")

    def _launch(self, number: int) -> _Process:
        self.logs.mkdir(parents=True, exist_ok=True)
        threads = {"OMP_NUM_THREADS": "1"} if self.size > 1 else {}
        with files.open_to_change(self._log(number)) as log:
            log.seek(0, os.SEEK_END)
            process = self._processes[number] = subprocess.Popen(
                [sys.executable, "-m", self.module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **threads},
                start_new_session=True,  # Ctrl-C reaches this process only, which tells the workers
            )
        threading.Thread(target=self._listen, args=[number, process], daemon=True).start()
        return process

    def _listen(self, number: int, process: _Process) -> None:
        assert process.stdout is not None  # it is a pipe
        with process.stdout as answers:
            for line in answers:
                self._answers.put((number, process, line))
        self._answers.put((number, process, None))

    def _log(self, number: int) -> Path:
        return self.logs / f"worker{number}.log"

    def _remove(self, number: int) -> int:
        process = self._processes.pop(number)
        _close_input(process)
        return process.wait()


def _close_input(process: _Process) -> None:
    assert process.stdin is not None  # it is a pipe
    with suppress(BrokenPipeError):  # the worker died with a job that it has not read
        process.stdin.close()


def main() -> None:
    """Work on the jobs of the standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a training prints goes to the log
    lines: Queue[str | None] = Queue()
    threading.Thread(target=_receive, args=[lines], daemon=True).start()
    while (line := lines.get()) is not None:
        print(json.dumps(work(**json.loads(line))), file=answers, flush=True)


def work(label: str, call: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call `module:function` and return its result or its error; the traceback goes to the log."""
    module, _, name = call.partition(":")
    try:
        return {"result": getattr(import_module(module), name)(**arguments)}
    except Stopped:
        sys.exit(0)
    except WrongCall as error:
        print(f"{label} failed: {error}", file=sys.stderr)
        return {"wrong call": str(error)}
    except Exception as error:
        print(f"{label} failed", file=sys.stderr)
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def _receive(lines: Queue[str | None]) -> None:
    for line in sys.stdin:
        lines.put(line)
    lines.put(None)  # a run in its last step catches the signal and still finishes
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
