"""Freed memory is kept, in a training of the lab too: counted in page faults, by a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = """
import resource
import torch

def faults(times=5):
    first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(12_000_000)  # larger than any block that glibc keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first

faults()
"""
KEEP = "from partialsgd._util.malloc import keep_freed_memory\nkeep_freed_memory()"
TRAIN = """
from dataclasses import replace
from partialsgd.lab.recipes.images.settings import PRESETS
from partialsgd.lab.training.loop import train
train(replace(PRESETS["digits"], epochs=1, max_steps=1, out="run"), show=False)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="another allocator")
@pytest.mark.parametrize("way", [KEEP, TRAIN], ids=["by hand", "by training"])
def test_a_tensor_takes_the_memory_that_one_before_it_has_freed(way: str, tmp_path: Path) -> None:
    code = f"{FAULTS}\nbefore = faults()\n{way}\nfaults(30)\nprint(before, faults())"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split()[-2:])
    assert before > 50  # with huge pages a tensor has few, and they are large
    assert after < before / 10
