"""Two processes train as one that accumulates twice as much; they stop together, and go on to the bit."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from partialsgd import logging as report
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop
from partialsgd.lab.training.errors import WrongCall
from tests.lab.checks import leftovers, remains
from tests.lab.nursery import ROOT, Child
from tests.lab.toy import Toy
from tests.lab.toy_run import STOPPED

DRY: dict[str, Any] = {"dropout": 0.0, "count": 8}
HARD: dict[str, Any] = {"norm": True, "count": 8, "epochs": 10, "checkpoint_every": 3, "measure_every": 3}
"""With dropout, which each process draws for itself, BatchNorm, whose statistics are the first one's, and a meter."""

LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--nproc_per_node", "2", "--master_port"],
    "accelerate": [
        *("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port"),
    ],
}


def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def launch(launcher: str, *args: str, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", *LAUNCHERS[launcher], str(port()), "-m", "tests.lab.toy_run", *args]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **env}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)


def pair(verb: str, what: str, log: Path, **env: object) -> tuple[Child, Child]:
    """Two processes as a launcher would start them, but without its start."""
    told = {**env, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port()}
    first, second = (
        Child(verb, what, log=log.with_suffix(f".{rank}"), RANK=rank, LOCAL_RANK=rank, **told) for rank in (0, 1)
    )
    return first, second


@pytest.mark.usefixtures("toy")
def test_launched_stopped_and_launched_again_they_are_one_process_that_accumulates(tmp_path: Path) -> None:
    """Started by torchrun, which passes Ctrl-C on to both, and resumed by accelerate."""
    place = tmp_path / "two"
    process = launch("torchrun", "train", json.dumps({**DRY, "out": str(place)}), TOY_PAUSE="0.5")
    while lines(place) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    (said,) = {line for line in err.splitlines() if line.startswith("stopped after step")}
    assert err.count("Stopping after this step") == 1 and f"partialsgd resume {place}" in said
    found = checkpoints.latest(place / "checkpoints")
    assert found is not None and found[0] == lines(place) < 8 and f"step {found[0]};" in said

    process = launch("accelerate", "resume", str(place))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.count("every level on the test data") == 1 and err.count("The run is in") == 1, "one of them speaks"
    assert err.count("epoch 2, step 8  valid: core") == 1 and "Warning" not in err
    require_same(place, loop.train(Toy(**DRY, accumulate=2, out=str(tmp_path / "one"))))


def require_same(two: Path, one: Run) -> None:
    """To rounding."""
    ours, alone = (checkpoints.latest(place / "checkpoints") for place in (two, one.path))
    assert ours is not None and alone is not None and ours[0] == alone[0] == 8
    for name, tensor in alone[1]["model"]["tensors"].items():
        torch.testing.assert_close(ours[1]["model"]["tensors"][name], tensor, rtol=1e-5, atol=1e-6)
    for line, expected in zip(report.read(two / "metrics.jsonl"), report.read(one.metrics), strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-5), "the mean over both"
        same = ("t", "level", "lr", "epoch", "points")
        assert [line[name] for name in same] == [expected[name] for name in same]
    summary = Run.open(two).summary
    assert summary is not None and one.summary is not None
    for level in ("core", "full"):
        assert summary["levels"][level]["flops"] == one.summary["levels"][level]["flops"]
    assert not leftovers(two)


def lines(place: Path) -> int:
    metrics = place / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what two processes leave that were never stopped."""
    place = tmp_path_factory.mktemp("whole")
    first, second = pair("train", json.dumps({**HARD, "out": str(place / "run")}), place / "log")
    assert (first.join(), second.join()) == (0, 0), first.output + second.output
    assert second.output == "", "the second is quiet"
    found = checkpoints.latest(place / "run" / "checkpoints")
    assert found is not None and len({seed(each["cpu"]) for each in found[1]["random"]}) == 2, "each draws its own"
    return remains(place / "run")


def seed(state: torch.Tensor) -> int:
    generator = torch.Generator()
    generator.set_state(state)
    return generator.initial_seed()


@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_is_asked_to_stop_both_do_at_one_step_and_go_on_to_the_bit(
    tmp_path: Path, whole: dict[str, Any], rank: int
) -> None:
    place = tmp_path / "run"
    children = pair("train", json.dumps({**HARD, "out": str(place)}), tmp_path / "log", TOY_PAUSE=0.05)
    while lines(place) < 2:
        assert children[0].code is None, children[0].output
    children[rank].signal(signal.SIGTERM)
    assert [child.join() for child in children] == [STOPPED, STOPPED]
    said = [[line for line in child.output.splitlines() if line.startswith("stopped after")] for child in children]
    assert said[0] == said[1] != []
    children = pair("resume", str(place), tmp_path / "log")
    assert [child.join() for child in children] == [0, 0], children[0].output + children[1].output
    assert ["Continuing from step" in child.output for child in children] == [True, False]
    assert remains(place) == whole


def test_both_killed_again_and_again_go_on_to_the_bit(tmp_path: Path, whole: dict[str, Any]) -> None:
    """Not at one moment: the second a little after the first, or before it."""
    place, draw, progress = tmp_path / "run", random.Random(0), list[int]()
    for patience in (60, 0.5, 60, 60, 0.5, 60):  # the short ones end on a busy machine before the first step
        verb, what = ("resume", str(place)) if (place / "config.json").exists() else ("train", "")
        settings = json.dumps({**HARD, "out": str(place)})
        children = pair(verb, what or settings, tmp_path / "log", TOY_PAUSE=0.02)
        until, begun = lines(place) + draw.randint(1, 7), time.monotonic()  # a checkpoint comes after three
        while lines(place) < until and time.monotonic() - begun < patience:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.05))
        for child in draw.sample(children, 2):
            child.signal(signal.SIGKILL)
            time.sleep(draw.choice([0, 0.01]))
        assert all(child.join() in (-signal.SIGKILL, 1) for child in children)
        progress.append(lines(place))
    print(f"two processes: lines after each kill {progress}")
    assert progress[-1] > 3 and not (place / "summary.json").exists()
    first, second = pair("resume", str(place), tmp_path / "log")
    assert (first.join(), second.join()) == (0, 0), first.output + second.output
    assert remains(place) == whole and not leftovers(place)


def test_when_one_is_gone_the_other_does_not_wait_forever(tmp_path: Path) -> None:
    place = tmp_path / "run"
    first, second = pair("train", json.dumps({**HARD, "out": str(place)}), tmp_path / "log", TOY_PAUSE=0.1)
    while lines(place) < 2:
        assert first.code is None, first.output
    second.signal(signal.SIGKILL)
    assert second.join() == -signal.SIGKILL and first.join(timeout=30) == 1


@pytest.mark.usefixtures("toy")
def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "run"
    first, second = pair("train", json.dumps({**HARD, "epochs": 1, "out": str(place)}), tmp_path / "log")
    assert (first.join(), second.join()) == (0, 0), first.output + second.output
    (place / "summary.json").unlink()
    with pytest.raises(
        ValueError, match="the run was saved by 2 processes, and this is a launch of 1; resume with the same"
    ):
        loop.resume(Run.open(place))


def test_what_is_wrong_ends_both(tmp_path: Path) -> None:
    """The first finds that the place is taken; the second must not wait for it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").touch()
    first, second = pair("train", json.dumps({**DRY, "out": str(tmp_path / "run")}), tmp_path / "log")
    assert (first.join(timeout=30), second.join(timeout=30)) == (1, 1)
    assert "exists (it is not empty); give another --out" in first.output


def test_a_nan_on_one_of_them_stops_both_with_its_step(tmp_path: Path) -> None:
    settings = json.dumps({**DRY, "nan_at": 5, "out": str(tmp_path / "run")})  # the third step, on the second rank
    first, second = pair("train", settings, tmp_path / "log")
    assert (first.join(), second.join()) == (1, 1)
    for child in (first, second):
        assert (
            "FloatingPointError: the loss is NaN or infinite at step t = 2, level 'full'. What to try" in child.output
        )


SHARDED: dict[str, Any] = {**DRY, "shard": True, "checkpoint_every": 3, "measure_every": 3}


@pytest.mark.usefixtures("toy")
def test_two_processes_with_a_part_of_the_network_each_are_one_process(tmp_path: Path) -> None:
    """Stopped on the way and resumed, to the bit of a run that was not; and to rounding one process."""
    place, other = tmp_path / "run", tmp_path / "straight"
    children = pair("train", json.dumps({**SHARDED, "out": str(place)}), tmp_path / "log", TOY_PAUSE=0.3)
    while lines(place) < 2:
        assert children[0].code is None, children[0].output
    children[0].signal(signal.SIGTERM)
    assert [child.join() for child in children] == [STOPPED, STOPPED], children[0].output + children[1].output
    children = pair("resume", str(place), tmp_path / "log")
    assert [child.join() for child in children] == [0, 0], children[0].output + children[1].output
    children = pair("train", json.dumps({**SHARDED, "out": str(other)}), tmp_path / "log")
    assert [child.join() for child in children] == [0, 0], children[0].output + children[1].output
    assert remains(place) == remains(other), "stopping changed something"
    alone = {**SHARDED, "shard": False}
    require_same(place, loop.train(Toy(**alone, accumulate=2, out=str(tmp_path / "one"))))


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("accelerate", marks=pytest.mark.slow)])
def test_sharding_is_started_by_a_launcher(tmp_path: Path, launcher: str) -> None:
    place = tmp_path / "run"
    process = launch(launcher, "train", json.dumps({**SHARDED, "out": str(place)}))
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert Run.open(place).summary is not None and "Warning" not in err


@pytest.mark.usefixtures("toy")
def test_sharding_is_refused_where_it_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="several processes, and this is one alone"):
        loop.train(Toy(**SHARDED, out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()
    first, second = pair(
        "train", json.dumps({**SHARDED, "precision": "bf16", "out": str(tmp_path / "b")}), tmp_path / "l"
    )
    assert first.join() != 0 and second.join() != 0
    assert 'shard trains with precision "fp32"' in first.output and not (tmp_path / "b").exists()
