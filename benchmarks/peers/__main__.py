"""`python -m benchmarks.peers FOLDER`: make an environment with the peers in the folder, if it is not there, and race.

whittle 0.6.0 requires litgpt 0.5.12 and transformers < 4.54, which do not go with the torch of this project. It is
installed without its requirements, and only its sliced `Linear`, which needs torch alone, is used. Torch-Pruning 1.6.1
is installed without its requirements too; it needs torch and numpy.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIRED = ("torch", "numpy", "safetensors", "rich")
PEERS = ("whittle==0.6.0", "torch-pruning==1.6.1")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the environment is, or is to be made")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    python = environment(options.folder)
    command = [str(python), "-m", "benchmarks.peers.race", f"--rounds={options.rounds}", f"--threads={options.threads}"]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    raise SystemExit(subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=False).returncode)


def environment(folder: Path) -> Path:
    """Return the environment's Python; it is made, with the versions of constraints.txt, if it is not there."""
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if (folder / "complete").exists():
        return python
    venv.create(folder, with_pip=True, clear=False)
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    index = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
    subprocess.run([python, "-m", "pip", "install", *constraints, *index, *REQUIRED], check=True)
    subprocess.run([python, "-m", "pip", "install", "hatchling", "setuptools", "wheel"], check=True)
    subprocess.run([python, "-m", "pip", "install", "--no-deps", "--no-build-isolation", *PEERS], check=True)
    (folder / "complete").touch()
    return python


if __name__ == "__main__":
    main()
