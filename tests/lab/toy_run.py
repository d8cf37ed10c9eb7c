"""`python -m tests.lab.toy_run train '{"out": "runs/a"}'`, or `resume runs/a`: the loop as a process."""

from __future__ import annotations

import json
import os
import resource
import sys

from partialsgd.lab.recipes import RECIPES
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop
from tests.lab import toy

STOPPED = 3
"""The exit code of a run that was asked to stop, and has saved."""


def main(verb: str, what: str) -> int:
    toy.register()
    toy.PAUSE = float(os.environ.get("TOY_PAUSE", 0))
    if limit := int(os.environ.get("TOY_FILE_SIZE", 0)):  # a disk with no room for a file that is larger
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        if verb == "train":
            settings = json.loads(what)
            loop.train(RECIPES[settings.pop("recipe", "toy")](**settings))
        else:
            loop.resume(Run.open(what))
    except loop.Stopped as stopped:
        print(stopped, file=sys.stderr)
        return STOPPED
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
