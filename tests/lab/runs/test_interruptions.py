"""kill -9 at any moment or a full disk, resume, and the run is the one that never met it, to the bit."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partialsgd._util import files
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop
from partialsgd.lab.training.errors import AlreadyThere, WrongCall
from studies.deaths.torchrun import launch
from tests.lab.checks import leftovers, remains
from tests.lab.nursery import Child
from tests.lab.runs.test_two_processes import HARD, lines, pair
from tests.lab.toy import Toy

COMMON: dict[str, Any] = {"measure_every": 3, "count": 10, "epochs": 12, "checkpoint_every": 3, "seed": 5, "lr": 0.1}
RUNS: dict[str, dict[str, Any]] = {
    "alternating": {**COMMON, "norm": True},
    "with memory": {
        **COMMON,
        "method": "compose(alternating(order='criterion', every=2), compressed_gradient(keep=0.5))",
    },
    "images": {
        **{"recipe": "images", "width": 2, "limit": 100, "batch": 20, "epochs": 20},
        **{"checkpoint_every": 4, "measure_every": 5},
    },
}
STEPS, PAUSE, KILLS = 120, 0.025, 20
"""A step is stretched, so that in twenty lives the run does not come to its end."""

_WHOLE: dict[str, tuple[dict[str, Any], float]] = {}


def whole(name: str, tmp_path: Path) -> tuple[dict[str, Any], float]:
    """Return what the run leaves that is never killed, and its life in seconds; it is made once."""
    if name not in _WHOLE:
        began = time.monotonic()
        child = Child("train", json.dumps({**RUNS[name], "out": str(tmp_path / "whole")}), log=tmp_path / "whole.log")
        assert child.join() == 0, child.output
        _WHOLE[name] = remains(tmp_path / "whole"), time.monotonic() - began
    return _WHOLE[name]


def start(place: Path, settings: dict[str, Any], **env: object) -> Child:
    """Resumed, or started where there is nothing yet to resume."""
    verb, what = "train", json.dumps({**settings, "out": str(place)})
    if (place / "config.json").exists():
        verb, what = "resume", str(place)
    return Child(verb, what, log=place.with_suffix(".log"), **env)


def written(place: Path) -> int:
    """When the log was written to last."""
    metrics = place / "metrics.jsonl"
    return metrics.stat().st_mtime_ns if metrics.exists() else 0


@pytest.mark.parametrize("name", ["alternating", "with memory"])
def test_twenty_kills_at_random_moments(tmp_path: Path, name: str) -> None:
    """The moments are uniform over the life of the run, start-ups included: each life lasts from one to the next."""
    expected, seconds = whole(name, tmp_path)
    draw, place, found = random.Random(name), tmp_path / "killed", Counter[str]()
    moments = sorted(draw.uniform(0, seconds + STEPS * PAUSE) for _ in range(KILLS))
    for begin, end in zip([0.0, *moments], moments, strict=False):
        before = written(place)
        child = start(place, RUNS[name], TOY_PAUSE=PAUSE)
        time.sleep(end - begin)
        child.signal(signal.SIGKILL)
        if child.join() == 0:  # the machine is faster now than when the life was measured
            break
        assert child.code == -signal.SIGKILL, child.output
        is_at_work = written(place) != before
        found["at work" if is_at_work else "in a start"] += 1
        found["of these in a write"] += is_at_work and any(place.rglob(files.STAGE))
    print(f"{name}: killed {dict(found)}")
    assert found["at work"] >= 3
    child = start(place, RUNS[name])
    assert child.join() == 0, child.output
    assert remains(place) == expected
    assert not leftovers(place), "and nothing is left of the kills"


def test_kills_of_a_real_recipe(tmp_path: Path) -> None:
    """In turn in its start, and some time after it has gone on."""
    expected, _ = whole("images", tmp_path)
    draw, place = random.Random(0), tmp_path / "killed"
    for kill in range(8):
        before = written(place)
        child = start(place, RUNS["images"])
        assert kill % 2 == 0 or wait(lambda before=before: written(place) != before, child)
        time.sleep(draw.uniform(0, 0.2))
        child.signal(signal.SIGKILL)
        if child.join() == 0:  # a machine that is faster than one can think
            break
    assert kill > 2, child.output
    child = start(place, RUNS["images"])
    assert child.join() == 0, child.output
    assert remains(place) == expected and not leftovers(place)


@pytest.mark.parametrize("where", ["checkpoints", "best", "last", ""])
def test_kills_in_the_middle_of_a_write(tmp_path: Path, where: str) -> None:
    """A kill may leave half a checkpoint, half a family, or half of config.json or summary.json."""
    expected, _ = whole("alternating", tmp_path)
    draw, place, kills, left = random.Random(where), tmp_path / "killed", 0, 0
    stage = place / where / files.STAGE
    for life in range(8):
        if not where and life == 4:  # the second file of the run itself comes at its end
            assert start(place, RUNS["alternating"]).join() == 0
            (place / "summary.json").unlink()
        before = stamp(stage)
        child = start(place, RUNS["alternating"])
        if not writes(stage, child, before, skip=draw.randrange(3) if where else life // 4):
            break
        time.sleep(draw.choice([0, 0, 0.002]))
        child.signal(signal.SIGKILL)
        kills += child.join() == -signal.SIGKILL
        left += stamp(stage) not in (None, before)
    print(f"{where or 'run'}: {left} of {kills} kills left half a write")
    assert kills > 0 and (left > 0 or where != "checkpoints")
    child = start(place, RUNS["alternating"])
    assert child.join() == 0, child.output
    assert remains(place) == expected
    assert not leftovers(place), "also of a kill at the very end"
    if where == "checkpoints":
        assert f"a checkpoint was being written when the run ended; {stage} is skipped" in child.output


def stamp(stage: Path) -> int | None:
    """Return the time stamp of what is being written, which tells it from what a kill has left."""
    try:
        return stage.stat().st_ctime_ns
    except FileNotFoundError:
        return None


def writes(stage: Path, child: Child, before: int | None, *, skip: int) -> bool:
    """True once the process is seen to write, after some times that are let pass so that the run gets on."""
    for _ in range(skip):
        if not (wait(lambda: stamp(stage) not in (None, before), child) and wait(lambda: stamp(stage) is None, child)):
            return False
    return wait(lambda: stamp(stage) not in (None, before), child)


def wait(is_so: Callable[[], bool], child: Child) -> bool:
    """True if it came to be so before the process ended."""
    for turn in range(10_000_000):
        if is_so():
            return True
        if turn % 500 == 499 and child.code is not None:
            return False
    raise AssertionError("neither happened")


@pytest.mark.usefixtures("toy")
def test_one_process_at_a_time_and_the_lock_dies_with_it(tmp_path: Path) -> None:
    place = tmp_path / "a"
    child = start(place, {}, TOY_PAUSE=60)
    assert wait((place / "metrics.jsonl").exists, child)
    with pytest.raises(RuntimeError, match=f"another process is training {place}"):
        loop.resume(Run.open(place))
    assert child.code is None, "and the first one goes on"
    child.signal(signal.SIGKILL)
    assert child.join() == -signal.SIGKILL
    loop.resume(Run.open(place))
    assert Run.open(place).summary is not None


# A limit on the size of files refuses a write as a full disk would, without rights.
LONG: dict[str, Any] = {"epochs": 6, "measure_every": 1, "checkpoint_every": 4}
WIDE: dict[str, Any] = {"epochs": 2, "width": 256, "checkpoint_every": 4}

# What is refused, and in which run: there it is the first to become so large.
FILES = {"the log": (LONG, "metrics.jsonl"), "the weights": (WIDE, "last/model.safetensors")}
FILES["a checkpoint"] = (WIDE, "checkpoints/*.safetensors")


def cut_short(settings: dict[str, Any], place: Path) -> dict[str, Any]:
    """A run that has its last steps before it, and what it should leave."""
    child = Child("train", json.dumps({**settings, "out": str(place)}), log=place.with_suffix(".log"))
    assert child.join() == 0, child.output
    expected = remains(place)
    (place / "summary.json").unlink()
    checkpoints.paths(place / "checkpoints")[-1].unlink()
    return expected


@pytest.mark.parametrize("what", FILES)
def test_it_stops_with_a_clear_word_and_goes_on_when_there_is_room(tmp_path: Path, what: str) -> None:
    settings, pattern = FILES[what]
    place = tmp_path / "run"
    expected = cut_short(settings, place)
    limit = max(path.stat().st_size for path in place.glob(pattern)) - 40
    good = checkpoints.paths(place / "checkpoints")[-1]
    before = good.read_bytes()

    child = Child("resume", str(place), log=tmp_path / "full.log", TOY_FILE_SIZE=limit)
    assert child.join() == 1
    error = child.output.strip().splitlines()[-1]
    assert error.startswith(f"OSError: {place} could not be written ([Errno 27] File too large")
    assert error.endswith(f"partialsgd resume {place} (it continues from the last checkpoint, which is complete)")
    assert checkpoints.paths(place / "checkpoints")[-1] == good and good.read_bytes() == before
    assert not leftovers(place)
    assert ((place / "metrics.jsonl").stat().st_size == limit) == (what == "the log"), "half a line of it"

    child = Child("resume", str(place), log=tmp_path / "room.log")
    assert child.join() == 0, child.output
    assert remains(place) == expected and not leftovers(place)


def test_a_run_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    place, settings = tmp_path / "run", json.dumps({**WIDE, "out": str(tmp_path / "run")})
    child = Child("train", settings, log=tmp_path / "full.log", TOY_FILE_SIZE=4000)
    assert child.join() == 1 and "Free some disk space" in child.output
    assert not (place / "checkpoints").exists() and not leftovers(place)
    child = Child("resume", str(place), log=tmp_path / "room.log")
    assert child.join() == 0, child.output
    assert remains(place) == cut_short(WIDE, tmp_path / "whole")


def test_a_rank_that_is_killed_costs_the_steps_since_the_last_checkpoint_and_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = pair("train", json.dumps({**HARD, "out": str(tmp_path / "whole")}), tmp_path / "log")
    assert [child.join() for child in alone] == [0, 0], alone[0].output
    place, draw = tmp_path / "run", random.Random(time.time())
    until = draw.randint(1, 30)  # a checkpoint is written between the third and the fourth
    monkeypatch.setenv("TOY_PAUSE", "0.02")
    arguments = ["train", json.dumps({**HARD, "out": str(place)})]
    moments = [lambda seconds: lines(place) >= until]
    ended = launch("tests.lab.toy_run", arguments, log=tmp_path / "torchrun", kills=moments, random=draw)
    assert ended.code == 0 and ended.kills == 1, f"killed when {until} steps were logged: {ended.output}"
    assert "Continuing from step" in ended.output or until <= 3, ended.output
    assert remains(place) == remains(tmp_path / "whole") and not leftovers(place)


@pytest.mark.usefixtures("toy")
def test_only_a_launch_that_restarts_continues_a_run_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Toy(out=str(tmp_path / "run"))
    run = loop.train(settings, show=False)
    expected = remains(run.path)
    monkeypatch.setitem(os.environ, "TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(AlreadyThere, match="exists"):
        loop.train(settings, show=False)  # finished, and not by this launch
    with pytest.raises(WrongCall, match="name the run by --out"):
        loop.train(Toy(), show=False)
    with monkeypatch.context() as patch, pytest.raises(WrongCall, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        patch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        loop.train(settings, show=False)
    monkeypatch.setitem(os.environ, "TORCHELASTIC_RESTART_COUNT", "1")
    assert loop.train(settings, show=False).path == run.path and remains(run.path) == expected
    (run.path / "summary.json").unlink()
    with pytest.raises(AlreadyThere, match="exists"):
        loop.train(Toy(out=str(run.path), lr=0.02), show=False)  # another training
    assert Run.open(run.path).summary is None
    monkeypatch.setitem(os.environ, "TORCHELASTIC_RESTART_COUNT", "0")
    assert loop.train(settings, show=False).summary is not None and remains(run.path) == expected
