"""What a run says at its end."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from partialsgd.export import files
from partialsgd.lab.runs import use_run as final_scores
from partialsgd.lab.runs.use_run import load_weights
from partialsgd.lab.training import loop
from tests.lab.toy import Toy, ToyTask, build

pytestmark = pytest.mark.usefixtures("toy")


def printed(summary: dict[str, Any]) -> str:
    out = StringIO()
    final_scores.show(summary, Console(file=out, width=100))
    return out.getvalue()


def test_it_is_the_best_that_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three evaluations the first is the best; the network went on from there."""
    scores_in_turn = iter((3.0, 2.0, 1.0))
    monkeypatch.setattr(ToyTask, "selection_score", lambda self, evaluations: next(scores_in_turn))
    run = loop.train(Toy(out=str(tmp_path / "a"), epochs=3, lr=0.1))
    task = build(Toy())
    scores = {}
    for place in (run.best, run.last):
        load_weights(task.network, place)
        scores[place.name] = {level: task.scores(level, "test") for level in ("core", "full")}
    assert run.summary is not None and scores["best"] != scores["last"]
    assert {level: row["test"] for level, row in run.summary["levels"].items()} == scores["best"]


def test_a_row_says_what_a_level_is_and_took(tmp_path: Path) -> None:
    run = loop.train(Toy(out=str(tmp_path / "a"), max_steps=5))
    assert run.summary is not None
    core, full = (run.summary["levels"][level] for level in ("core", "full"))
    assert (core["parameters"], full["parameters"]) == (21, 41)
    assert (core["share"], full["share"]) == (pytest.approx(21 / 41), 1.0)
    assert (core["updates"], full["updates"]) == (2, 3)
    assert (core["flops"], full["flops"]) == (1 * (5 + 5), 2 * (4 + 4 + 4)), "forward and backward, by level"
    rows = [line.split("│")[1:-1] for line in printed(run.summary).splitlines() if "│" in line]
    assert [cell.strip() for cell in rows[1]] == [
        *("full", "41", "100.0%", "3", "24", f"{full['test']['accuracy']:.4g}", "1 ms"),
    ]


def test_extras_are_shown_as_what_they_are(tmp_path: Path) -> None:
    run = loop.train(Toy(out=str(tmp_path / "a"), max_steps=1))
    assert run.summary is not None
    extras = {
        "samples": [{"source": "one [red]", "core": "eins"}, {"source": "two", "core": "zwei"}],
        "signature": "nrefs:1|case:mixed",
        "notes": ["first", "second"],
        "empty": [],
    }
    out = printed({**run.summary, "extras": extras})
    assert "signature: nrefs:1|case:mixed" in out and "notes: first\nnotes: second" in out
    assert "one [red]" in out and "zwei" in out and "samples" in out


def test_another_network_is_refused(tmp_path: Path) -> None:
    run = loop.train(Toy(out=str(tmp_path / "a"), max_steps=1))
    with pytest.raises(ValueError, match="the model given is not the one saved"):
        load_weights(build(Toy(width=12)).network, run.best)
    (run.best / files.WEIGHTS).write_bytes(b"")
    with pytest.raises(ValueError, match="truncated or damaged"):
        load_weights(build(Toy()).network, run.best)
    assert torch.is_grad_enabled()
