"""What must be the same of two runs, to the bit: everything that is left of them, but for the time they took."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from partialsgd.export import files
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.runs.checkpoints import pack


def remains(run: Path) -> dict[str, Any]:
    """By what it is, so that a difference says where. Weights, optimizers, methods and generators as their sha256."""
    found = checkpoints.latest(run / "checkpoints")
    assert found is not None, f"{run} has no checkpoint"
    position, state = found
    del state["seconds"], state["wall"]
    hashes = {f"state {name}": _hashed(value) for name, value in state.items()}
    weights = {name: _sha256(run / name / files.WEIGHTS) for name in ("best", "last")}
    return {"position": position, "metrics": (run / "metrics.jsonl").read_text(), **hashes, **weights, **_summary(run)}


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


def _hashed(value: Any) -> str:
    said, tensors = pack(value)
    return files.digest({"said": said}, tensors)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _summary(run: Path) -> dict[str, Any]:
    path = run / "summary.json"
    if not path.exists():
        return {}
    summary = json.loads(path.read_text())
    del summary["seconds"], summary["wall"]
    for level in summary["levels"].values():
        del level["latency"]
    return {"summary": summary}
