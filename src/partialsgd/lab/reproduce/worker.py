"""A worker process: it reads jobs as lines of JSON from its standard input, and answers each with one line.

The process that gives the jobs holds the other end of that pipe. When it ends, even by a kill, the current run saves
its state and the worker ends too, so that nothing goes on training unattended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from queue import Queue
from typing import Any

from partialsgd.lab.reproduce.worker_pool import function_of
from partialsgd.lab.training.errors import Stopped, WrongCall


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a training prints goes to the log
    lines: Queue[str | None] = Queue()
    threading.Thread(target=_receive, args=[lines], daemon=True).start()
    while (line := lines.get()) is not None:
        job = json.loads(line)
        print(json.dumps(work(job["label"], job["call"], job["arguments"])), file=answers, flush=True)


def work(label: str, call: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call `module:function` and return its result or its error; the traceback goes to the log."""
    try:
        return {"result": function_of(call)(**arguments)}
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
