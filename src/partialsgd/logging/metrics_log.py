"""The metrics of a run, as one JSON line a step. A resumed run leaves the same file as a run that never stopped.

    {"t": 12, "level": "core", "loss": {"core": 1.23}, "lr": 0.1, "backwards": 2, "criteria": [{"c_norm": …}]}

`criteria` is present if something was measured, and `"skipped": true` if the step moved nothing. A skipped t comes
again, and its last line counts. JSON has no infinities, so they are written as "inf", "-inf" and "nan".
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
import torch.distributed as dist
from torch import Tensor

from partialsgd._util.files import open_to_change, write_bytes
from partialsgd.engine.step import Step
from partialsgd.logging.trackers import Tracker, open_tracker, require_trackers

AnyPath: TypeAlias = str | os.PathLike[str]
Record: TypeAlias = dict[str, Any]  # one line of a metrics file, with floats in place of "inf" and "nan"

_log = logging.getLogger("partialsgd")

MODEL = "model"  # the name of a model without levels
_BEGIN = b'{"t": '
_RESERVED = frozenset({"t", "level", "loss", "lr", "backwards", "skipped", "criteria"})
_TEXT_KEYS = frozenset({"level", "probe", "alerts"})  # a level may be called "nan"
_NONFINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


@final
class MetricsLog:
    """A metrics file that is open for writing. Under torch.distributed only rank 0 writes, with its own losses.

    A run that resumes from a checkpoint opens its log with `t=sgd.t`: the lines of later steps are dropped, and so is
    half a line that a kill left, so that the file ends up as if the run had never stopped. Write a step before saving
    its checkpoint. If steps may be skipped, pass `skips=sgd.state_dict()["skips"]` to keep the attempts from before the
    checkpoint. `t=0` starts over; without `t` a file that is not empty is refused. Every line is flushed at once.

    `trackers` names who is given the same numbers, as `loss/core`, `lr`, `criteria/core/c_norm`: `"tensorboard"` and
    `"wandb"`, which write into folders of that name beside the file, and `"trackio"`, which writes into its own folder.
    """

    def __init__(self, path: AnyPath, *, t: int | None = None, skips: int = 0, trackers: Sequence[str] = ()) -> None:
        self._file = None
        self._trackers: list[Tracker] = []
        if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
            return
        require_trackers(trackers)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _keep_lines_before(t, path, skips)
        self._file = open_to_change(path)
        self._file.seek(0, os.SEEK_END)
        try:
            for name in trackers:
                self._trackers.append(open_tracker(name, path, t))
        except BaseException:  # such as Weights & Biases without a login
            self.close()
            raise

    def write(self, step: Step, **numbers: float | Tensor) -> None:
        """Append a step, with numbers of your own. The host waits for the losses, in one read a step."""
        if self._file is None:
            return
        written = record(step, **numbers)
        self._file.write(to_line(written))
        self._file.flush()
        if self._trackers and not step.skipped:
            numbers_by_tag = dict(scalars(written))
            for tracker in self._trackers:
                tracker.write(step.t, numbers_by_tag)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        for tracker in self._trackers:
            tracker.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def record(step: Step, **numbers: float | Tensor) -> Record:
    """Return the record of a step, with numbers of your own. The host waits for the losses, in one read."""
    fields: Record = {"t": step.t, "level": step.level, "loss": _losses(step)}
    fields |= {"lr": step.lr, "backwards": step.backwards}
    if step.skipped:
        fields["skipped"] = True
    fields |= {name: _number(name, value) for name, value in numbers.items()}
    measured = [one.numbers() for one in step.measurements if hasattr(one, "numbers")]  # a meter may return anything
    return {**fields, "criteria": measured} if measured else fields


def read(path: AnyPath) -> list[Record]:
    """Return the records of a metrics file, without a last line that is still being written."""
    complete, _, _ = Path(path).read_bytes().rpartition(b"\n")
    lines = complete.split(b"\n") if complete else []
    return [parse(line, f"line {k} of {os.fspath(path)}") for k, line in enumerate(lines, 1)]


def to_line(written: Record) -> bytes:
    """Return a record as a line of JSON."""
    return json.dumps(_without_nonfinite(written), allow_nan=False).encode() + b"\n"


def parse(line: bytes, where: str) -> Record:
    """Return the record that a line holds; `where` names the line in the error message."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not line.startswith(_BEGIN) or not isinstance(fields["t"], int):
        raise ValueError(
            f"{where} was not written by MetricsLog: {line[:80]!r}; check that this is the right file, and if it is "
            "damaged, move it away to go on without its lines"
        )
    return dict(_with_nonfinite(fields))


def name_of(measurement: Mapping[str, Any]) -> str:
    """Return what was measured: a probe, a level, a level of a probe, or the model."""
    parts = dict.fromkeys(part for part in (measurement.get("probe"), measurement.get("level")) if part)
    return ", ".join(parts) or MODEL


def scalars(fields: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record with tags as TensorBoard has them: loss/core, lr, criteria/core/c_norm."""
    for key, value in fields.items():
        name = f"{path}/{key}" if path else key
        if isinstance(value, Mapping):
            yield from scalars(value, name)
        elif key == "criteria":
            for measurement in value:
                yield from scalars(measurement, f"{name}/{name_of(measurement)}")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and key not in ("t", "backwards"):
            yield name, value


def _keep_lines_before(t: int | None, path: Path, skips: int) -> None:
    """Keep the lines of the steps before t. They come first, so that truncating the file is atomic.

    Damaged lines among them are dropped with a warning, and the file as it was stays beside the new one.
    """
    if t and not os.path.lexists(path):
        _log.warning("%s is missing: the log begins anew, with step %s", path, f"{t:,}")
    if not os.path.lexists(path) or path.stat().st_size == 0:
        return
    if t is None:
        raise FileExistsError(
            f"{path} is not empty: open it with t=sgd.t to resume from a checkpoint, or with t=0 to start over"
        )
    kept: list[bytes] = []
    damaged: list[ValueError] = []
    is_ours = False
    with open_to_change(path) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n") and line[: len(_BEGIN)] == _BEGIN[: len(line)]:
                break  # a kill left half a line
            try:
                fields = parse(line, f"line {number} of {path}")
            except ValueError as error:
                damaged.append(error)
                continue
            is_ours = True
            is_earlier_attempt = fields["t"] == t and "skipped" in fields and skips > 0
            if fields["t"] >= t and not is_earlier_attempt:
                break
            skips -= is_earlier_attempt
            kept.append(line)
        if not damaged:
            file.truncate(sum(map(len, kept)))
            return
        file.seek(0)
        before = file.read()
    if not is_ours:
        raise damaged[0]
    copy = next(name for k in count(1) if not os.path.lexists(name := path.with_name(f"{path.name}.damaged-{k}")))
    write_bytes(copy, before)
    write_bytes(path, b"".join(kept))
    lines, others = f"{len(damaged):,} damaged lines", f"the other {len(kept):,} before step {t:,}"
    _log.warning("%s had %s, which were dropped; %s were kept, and the file as it was is %s", path, lines, others, copy)


def _losses(step: Step) -> dict[str, float]:
    """Return the losses by level, in one read from the device. A repeated level is numbered: core, core#2."""
    if not step.losses:
        return {}
    values = torch.stack([loss.reshape(()) for _, loss in step.losses]).tolist()
    names = [level or MODEL for level, _ in step.losses]
    counts = [names[: k + 1].count(name) for k, name in enumerate(names)]
    numbered = [name if count == 1 else f"{name}#{count}" for name, count in zip(names, counts, strict=True)]
    return dict(zip(numbered, values, strict=True))


def _number(name: str, value: float | Tensor) -> float:
    if name in _RESERVED:
        raise ValueError(f"{name!r} is a field that the log writes itself; give your number another name")
    if isinstance(value, (int, float)):  # a bool stays one
        return value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be one number, got {value!r}") from error


def _without_nonfinite(value: Any) -> Any:
    """Replace infinities and nan by strings."""
    if isinstance(value, Mapping):
        return {key: _without_nonfinite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nonfinite(inner) for inner in value]
    return str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value


def _with_nonfinite(value: Any) -> Any:
    """Replace the strings of `_without_nonfinite` by floats."""
    if isinstance(value, dict):
        return {key: inner if key in _TEXT_KEYS else _with_nonfinite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_nonfinite(inner) for inner in value]
    return _NONFINITE.get(value, value) if isinstance(value, str) else value
