"""Processes that have imported torch already: one for each line that is asked for, to be killed as real ones are.

Forking the process of the tests would copy its threads' locks; so a process without threads does it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, final

ROOT = Path(__file__).parents[2]


@final
class Child:
    """One process. It is the nursery's child, so the nursery is asked how it ended."""

    def __init__(self, nursery: Nursery, pid: int, log: Path) -> None:
        self._nursery, self.pid, self._log, self._code = nursery, pid, log, None

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self._code is None:
            self._code = self._nursery.ask({"wait": self.pid})
        return self._code

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)  # its number is its own until the nursery has been asked

    def join(self, timeout: float = 60.0) -> int:
        end = time.monotonic() + timeout
        while (code := self.code) is None:
            assert time.monotonic() < end, f"it runs for more than {timeout} s: {self.output}"
            time.sleep(0.002)
        return code


@final
class Nursery:
    def __enter__(self) -> Nursery:
        command = [sys.executable, "-m", "tests.lab.nursery"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, text=True)
        assert self.ask({}) == "ready"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.kill()  # torch takes seconds to leave by itself
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def start(self, *args: str, log: Path, **env: object) -> Child:
        """`toy_run` with these arguments; what it prints goes to the end of the log."""
        wanted = {"args": args, "log": str(log), "env": {name: str(value) for name, value in env.items()}}
        return Child(self, self.ask(wanted), log)

    def ask(self, wanted: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def serve() -> None:
    import sklearn.datasets
    import sklearn.metrics  # noqa: F401  # what the first scores import
    import torch._dynamo  # what optimizers import in their first step
    import torch.utils.tensorboard
    from rich import live, pretty, progress_bar  # noqa: F401  # what rich imports when it prints

    from tests.lab import toy_run

    torch.set_num_threads(1)
    for line in sys.stdin:
        wanted = json.loads(line)
        if "wait" in wanted:
            pid, status = os.waitpid(wanted["wait"], os.WNOHANG)
            answer: Any = os.waitstatus_to_exitcode(status) if pid else None
        elif "args" in wanted:
            answer = os.fork()
            if answer == 0:
                _become(toy_run.main, **wanted)
        else:
            answer = "ready"
        print(json.dumps(answer), flush=True)


def _become(main: Any, args: list[str], log: str, env: dict[str, str]) -> None:
    import traceback

    code = 1
    try:
        os.setsid()
        os.environ.update(env)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in (1, 2):
            os.dup2(file, number)
        code = main(*args)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
