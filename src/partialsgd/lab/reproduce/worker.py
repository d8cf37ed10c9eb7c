"""Runs, one after the other, in a process of their own: jobs come in as lines of JSON, and each is answered by one.

The process that gives the jobs holds the other end of the standard input. When that one ends, however it ends, the
present run saves its state and this process ends too: a reproduction that was killed leaves nothing behind that trains.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from queue import Queue
from typing import Any

from partialsgd.export import files
from partialsgd.lab.recipes import RECIPES
from partialsgd.lab.reproduce.same import require_same
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop
from partialsgd.lab.training.errors import Stopped, WrongCall
from partialsgd.lab.training.settings import Settings
from partialsgd.logging import records


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a training prints is none of the answers
    given: Queue[str | None] = Queue()
    threading.Thread(target=_receive, args=[given], daemon=True).start()
    while (line := given.get()) is not None:
        job = json.loads(line)
        print(json.dumps(_done(_settings(job["recipe"], job["settings"]))), file=answers, flush=True)


def work(settings: Settings) -> None:
    """Make the run, or go on with it. Numbers that leave the finite are an outcome, and are kept as one."""
    assert settings.out is not None  # a job says where its run lies
    run = Run(Path(settings.out))
    try:
        if not (run.path / "config.json").exists():
            shutil.rmtree(run.path / files.STAGE, ignore_errors=True)  # a kill before the first file
            loop.train(settings, show=False)
            return
        require_same(run.path, settings)
        _wait_for(run)
        loop.resume(run, places=settings, show=False)
    except FloatingPointError as error:
        run.write_json(records.FAILED, {"error": str(error)})


def _done(settings: Settings) -> dict[str, str]:
    """What went wrong, if something did; where, is for the log."""
    try:
        work(settings)
    except Stopped:
        sys.exit(0)
    except WrongCall as error:
        print(f"{settings.out} has failed: {error}", file=sys.stderr)
        return {"wrong call": str(error)}
    except Exception as error:
        print(f"{settings.out} has failed", file=sys.stderr)
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


def _settings(recipe: str, values: dict[str, Any]) -> Settings:
    frozen: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return RECIPES[recipe](**frozen)


def _receive(given: Queue[str | None]) -> None:
    for line in sys.stdin:
        given.put(line)
    given.put(None)  # a run in its last step takes the signal and still comes to its end
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_for(run: Run) -> None:
    """The process that trained it before may still be saving."""
    for _ in range(60):
        try:
            with run.locked():
                return
        except RuntimeError:
            time.sleep(1.0)


if __name__ == "__main__":
    main()
