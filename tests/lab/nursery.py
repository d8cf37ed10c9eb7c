"""Processes that have imported torch already, to be killed as real ones are.

Forking the process of the tests would copy its threads' locks; so the fork server of multiprocessing does it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import final

import sklearn.datasets
import sklearn.metrics  # noqa: F401  # what the first scores import
import torch._dynamo  # what optimizers import in their first step
import torch.utils.tensorboard
from rich import live, pretty, progress_bar  # noqa: F401  # what rich imports when it prints

from tests.lab import toy_run

ROOT = Path(__file__).parents[2]


@cache
def _server() -> ForkServerContext:
    """A fork server that has imported this module, in place of one that other tests have started."""
    forkserver._forkserver._stop()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@final
class Child:
    """`toy_run` with these arguments as a process; what it prints goes to the end of the log."""

    def __init__(self, *args: str, log: Path, **env: object) -> None:
        texts = {name: str(value) for name, value in env.items()}
        self._log, self._process = log, _server().Process(target=_become, args=(args, log, texts), daemon=True)
        self._process.start()

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def signal(self, number: int) -> None:
        os.kill(int(self._process.pid or 0), number)

    def join(self, timeout: float = 60.0) -> int:
        self._process.join(timeout)
        assert self.code is not None, f"it runs for more than {timeout} s: {self.output}"
        return self.code


def _become(args: tuple[str, ...], log: Path, env: dict[str, str]) -> None:
    os.setsid()
    os.environ.update(env)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    torch.set_num_threads(1)
    sys.exit(toy_run.main(*args))
