"""A rank is killed at a random moment; torchrun starts all anew, and the run goes on by itself to the same bits."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop
from partialsgd.lab.training.errors import AlreadyThere, WrongCall
from studies.deaths.torchrun import launch
from tests.lab.remains import leftovers, remains
from tests.lab.runs.test_two_processes import HARD, lines, pair
from tests.lab.toy import Toy


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
