"""A line says what a step did, and a killed run leaves the log of one that was not."""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import partialsgd as ps
from partialsgd import Branch, Method, PartialSGD
from partialsgd.logging import read, record
from tests.logging import training
from tests.logging.training import alternating, made_up, steps
from tests.training import family

multiprocessing.set_forkserver_preload(["tests.logging.training", "torch._dynamo"])  # which optimizers import


def test_losses_are_told_by_level_and_never_mixed() -> None:
    nested = family()
    sgd = PartialSGD(nested, torch.optim.SGD(nested.parameters(), 0.1), ps.methods.slimmable())
    step = steps(sgd, 1)[0]
    assert record(step)["loss"] == {level: loss.item() for level, loss in step.losses}
    assert list(record(step)["loss"]) == ["full", "core"]
    twice = Method(branches=lambda context: [Branch(), Branch(weight=0.5)], name="twice")
    model = nn.Linear(6, 2)
    step = steps(PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), twice), 1)[0]
    assert list(record(step)["loss"]) == ["model", "model#2"]
    assert record(made_up(losses=()))["loss"] == {}
    assert "criteria" not in record(made_up(measurements=(1.5,))), "a meter may return anything"


class Reads(TorchDispatchMode):
    """Counts tensors that are read one number at a time."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_all_losses_are_read_from_the_device_at_once() -> None:
    step = made_up(losses=(("full", 1.0), ("core", 2.0), ("tiny", 3.0)))
    with Reads() as reads:
        assert record(step)["loss"] == {"full": 1.0, "core": 2.0, "tiny": 3.0}
        assert reads.count == 0
        step.losses[0][1].item()
        assert reads.count == 1


def test_infinities_are_valid_json_and_come_back(tmp_path: Path) -> None:
    odd = {"c_norm": math.inf, "c_align": -math.inf, "q": math.nan, "level": "nan", "groups": {"inf": {"q": math.inf}}}
    path = tmp_path / "metrics.jsonl"
    with ps.MetricsLog(path) as log:
        log.write(
            made_up(losses=(("nan", math.nan),), measurements=(SimpleNamespace(numbers=lambda: odd),)),
            accuracy=-math.inf,
        )

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(path.read_text(), parse_constant=refuse)
    (line,) = read(path)
    assert math.isnan(line["loss"]["nan"]) and line["accuracy"] == -math.inf and line["level"] == "nan"
    (measured,) = line["criteria"]
    assert math.isnan(measured.pop("q")) and measured == {k: v for k, v in odd.items() if k != "q"}


def test_a_skipped_step_is_told_and_its_t_comes_again() -> None:
    model = nn.Linear(6, 2)
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), nonfinite="skip")
    bad = sgd.step(lambda: (model.weight.sum() * torch.inf).backward() or torch.tensor(torch.inf))
    first, second = record(bad), record(steps(sgd, 1)[0])
    assert (first["t"], first["skipped"], first["loss"]) == (0, True, {"model": math.inf})
    assert second["t"] == 0 and "skipped" not in second


def test_a_line_says_what_the_step_did(tmp_path: Path) -> None:
    taken = steps(alternating(), 6)
    with ps.MetricsLog(tmp_path / "runs" / "metrics.jsonl") as log:
        for step in taken:
            log.write(step, accuracy=torch.tensor(0.5), epoch=step.t // 2)
    lines = read(tmp_path / "runs" / "metrics.jsonl")
    for step, line in zip(taken, lines, strict=True):
        expected = {
            "t": step.t,
            "level": ("full", "core")[step.t % 2],
            "loss": {("full", "core")[step.t % 2]: step.loss.item()},
            "lr": 0.1,
            "backwards": step.backwards,
            "accuracy": 0.5,
            "epoch": step.t // 2,
            **({"criteria": [step.criteria.numbers()]} if step.criteria else {}),
        }
        assert json.dumps(line) == json.dumps(expected)  # as text, because NaN is not NaN
    assert [line["criteria"][0]["level"] for line in lines if "criteria" in line] == ["full", "core"] * 2


def test_numbers_of_the_user_are_numbers_with_names_of_their_own(tmp_path: Path) -> None:
    with ps.MetricsLog(tmp_path / "metrics.jsonl") as log:
        with pytest.raises(ValueError, match="'loss' is a field that the log writes itself"):
            log.write(made_up(), loss=1.0)
        for wrong in ("high", torch.ones(2), None):
            with pytest.raises(TypeError, match="accuracy must be one number"):
                log.write(made_up(), accuracy=wrong)
    assert read(tmp_path / "metrics.jsonl") == []


def test_a_file_is_not_overwritten_by_oversight(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.touch()  # an empty one holds nothing
    with ps.MetricsLog(path) as log:
        log.write(made_up())
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"t=sgd\.t to resume from a checkpoint, or with t=0 to start over"):
        ps.MetricsLog(path)
    assert path.read_bytes() == before
    ps.MetricsLog(path, t=0).close()
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "text", ["thesis, chapter 3\n", "my notes", '{"a": 1}\n', "[]\n", '{"t": oh\n', '{"t": null}\n']
)
def test_files_of_others_are_not_cut(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"line 1 of .*notes\.txt was not written by MetricsLog"):
        ps.MetricsLog(path, t=0)
    assert path.read_text() == text


def test_damaged_lines_are_dropped_aloud_and_every_other_line_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    with ps.MetricsLog(path) as log:
        for t in range(6):
            log.write(made_up(t))
    lines = path.read_bytes().splitlines(keepends=True)
    for number, damage in enumerate((b"\0" * 40 + b"\n", b'{"t": "x"}\n', b'{"t": ' + b"[" * 100_000 + b"\n"), 1):
        spoilt = b"".join([*lines[:2], damage, *lines[3:]])
        path.write_bytes(spoilt)
        caplog.clear()
        ps.MetricsLog(path, t=5).close()
        copy = tmp_path / f"metrics.jsonl.damaged-{number}"
        assert path.read_bytes() == b"".join([*lines[:2], *lines[3:5]]) and copy.read_bytes() == spoilt
        assert "had 1 damaged lines, which were dropped; the other 4 before step 5 were kept" in caplog.text
        assert f"the file as it was is {copy}" in caplog.text
    path.write_bytes(b"oh\n" + lines[1])  # a file of ours, of which nothing is kept
    ps.MetricsLog(path, t=0).close()
    assert path.read_bytes() == b"" and (tmp_path / "metrics.jsonl.damaged-4").exists()
    path.unlink()
    ps.MetricsLog(path, t=5).close()
    assert f"{path} is missing: the log begins anew, with step 5" in caplog.text


def test_a_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    path, thesis = tmp_path / "metrics.jsonl", tmp_path / "thesis.txt"
    for text in ("", '{"t": 7}\n'):
        thesis.write_text(text)
        path.unlink(missing_ok=True)
        path.symlink_to(thesis)
        with pytest.raises(OSError, match=f"{path} is a symbolic link, and nothing is written through one"):
            ps.MetricsLog(path, t=0)
        assert thesis.read_text() == text


def test_after_a_kill_at_any_byte_the_log_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    path, taken = tmp_path / "metrics.jsonl", steps(alternating(), 5)
    with ps.MetricsLog(path) as log:
        for step in taken:
            log.write(step)
    whole = path.read_bytes()
    third = len(b"\n".join(whole.split(b"\n")[:3])) + 1
    for length in range(third, len(whole), 11):
        path.write_bytes(whole[:length])
        assert [line["t"] for line in read(path)] == list(range(whole[:length].count(b"\n")))
        with ps.MetricsLog(path, t=3) as log:
            for step in taken[3:]:
                log.write(step)
        assert path.read_bytes() == whole
    assert {file.name for file in tmp_path.iterdir()} == {path.name}


def test_attempts_from_before_the_checkpoint_are_kept_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with ps.MetricsLog(path) as log:
        for t, skipped in ((0, False), (1, True), (1, True), (1, True), (1, False), (2, False)):
            log.write(made_up(t, skipped=skipped))
    whole = path.read_bytes().splitlines(keepends=True)
    for t, skips, kept in ((3, 0, 6), (2, 0, 5), (1, 3, 4), (1, 2, 3), (1, 0, 1), (0, 0, 0)):
        path.write_bytes(b"".join(whole))
        ps.MetricsLog(path, t=t, skips=skips).close()
        assert path.read_bytes() == b"".join(whole[:kept])


def test_a_run_that_was_killed_and_resumed_has_the_log_of_one_that_was_not(tmp_path: Path) -> None:
    """Law 5, by SIGKILL at moments that nobody chose."""
    processes = multiprocessing.get_context("forkserver")
    draw, metrics, lengths, cut = random.Random(0), tmp_path / "killed" / "metrics.jsonl", [], 0
    metrics.parent.mkdir()
    for _ in range(6):
        process = processes.Process(target=training.train, args=(str(metrics.parent), 0.01))
        process.start()
        begun = time.monotonic()
        while not metrics.exists() or metrics.stat().st_size == (lengths[-1] if lengths else 0):
            assert process.is_alive() and time.monotonic() - begun < 60
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.15))
        process.kill()
        process.join()
        assert process.exitcode == -9
        lengths.append(metrics.stat().st_size)
        cut += read(metrics)[-1]["batch"] >= training.saved(str(metrics.parent))
    assert cut and len(read(metrics)) < training.BATCHES  # kills came after what was saved, and before the end
    training.train(str(metrics.parent))
    (tmp_path / "whole").mkdir()
    training.train(str(tmp_path / "whole"))
    assert metrics.read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    lines = read(metrics)
    assert [line["batch"] for line in lines] == list(range(training.BATCHES))
    assert sum("skipped" in line for line in lines) > 10 and sum("criteria" in line for line in lines) > 10


def test_of_several_processes_the_first_writes(tmp_path: Path) -> None:
    mp.start_processes(training.on_two_ranks, args=(str(tmp_path),), nprocs=2, start_method="forkserver")
    assert [line["loss"] for line in read(tmp_path / "metrics.jsonl")] == [{"model": 0.0}] * 2
    assert len(list((tmp_path / "tensorboard" / "metrics").glob("events.out.tfevents.*"))) == 1
