"""t, level, f, γ_t, criteria: what a run says of each step, and how a line of JSON says it.

    {"t": 12, "level": "core", "loss": {"core": 1.23}, "lr": 0.1, "backwards": 2, "criteria": [{"c_norm": …}]}

`criteria` is there when something was measured, `"skipped": true` when nothing moved: the same t comes again,
and the last line of a t is the one that counts. JSON has no infinities: they are written "inf", "-inf" and "nan".
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from partialsgd.engine.step import Step

Record: TypeAlias = dict[str, Any]
"""One line, with floats where it says "inf" or "nan"."""

BEGIN = b'{"t": '
VALID = "valid/"
"""What the names of validation numbers begin with: valid/core/loss."""
MODEL = "model"
"""The name of a network without levels."""
FAILED = "failed.json"
"""The file in a run whose numbers left the finite: it is at its end, without a score."""

_OURS = frozenset({"t", "level", "loss", "lr", "backwards", "skipped", "criteria"})
_WORDS = frozenset({"level", "probe", "alerts"})  # a level may be called "nan"
_SPELLED = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def record(step: Step, **numbers: float | Tensor) -> Record:
    """What a step did, and numbers of your own. The losses are read from the device, so the host waits for them."""
    found: Record = {
        "t": step.t,
        "level": step.level,
        "loss": _losses(step),
        "lr": step.lr,
        "backwards": step.backwards,
    }
    if step.skipped:
        found["skipped"] = True
    found |= {name: _number(name, value) for name, value in numbers.items()}
    measured = [one.numbers() for one in step.measurements if hasattr(one, "numbers")]  # a meter may give anything
    return {**found, "criteria": measured} if measured else found


def read(path: str | os.PathLike[str]) -> list[Record]:
    """The records of a metrics file; a last line that is still being written is left out."""
    whole, _, _ = Path(path).read_bytes().rpartition(b"\n")
    return [parse(line, f"line {k} of {os.fspath(path)}") for k, line in enumerate(whole.split(b"\n"), 1) if whole]


def load(file: Path) -> dict[str, Any]:
    """What is in config.json, summary.json or another file of a run."""
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{file} cannot be read ({error}); it is damaged, or still being copied: bring it back, or remove the run "
            "and train it again"
        ) from error
    if not isinstance(said, dict):
        raise ValueError(f"{file} is not of a run: it holds {type(said).__name__}, and a JSON object was expected")
    return said


def line(found: Record) -> bytes:
    return json.dumps(_spelled(found), allow_nan=False).encode() + b"\n"


def parse(text: bytes, where: str) -> Record:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not text.startswith(BEGIN):
        raise ValueError(f"{where} is none that MetricsLog wrote: {text[:80]!r}; is this the right file?")
    return dict(_unspelled(found))


def name_of(measured: Mapping[str, Any]) -> str:
    """What a measurement is of: a probe, a level, a level of a probe, or the model."""
    parts = dict.fromkeys(part for part in (measured.get("probe"), measured.get("level")) if part)
    return ", ".join(parts) or MODEL


def evaluation(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """What a step says of the validation data, by level; one may have a slash in its name: valid/1/4/loss."""
    levels: dict[str, dict[str, float]] = {}
    for key, value in found.items():
        if key.startswith(VALID):
            level, _, name = key.removeprefix(VALID).rpartition("/")
            levels.setdefault(level, {})[name] = float(value)
    return levels


def _losses(step: Step) -> dict[str, float]:
    """By level, in one read from the device. A name that comes again is counted: core, core#2."""
    if not step.losses:
        return {}
    values = torch.stack([loss.reshape(()) for _, loss in step.losses]).tolist()
    names = [level or MODEL for level, _ in step.losses]
    counts = [names[: k + 1].count(name) for k, name in enumerate(names)]
    return {
        name if count == 1 else f"{name}#{count}": value
        for name, count, value in zip(names, counts, values, strict=True)
    }


def _number(name: str, value: float | Tensor) -> float:
    if name in _OURS:
        raise ValueError(f"{name!r} is what the log itself says of a step; give your number another name")
    if isinstance(value, (int, float)):  # a bool stays one
        return value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be one number, got {value!r}") from error


def _spelled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _spelled(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spelled(inner) for inner in value]
    return str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value


def _unspelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: inner if key in _WORDS else _unspelled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_unspelled(inner) for inner in value]
    return _SPELLED.get(value, value) if isinstance(value, str) else value
