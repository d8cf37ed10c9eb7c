"""The real commands in fresh processes: train, kill, resume, evaluate, profile, translate, compare, export."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

PROGRAM = str(Path(sys.executable).with_name("partialsgd"))

TINY = {
    "translation": "--size 300 --valid-size 10 --test-size 4 --vocabulary 300 --layers 1 --d-model 16 --ffn 16 "
    "--heads 2 --max-tokens 300 --longest 40 --beam 2",
    "images": "--width 4 --limit 400",
}
FORMATS = {
    "translation": [("core", "safetensors"), ("core", "onnx"), ("full", "transformers")],
    "images": [("core", "safetensors")],
}
OTHERS = {
    "translation": [["translate", "killed", "--level", "core", "--beam", "1"]],
    "images": [
        ["compare", "images", "--width", "4", "--max-steps", "8", "--budget", "sum", "--out", "both"],
    ],
}
FILES = {"safetensors": "model.safetensors", "onnx": "model.onnx", "transformers": "generation_config.json"}

# A training to its end, and the same once more, which is killed between two checkpoints.
KILLED = """
import os, signal, sys
from partialsgd.lab.cli import main
from partialsgd.logging.metrics_log import MetricsLog

assert main([*sys.argv[1:], "--out", "whole"]) == 0
written = MetricsLog.write

def write(self, step, **numbers):
    written(self, step, **numbers)
    if step.t == 12:
        os.kill(os.getpid(), signal.SIGKILL)

MetricsLog.write = write
main([*sys.argv[1:], "--out", "killed"])
"""

# Several commands, one after the other; the first that fails ends it.
COMMANDS = """
import json, sys
from partialsgd.lab.cli import main
for argv in json.loads(sys.argv[1]):
    print("#", *argv)
    if code := main(argv):
        sys.exit(code)
"""


def started(folder: Path, *argv: str, said: str = "") -> subprocess.CompletedProcess[str]:
    place = {"XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    return subprocess.run(argv, cwd=folder, env=os.environ | place, input=said, capture_output=True, text=True)


def python(folder: Path, code: str, *argv: str, said: str = "") -> subprocess.CompletedProcess[str]:
    return started(folder, sys.executable, "-c", code, *argv, said=said)


@pytest.mark.parametrize("recipe", TINY)
def test_train_kill_resume_evaluate_export(tmp_path: Path, recipe: str) -> None:
    train = ["train", recipe, *TINY[recipe].split(), "--max-steps", "20", "--checkpoint-every", "5"]
    found = python(tmp_path, KILLED, *train)
    assert found.returncode == -signal.SIGKILL, found.stderr
    assert "every level on the test data" in found.stdout
    assert not (tmp_path / "killed" / "summary.json").exists()

    found = started(tmp_path, PROGRAM, "resume", "killed")
    assert found.returncode == 0, found.stderr
    assert "Continuing from step 10 of 20" in found.stderr
    whole, killed = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "killed"))
    assert all(whole[name].equal(killed[name]) for name in whole)
    lines = (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["t"] for line in lines] == list(range(20))

    used = [["evaluate", "killed"], ["evaluate", "killed", "--level", "core", "--split", "valid"]]
    used += [["profile", "killed"], *OTHERS[recipe]]
    used += [["export", "killed", "--level", level, "--format", format] for level, format in FORMATS[recipe]]
    found = python(tmp_path, COMMANDS, json.dumps(used), said="three days ago\n\nin 5 minutes\n")
    assert found.returncode == 0, found.stderr
    shown = dict(zip(map(" ".join, used), found.stdout.split("# ")[1:], strict=True))
    summary = json.loads((tmp_path / "killed" / "summary.json").read_text())
    for level, row in summary["levels"].items():
        assert f"{row['test'][summary['score']]:.4g}" in shown["evaluate killed"], level
    if recipe == "translation":
        assert shown["translate killed --level core --beam 1"].count("\n") == 1 + 3
    if recipe == "images":
        rows = json.loads((tmp_path / "both" / "compare.json").read_text())["rows"]
        assert len(rows) == 6 and all(row["updates"] >= 1 for row in rows), "three levels, jointly and alone"
    for level, format in FORMATS[recipe]:
        place = tmp_path / "killed" / "exports" / f"{level}-{format}"
        assert (place / FILES[format]).stat().st_size > 0 and "```python" in (place / "README.md").read_text()
