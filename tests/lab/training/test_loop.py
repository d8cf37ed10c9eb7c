"""The loop against its definition, and what it leaves when it ends, is stopped, or fails."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import partialsgd as ps
from partialsgd import logging as report
from partialsgd._util import files, tensor_files
from partialsgd.lab.runs import checkpoints, use_run
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.method_text import parse_method
from tests.lab import toy
from tests.lab.checks import leftovers, remains, steps_by_hand
from tests.lab.toy import Toy, ToyBatches, ToyTask, at_batch, stop, trained

pytestmark = pytest.mark.usefixtures("toy")


def weights(run: Run) -> dict[str, torch.Tensor]:
    found = checkpoints.latest(run.checkpoints)
    assert found is not None
    tensors: dict[str, torch.Tensor] = found[1]["model"]["tensors"]
    return tensors


@pytest.mark.parametrize(
    "method", ["alternating(order='criterion', every=2)", "slimmable", "compose(alternating, compressed_gradient)"]
)
def test_it_is_algorithm_1_over_the_batches(tmp_path: Path, method: str) -> None:
    settings: dict[str, Any] = {"method": method, "norm": True, "seed": 3}
    found = weights(trained(tmp_path / "a", **settings))
    task = toy.build(Toy(**settings))
    torch.manual_seed(3)
    steps_by_hand(task, parse_method(method), 14, lr=0.01, seed=3)
    expected = task.network.model.state_dict()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)  # the mean is taken in another order


def test_a_method_is_bound_once_so_its_hooks_are_registered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binds = []
    bind = ps.Method.bind

    def counted(self: ps.Method, model: torch.nn.Module) -> ps.Method:
        binds.append(self.build is not None)
        return bind(self, model)

    monkeypatch.setattr(ps.Method, "bind", counted)
    loop.train(Toy(out=str(tmp_path / "a"), max_steps=2), show=False)
    assert sum(binds) == 1


def test_a_run_leaves_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = loop.train(Toy(out=str(tmp_path / "a"), keep=2))
    assert not leftovers(run.path)
    assert {file.name for file in run.path.iterdir()} == {
        *("config.json", "metrics.jsonl", "checkpoints", "best", "last", "summary.json", ".lock")
    }
    assert [int(path.stem) for path in checkpoints.paths(run.checkpoints)] == [12, 14]
    assert run.summary is not None and run.summary["steps"] == 14
    assert run.summary["levels"]["core"]["updates"] == run.summary["levels"]["full"]["updates"] == 7
    out, err = capsys.readouterr()
    assert "toy: every level on the test data" in out and "said: nothing more" in out
    assert f"The run is in {run.path}" in err
    assert f"Next:\n  partialsgd report {run.path} --open\n  partialsgd export {run.path} --level core\n" in err
    lines = report.read(run.metrics)
    assert [line["t"] for line in lines] == list(range(14))
    assert [line["level"] for line in lines] == ["full", "core"] * 7
    task = toy.build(Toy())
    assert [line["lr"] for line in lines] == pytest.approx([0.01 * task.learning_rate(t, 14) for t in range(14)])
    assert [line["points"] for line in lines] == [4, 5, 4, 5, 4, 5, 4] * 2
    assert [line["epoch"] for line in lines if "valid/core/loss" in line] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("options", "steps", "evaluated"),
    [
        ({"epochs": 3, "evaluate_every": 2}, 21, [14, 21]),
        ({"max_steps": 10}, 10, [7, 10]),
        ({"max_steps": 100}, 14, [7, 14]),
        ({"accumulate": 3, "epochs": 3}, 9, [3, 6, 9]),
    ],
)
def test_where_it_ends_and_where_it_looks(tmp_path: Path, options: Any, steps: int, evaluated: list[int]) -> None:
    run = trained(tmp_path / "a", **options)
    lines = report.read(run.metrics)
    assert len(lines) == steps
    assert [line["t"] + 1 for line in lines if "valid/full/loss" in line] == evaluated
    found = checkpoints.latest(run.checkpoints)
    assert found is not None and found[0] == steps


def test_what_a_kill_at_the_very_end_left_is_removed_by_a_resume_without_steps(tmp_path: Path) -> None:
    run = trained(tmp_path / "a")
    before, stage = remains(run.path), run.checkpoints / files.STAGE
    stage.mkdir()
    stage.joinpath("0000000009.safetensors").write_bytes(b"half")
    run.path.joinpath("summary.json").unlink()  # it is written last
    loop.resume(run)
    assert not stage.exists() and remains(run.path) == before


def test_evaluation_leaves_no_trace(tmp_path: Path) -> None:
    """The toy's draws random numbers and leaves the network in evaluation mode."""
    often, rarely = (trained(tmp_path / str(n), epochs=4, evaluate_every=n, norm=True) for n in (1, 2))
    assert remains(often.path)["state model"] == remains(rarely.path)["state model"]
    assert remains(often.path)["state random"] == remains(rarely.path)["state random"]


class Joined:
    """Two batches as one."""

    def __init__(self, batches: ToyBatches) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches) // 2

    def units(self, epoch: int, index: int) -> int:
        return self.batches.units(epoch, 2 * index) + self.batches.units(epoch, 2 * index + 1)

    def make(self, epoch: int, index: int) -> torch.Tensor:
        return torch.cat([self.batches.make(epoch, 2 * index), self.batches.make(epoch, 2 * index + 1)])


def test_accumulating_is_one_step_on_the_union(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 4 and 5 points: the mean over the points is not the mean of the means."""
    apart = trained(tmp_path / "apart", accumulate=2, dropout=0.0, count=8)

    def build(settings: Toy) -> ToyTask:
        task = ToyTask(settings)
        task.batches = Joined(task.batches)
        return task

    monkeypatch.setattr(toy, "build", build)
    together = trained(tmp_path / "together", dropout=0.0, count=8)
    for name, tensor in weights(apart).items():
        torch.testing.assert_close(tensor, weights(together)[name], rtol=1e-5, atol=1e-7)
    lines = report.read(apart.metrics)
    assert [(line["t"], line["level"]) for line in lines] == [(t, ("full", "core")[t % 2]) for t in range(8)]
    assert [line["loss"] for line in lines] == [pytest.approx(line["loss"]) for line in report.read(together.metrics)]


_WHOLE: dict[str, dict[str, Any]] = {}


def whole_run(place: Path, **settings: Any) -> dict[str, Any]:
    """Make, once for these settings, a run that is never stopped, and return what it leaves."""
    key = json.dumps(settings)
    if key not in _WHOLE:
        _WHOLE[key] = remains(trained(place / "whole", **settings).path)
    return _WHOLE[key]


HARD: dict[str, Any] = {"norm": True, "measure_every": 2, "checkpoint_every": 4, "epochs": 3}
"""With BatchNorm, dropout and a meter."""


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (signal.SIGINT, {}),
        (signal.SIGTERM, {"method": "alternating(order='criterion', every=2)"}),
        (signal.SIGTERM, {"precision": "bf16"}),
    ],
)
def test_asked_to_stop_it_finishes_the_step_saves_and_goes_on_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, changes: Any
) -> None:
    whole = whole_run(tmp_path, **HARD, **changes)
    place = tmp_path / "stopped"
    for position in (0, 6, 9, 13):  # the first, the last of an epoch, two between checkpoints
        with monkeypatch.context() as patch:
            at_batch(position, partial(stop, number), patch)
            after = rf"stopped after step {position + 1}; to continue: partialsgd resume {place}"
            with pytest.raises(loop.Stopped, match=after):
                loop.resume(Run.open(place)) if position else trained(place, **HARD, **changes)
        assert "Stopping after this step" in capsys.readouterr().err
        found = checkpoints.latest(place / "checkpoints")
        assert found is not None and found[0] == position + 1 == len(report.read(place / "metrics.jsonl"))
        assert bool(found[1]["glances"]) == (position >= 6), "the last evaluation is remembered"
    loop.resume(Run.open(place))
    assert "Continuing from step 14 of 21." in capsys.readouterr().err
    assert remains(place) == whole


def test_asked_in_the_last_step_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_batch(13, stop, monkeypatch)
    assert trained(tmp_path / "a").summary is not None


def test_a_run_that_failed_anywhere_goes_on_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before its first checkpoint, and after its last step."""

    def fail() -> None:
        raise KeyError("a fault of the data")

    whole = whole_run(tmp_path, **HARD)
    trying = [1, 3, 4, 7, 8, 20]
    with pytest.raises(KeyError), monkeypatch.context() as patch:
        at_batch(trying[0], fail, patch)
        trained(tmp_path / "failed", **HARD)
    run = Run.open(tmp_path / "failed")
    for position in trying[1:]:
        with pytest.raises(KeyError), monkeypatch.context() as patch:
            at_batch(position, fail, patch)
            loop.resume(run)
    with pytest.raises(KeyError), monkeypatch.context() as patch:
        patch.setattr(use_run, "show", lambda *_: fail())
        loop.resume(run)
    assert run.summary is not None and remains(run.path) == whole
    (run.path / "summary.json").unlink()
    loop.resume(run)
    assert remains(run.path) == whole


WRITES = {"checkpoint": (checkpoints, "save"), "log": (ps.MetricsLog, "write"), "weights": (ps.export, "save")}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", WRITES)
def test_between_any_two_writes_a_run_may_end_and_goes_on_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, when: str
) -> None:
    """Every write is an instant; a kill comes before it or after it. Step 14 has all three."""
    options: dict[str, Any] = {**HARD, "checkpoint_every": 2}
    whole = whole_run(tmp_path, **options)
    holder, name = WRITES[what]
    write, calls = getattr(holder, name), {"checkpoint": (4, 7), "log": (8, 14), "weights": (1, 2, 3, 4)}[what]
    for call in calls:
        place, count = tmp_path / str(call), iter(range(1, 1000))

        def ends(*args: Any, count: Iterator[int] = count, call: int = call, **more: Any) -> None:
            here = next(count) == call
            if not (here and when == "before"):
                write(*args, **more)
            if here:
                raise KeyError("the process is gone")

        with pytest.raises(KeyError), monkeypatch.context() as patch:
            patch.setattr(holder, name, ends)
            trained(place, **options)
        loop.resume(Run.open(place))
        assert remains(place) == whole, f"call {call}"


def test_threads_are_stored_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_batch(5, stop, monkeypatch)
    try:
        torch.set_num_threads(2)
        with pytest.raises(loop.Stopped):
            trained(tmp_path / "a")
        assert Run.open(tmp_path / "a").settings.threads == 2
        torch.set_num_threads(1)
        loop.resume(Run.open(tmp_path / "a"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_accelerate_is_not_told_to_accumulate_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accelerate launch` and its config file set this; it would divide the loss."""
    expected = remains(trained(tmp_path / "a").path)
    assert remains(trained(tmp_path / "bf16", precision="bf16").path)["metrics"] != expected["metrics"]
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2")
    assert remains(trained(tmp_path / "b").path) == expected


@pytest.mark.parametrize(("nan_at", "level"), [(4, "full"), (5, "core")])
def test_a_loss_that_is_nan_stops_with_step_level_and_what_to_try(tmp_path: Path, nan_at: int, level: str) -> None:
    message = (
        rf"^the loss is NaN or infinite at step t = {nan_at}, level '{level}'\. What to try: a smaller --lr, "
        rf"--clip-norm 1, or a check of the data\. The last good checkpoints are in {tmp_path}/a/checkpoints$"
    )
    with pytest.raises(FloatingPointError, match=message):
        trained(tmp_path / "a", nan_at=nan_at)
    run = Run.open(tmp_path / "a")
    assert [int(path.stem) for path in checkpoints.paths(run.checkpoints)] == [3]
    assert all(tensor.isfinite().all() for tensor in weights(run).values())
    assert len(report.read(run.metrics)) == nan_at and run.summary is None
    with pytest.raises(FloatingPointError, match=f"step t = {nan_at}, level '{level}'"):
        loop.resume(run)


@pytest.mark.parametrize("evaluated", [False, True])
def test_weights_that_are_not_finite_are_never_written(tmp_path: Path, evaluated: bool) -> None:
    """The gradient is finite, the step is not: the next loss would tell, after the checkpoint."""
    message = "the parameter '.*' is NaN or infinite after step 1. What to try: a smaller --lr"
    with pytest.raises(FloatingPointError, match=message):
        trained(tmp_path / "a", lr=math.inf, checkpoint_every=1, count=1 if evaluated else 7)
    assert not (tmp_path / "a" / "checkpoints").exists()
    assert not (tmp_path / "a" / "best").exists() and not (tmp_path / "a" / "last").exists()


def set_scores(monkeypatch: pytest.MonkeyPatch, *values: float) -> None:
    """Let the evaluations have these selection scores."""
    scores = iter(values)
    monkeypatch.setattr(ToyTask, "selection_score", lambda self, evaluations: next(scores))


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((1, 3, 2), 2),
        ((3, 3, 3), 1),
        ((1, 2, 3), 3),
        ((math.nan, math.nan, math.nan), 1),
        ((math.nan, -9, -10), 2),
        ((1, math.nan, 2), 3),
    ],
)
def test_the_best_is_the_first_with_the_largest_merit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: tuple[float, ...], best: int
) -> None:
    """A merit that is NaN loses to every other, and a run without any has a best all the same."""
    set_scores(monkeypatch, *values)
    run = trained(tmp_path / "a", epochs=3)
    said = json.loads((run.best / "config.json").read_text())["metrics"]
    line = next(line for line in report.read(run.metrics) if line["epoch"] == best)
    assert said == {level: {"loss": line[f"valid/{level}/loss"]} for level in ("core", "full")}


def test_the_best_is_remembered_over_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_scores(monkeypatch, 5, 4, 3)
    with monkeypatch.context() as patch:
        at_batch(9, stop, patch)
        with pytest.raises(loop.Stopped):
            trained(tmp_path / "a", epochs=3)
    run = Run.open(tmp_path / "a")
    before = (run.best / "model.safetensors").read_bytes()
    loop.resume(run)
    assert (run.best / "model.safetensors").read_bytes() == before
    assert run.summary is not None and run.summary["checkpoint"] == "best"


def test_a_run_at_its_end_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "a")
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    capsys.readouterr()
    assert loop.resume(run) == run
    assert f"{run.path} is finished; there is nothing to resume." in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path / "a", method="sam")
    (run.path / "summary.json").unlink()
    config = (run.path / "config.json").read_text()
    (run.path / "config.json").write_text(config.replace('"sam"', '"plain"'))
    with pytest.raises(ValueError, match="the state was saved with method='sam"):
        loop.resume(run)


@pytest.mark.parametrize("options", [{"track": ("tensorboard",)}, {"tensorboard": True}])
def test_trackers_get_the_numbers_of_the_log_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    with monkeypatch.context() as patch:
        at_batch(9, stop, patch)
        with pytest.raises(loop.Stopped):
            trained(tmp_path / "a", measure_every=2, **options)
    lines = report.read(tmp_path / "a" / "metrics.jsonl")
    seen = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "a"))
    seen.Reload()
    (name,) = [name for name, tags in seen.Runs().items() if tags["scalars"]]
    for tag in ("lr", "epoch", "points"):
        assert [event.value for event in seen.Scalars(name, tag)] == pytest.approx([line[tag] for line in lines])
    core = [(event.step, event.value) for event in seen.Scalars(name, "loss/core")]
    assert core == [(line["t"], pytest.approx(line["loss"]["core"])) for line in lines if line["level"] == "core"]
    assert [event.step for event in seen.Scalars(name, "valid/full/loss")] == [6]
    assert seen.Scalars(name, "criteria/core/c_norm")


def test_a_damaged_checkpoint_is_passed_over_aloud_and_the_run_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = whole_run(tmp_path, **HARD)
    at_batch(13, stop, monkeypatch)
    with pytest.raises(loop.Stopped):
        trained(tmp_path / "a", **HARD)
    newest = checkpoints.paths(tmp_path / "a" / "checkpoints")[-1]
    newest.write_bytes(newest.read_bytes()[:500])
    capsys.readouterr()
    loop.resume(Run.open(tmp_path / "a"))
    err = capsys.readouterr().err
    assert f"warning: the checkpoint {newest} is skipped: " in err and "Continuing from step 12 of 21." in err
    assert remains(tmp_path / "a") == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "smooth"}, "there is no method 'smooth'"),
        ({"precision": "fp16"}, '"fp16" needs a GPU'),
        ({"track": ("mlflow",)}, "track: 'mlflow' is not installed or unknown to accelerate"),
        ({"probe": "only('small')"}, "^probe: level: there is no level 'small'; there are 'core', 'full'"),
        ({"probe": "only(level"}, r"^probe: the method 'only\(level' cannot be read"),
        ({"probe": "dropout(keep=2)"}, r"^probe: keep must be in \(0, 1\], got 2"),
        ({"measure_layers": ("9",)}, "^measure_layers: pattern '9' matches no parameter or module"),
    ],
)
def test_wrong_settings_are_found_before_a_directory_is_made(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(WrongCall, match=message):
        trained(tmp_path / "a", measure_every=2, **options)
    assert not (tmp_path / "a").exists()


def test_a_run_whose_checkpoint_cannot_be_used_is_refused_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_batch(9, stop, monkeypatch)
    with pytest.raises(loop.Stopped):
        trained(tmp_path / "a", track=("tensorboard",))
    newest = checkpoints.paths(tmp_path / "a" / "checkpoints")[-1]
    tensor_files.write_checked(newest, "partialsgd.training", {"format": 2, "position": 10, "state": {}}, {})
    before = {path: path.is_file() and (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")}
    with pytest.raises(ValueError, match="has format 2, and this version of partialsgd reads format 1"):
        loop.resume(Run.open(tmp_path / "a"))
    after = {path: path.is_file() and (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")}
    assert after == before


def test_a_run_without_some_of_its_settings_is_not_resumed(tmp_path: Path) -> None:
    run = trained(tmp_path / "a", max_steps=1)
    (run.path / "summary.json").unlink()
    config = json.loads((run.path / "config.json").read_text())
    del config["settings"]["lr"], config["settings"]["seed"]
    run.write_json("config.json", config)
    with pytest.raises(ValueError, match=r"config\.json has no seed, lr: it was edited .*; add the values"):
        loop.resume(run)


def test_a_damaged_or_removed_log_is_told_of_and_never_blocks_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_batch(5, stop, monkeypatch)
    with pytest.raises(loop.Stopped):
        trained(tmp_path / "a")
    run = Run.open(tmp_path / "a")
    first, _, *others = run.metrics.read_bytes().splitlines(keepends=True)
    run.metrics.write_bytes(b"".join([first, b"\0\n", *others]))
    at_batch(8, run.metrics.unlink, monkeypatch)
    assert loop.resume(run).summary is not None
    err = capsys.readouterr().err
    assert "had 1 damaged lines, which were dropped; the other 5 before step 6 were kept" in err
    assert f"{run.metrics} was removed: its lines are lost" in err
    assert (run.path / "metrics.jsonl.damaged-1").read_bytes().startswith(first + b"\0\n")
