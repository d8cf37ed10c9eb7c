"""What must be the same of two runs, to the bit: everything that is left of them, but for the time they took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from partialsgd.export import files
from studies.assault.targets import fingerprint


def remains(run: Path) -> dict[str, Any]:
    found = fingerprint(run)
    assert found, f"{run} has no checkpoint"
    return found


def leftovers(run: Path) -> list[str]:
    """What a kill has left and nobody has removed."""
    known = {"config.json", "metrics.jsonl", "summary.json", ".lock", "inputs.json", "tokenizer.json"}
    known |= {files.WEIGHTS, "best", "last", "checkpoints"}
    found = (path for path in run.rglob("*") if path.name not in known)
    return [
        str(path.relative_to(run))
        for path in found
        if path.parent.name != "checkpoints" or path.suffix != ".safetensors"
    ]
