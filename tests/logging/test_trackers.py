"""Trackers are given the numbers of the log, by name; a name that cannot be used is refused before a file is made."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import partialsgd as ps
from partialsgd.logging import read
from tests.logging.training import alternating, made_up, steps


def test_tensorboard_is_given_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path, taken = tmp_path / "metrics.jsonl", steps(alternating(), 8)
    with ps.MetricsLog(path, trackers=("tensorboard",)) as log:
        for step in taken[:6]:
            log.write(step, accuracy=0.5)
    with ps.MetricsLog(path, t=4, trackers=("tensorboard",)) as log:  # killed, and resumed
        log.write(made_up(4, skipped=True), accuracy=0.75)
        for step in taken[4:]:
            log.write(step, accuracy=0.25)
    events = EventAccumulator(str(tmp_path / "tensorboard" / "metrics"))
    events.Reload()

    def logged(tag: str) -> dict[int, float]:
        assert len({event.step for event in events.Scalars(tag)}) == len(events.Scalars(tag))
        return {event.step: event.value for event in events.Scalars(tag)}

    lines = {line["t"]: line for line in read(path)}
    assert logged("lr") == pytest.approx(dict.fromkeys(range(8), 0.1))
    assert logged("accuracy") == {t: 0.5 if t < 4 else 0.25 for t in range(8)}
    assert logged("loss/core") == pytest.approx({t: lines[t]["loss"]["core"] for t in (1, 3, 5, 7)})
    core = {t: line["criteria"][0] for t, line in lines.items() if t % 2 and "criteria" in line}
    assert len(core) == 2
    for key in ("c_norm", "c_sim", "c_align", "alpha", "q"):
        assert logged(f"criteria/core/{key}") == pytest.approx({t: one[key] for t, one in core.items()})
    assert not any("probe" in tag or tag.endswith(("/level", "/t")) for tag in events.Tags()["scalars"])


# A run that was stopped after step 5 and resumed from its checkpoint of step 4.
TRACKED = """
import sys
from pathlib import Path
import trackio
import partialsgd as ps
from tests.logging.training import alternating, made_up, steps

path, taken = Path(sys.argv[1]), steps(alternating(), 8)
own = trackio.init("mine", embed=False, auto_log_cpu=False)  # a run of the user's own goes on
with ps.MetricsLog(path, trackers=("tensorboard", "wandb", "trackio")) as log:
    for step in taken[:6]:
        log.write(step, accuracy=0.5)
with ps.MetricsLog(path, t=4, trackers=("wandb", "trackio")) as log:
    log.write(made_up(4, skipped=True), accuracy=0.75)
    for step in taken[4:]:
        log.write(step, accuracy=0.25)
trackio.log({"mine": 1.0}, step=0)
own.finish()
"""


def test_wandb_and_trackio_are_given_the_same_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path / "home")}
    environment |= {"TRACKIO_DIR": str(tmp_path / "trackio"), "TRACKIO_PROJECT": "digits"}
    command = [sys.executable, "-c", TRACKED, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert {file.name for file in path.parent.iterdir()} == {"metrics.jsonl", "tensorboard", "wandb"}
    runs = {}
    for file in (path.parent / "wandb").glob("offline-run-*/*.wandb"):
        records = list(wandb_records(file))
        (started,) = [record.run for record in records if record.HasField("run")]
        assert started.run_group == "run/metrics"
        history = [record.history for record in records if record.HasField("history")]
        runs[started.display_name] = {one.step.num: numbers_of(one) for one in history}
    of_trackio: dict[str, dict[int, dict[str, float]]] = {}
    with closing(sqlite3.connect(tmp_path / "trackio" / "digits.db")) as stored:
        for name, t, numbers in stored.execute("select run_name, step, metrics from metrics order by step"):
            of_trackio.setdefault(name, {})[t] = json.loads(numbers)
    assert {name: {t: finite(numbers) for t, numbers in run.items()} for name, run in of_trackio.items()} == {
        name: {t: finite(numbers) for t, numbers in run.items()} for name, run in runs.items()
    }
    with closing(sqlite3.connect(tmp_path / "trackio" / "mine.db")) as stored:
        assert stored.execute("select count(*) from metrics").fetchall() == [(1,)]
    assert {name: list(logged) for name, logged in runs.items()} == {
        "run/metrics from step 0": [0, 1, 2, 3, 4, 5],
        "run/metrics from step 4": [4, 5, 6, 7],  # without the skipped attempt
    }
    lines = {line["t"]: line for line in read(path)}
    for logged, accuracy in zip((runs[name] for name in sorted(runs)), (0.5, 0.25), strict=True):
        for t, numbers in logged.items():
            (level,) = lines[t]["loss"]
            assert numbers["accuracy"] == accuracy and numbers["lr"] == 0.1
            assert numbers[f"loss/{level}"] == lines[t]["loss"][level]
            assert (f"criteria/{level}/c_norm" in numbers) == ("criteria" in lines[t])
            assert all(numbers[f"criteria/{level}/q"] == one["q"] for one in lines[t].get("criteria", ()))


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: a header of 7 bytes, and then LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, begun = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # no header fits into the rest of this block
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        begun += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(begun)
            begun = b""


def finite(numbers: dict[str, Any]) -> dict[str, float]:
    """Read what was logged; wandb adds names with an underscore, and each has its own text for infinity."""
    return {k: v for k, v in numbers.items() if isinstance(v, int | float) and math.isfinite(v) and k[0] != "_"}


def numbers_of(history: Any) -> dict[str, float]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}


@pytest.mark.parametrize(("name", "extra"), [("tensorboard", "lab"), ("wandb", "trackers"), ("trackio", "trackers")])
def test_without_its_package_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"{name} is needed: pip install .*\[{extra}\]"):
        ps.MetricsLog(tmp_path / "metrics.jsonl", trackers=(name,))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (("mlflow",), ValueError, "there is no tracker 'mlflow'; there are 'tensorboard', 'wandb', 'trackio'"),
        (("wandb", "wandb"), ValueError, "trackers has 'wandb' twice"),
        ("wandb", TypeError, r"must be a sequence of names, got 'wandb'; for one tracker use \('wandb',\)"),
    ],
)
def test_wrong_names_are_refused_before_a_file_is_made(
    tmp_path: Path, names: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ps.MetricsLog(tmp_path / "metrics.jsonl", trackers=names)
    assert not list(tmp_path.iterdir())
