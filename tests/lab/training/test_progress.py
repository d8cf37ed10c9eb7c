"""The progress of a training as a user sees it, in a terminal and without one."""

from __future__ import annotations

import logging
import re
from io import StringIO
from types import MappingProxyType
from typing import Any

import pytest
from rich.console import Console

from partialsgd.lab.training import progress
from partialsgd.lab.training.progress import Display, say, show_warnings_on

EVALUATIONS = {"core": {"loss": 3.40125, "accuracy": 0.615}, "full": {"loss": 3.1, "accuracy": 0.63}}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by hand."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def console(*, terminal: bool, quiet: bool = False) -> Console:
    return Console(file=StringIO(), force_terminal=terminal, width=80, quiet=quiet, color_system="standard")


def text(console: Console) -> str:
    """Without colours and jumps."""
    assert isinstance(console.file, StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def display(console: Console, evaluations: Any = MappingProxyType({})) -> Display:
    return Display(console, evaluations, position=0, total=12_000, epoch=1_000, unit="tokens")


def train(shown: Display, clock: list[float]) -> None:
    """A hundred steps of half a second, levels in turn, then an evaluation of ten seconds."""
    for position in range(1, 101):
        clock[0] += 0.5
        shown.step(position, {"full": 2.0} if position % 2 else {"core": 3.0}, 1_000)
    clock[0] += 10
    shown.evaluated(100, EVALUATIONS)


def test_in_a_terminal_each_level_has_its_loss_and_its_last_evaluation(clock: list[float]) -> None:
    out = console(terminal=True)
    long = {"long": {f"number {k}": 1 / 3 for k in range(9)}}
    with display(out, {**EVALUATIONS, **long}) as shown:
        assert shown._live is not None
        shown._live.refresh()
        assert "tokens/s" not in text(out) and "…" in text(out), "no step, no speed; long lines are cut"
        train(shown, clock)
        clock[0] += 0.5
        shown.step(101, {"full": 2.0}, 1_000)
        shown._live.refresh()
    drawn = [line.rstrip() for line in text(out).replace("\r", "\n").split("\n")]
    assert "epoch 0.1, step 100  valid: core loss 3.401, accuracy 0.615" in drawn
    last = max(k for k, line in enumerate(drawn) if line.startswith("step"))
    # 60.5 s for 101 steps, evaluation included: 11,899 more take 7,128 s
    assert re.fullmatch(r"step 101/12,000  \S{16}  epoch 0\.1  2,000 tokens/s  1:58:48 left", drawn[last])
    assert drawn[last + 1] == "  core  loss 3.000  valid: loss 3.401, accuracy 0.615"
    assert drawn[last + 2] == "  full  loss 2.000  valid: loss 3.1, accuracy 0.63"
    assert all(len(line) <= 80 for line in drawn)


def test_without_a_terminal_there_is_a_line_now_and_then(clock: list[float]) -> None:
    out = console(terminal=False)
    with display(out) as shown:
        train(shown, clock)
        clock[0] += 20
        shown.step(101, {"full": 4.0}, 1_000)
    lines = text(out).splitlines()
    assert lines[0] == "step 20 of 12,000  epoch 0.0  2,000 tokens/s  1:39:50 left  loss: full 2.000, core 3.000"
    assert [line.split()[1] for line in lines] == ["20", "40", "60", "80", "100", "0.1,", "101"]
    assert lines[-1].endswith("loss: full 2.100, core 3.000"), "smoothed over the steps of its level"
    assert lines[-2] == "epoch 0.1, step 100  valid: core loss 3.401, accuracy 0.615; full loss 3.1, accuracy 0.63"
    assert isinstance(out.file, StringIO) and "\x1b" not in out.file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_other_ranks_are_quiet(clock: list[float], terminal: bool) -> None:
    out = console(terminal=terminal, quiet=True)
    with show_warnings_on(out), display(out) as shown:
        train(shown, clock)
        logging.getLogger("partialsgd").warning("something")
        say(out, "something")
    assert text(out) == ""


def test_warnings_and_paths_are_shown_as_they_are() -> None:
    path, before = "/runs/[red]" + "/long" * 30, list(logging.getLogger("partialsgd").handlers)
    out = console(terminal=False)
    with pytest.raises(ValueError, match="x"), show_warnings_on(out):
        logging.getLogger("partialsgd").warning("%s is passed over", path)
        raise ValueError("x")
    assert logging.getLogger("partialsgd").handlers == before
    say(out, f"The run is in {path}")
    assert text(out).splitlines() == [f"warning: {path} is passed over", f"The run is in {path}"]
