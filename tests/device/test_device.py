"""Runs the suites of the pretended device, each in a process of its own.

The device is registered for a whole process: `torch.accelerator.current_accelerator()` then names it, and accelerate,
transformers and Lightning ask that function where to put a model. Other tests of the same worker must not see it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.device import limits
from tests.device.cases import METHODS

ROOT = Path(__file__).parents[2]
SUITES = sorted(Path(__file__).parent.glob("suite_*.py"))
# The device's backward thread may still run when the interpreter ends, and would end it with an abort.
RUN = "import os, sys, pytest; code = pytest.main(sys.argv[1:]); sys.stdout.flush(); os._exit(code)"


@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.stem.removeprefix("suite_"))
def test_on_the_pretended_device(suite: Path) -> None:
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", str(suite)]
    command = [sys.executable, "-c", RUN, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-5_000:]}"


def test_every_method_has_a_limit_of_reads_and_the_page_shows_them() -> None:
    assert all(limits.limit_of(case) in (0, 1, 2) for case in METHODS)
    assert limits.LIMITS.keys() <= METHODS.keys(), "a limit of a method that is not there"
    page = limits.PAGE.read_text(encoding="utf-8")
    assert page == limits.in_place(page), "run python -m tests.device.limits"


def test_the_device_is_not_registered_here() -> None:
    assert "tests.device.pretended" not in sys.modules, "run the suites through this file"
