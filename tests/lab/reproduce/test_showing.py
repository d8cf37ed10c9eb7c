"""How far a training is, by the end of its metrics."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.jobs import Job
from partialsgd.lab.reproduce.showing import Display, how_far, last_line
from rich.console import Console

from partialsgd.lab.recipes.images.settings import Images
from tests.lab.reproduce.made import look, run


def test_the_last_whole_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert last_line(path) == {}
    path.write_text('{"t": 0, "epo')
    assert last_line(path) == {}
    path.write_text('{"t": 0, "epoch": 0.5}\n{"t": 1, "epoch": 1.25}\n{"t": 2, "epo')
    assert last_line(path) == {"t": 1, "epoch": 1.25}
    path.write_text("".join(f'{{"t": {t}, "filler": "{"x" * 90}"}}\n' for t in range(500)))
    assert last_line(path)["t"] == 499


@pytest.mark.parametrize("size", [4094, 4096, 5000, 100_000])
def test_a_last_line_of_many_measurements_is_found(tmp_path: Path, size: int) -> None:
    path = tmp_path / "metrics.jsonl"
    last = json.dumps({"t": 1, "criteria": [{"filler": "x" * size}, {"c_norm": 1.0}]})
    for first in ("", '{"t": 0}\n'):
        path.write_text(f"{first}{last}\n" + '{"t": 2, "criteria": [{"c')
        assert last_line(path)["t"] == 1


def test_a_training_is_at_its_end_where_its_epochs_or_its_steps_are() -> None:
    last = {"t": 29, "epoch": 1.5}
    assert how_far(last, Images(epochs=3)) == (0.5, "epoch 1.5 of 3")
    assert how_far(last, Images(epochs=3, max_steps=30)) == (1.0, "step 30 of 30")
    assert how_far(last, Images(epochs=3, max_steps=6000)) == (0.5, "epoch 1.5 of 3")
    assert how_far({}, Images(epochs=3)) == (0.0, "epoch 0.0 of 3")


def test_without_a_terminal_each_run_has_a_line_at_its_begin_and_its_end(tmp_path: Path) -> None:
    page, folder = io.StringIO(), Folder(tmp_path)
    first, second = (Job(name, folder.run(name, 0), Images()) for name in ("good", "bad"))
    with Display(Console(file=page, width=80), folder) as shown:
        for job in (first, second):
            shown.began(job)
        run(first.path, [look(full=0.1)], {"full": 0.1})
        run(second.path, [look(full=0.1)], None)
        for job in (first, second):
            shown.ended(job)
        shown.began(first)
        shown.ended(first, "ValueError: no")
    lines = page.getvalue().splitlines()
    assert lines[:2] == ["good begins", "bad begins"]
    assert lines[2].startswith("good is done, 0.0 minutes") and lines[3].endswith("it has diverged")
    assert lines[4:6] == ["good goes on", "good has failed, 0.0 minutes: ValueError: no"]


def test_in_a_terminal_there_is_a_bar_for_each_run(tmp_path: Path) -> None:
    page, folder = io.StringIO(), Folder(tmp_path)
    job = Job("joint, seed 0", folder.run("joint", 0), Images(epochs=4))
    job.path.mkdir(parents=True)
    job.path.joinpath("metrics.jsonl").write_text('{"t": 0, "epoch": 2.0}\n')
    with Display(Console(file=page, width=80, force_terminal=True), folder) as shown:
        shown.began(job)
        shown.refresh()
        (bar,) = shown._progress.tasks
        assert (bar.completed, bar.fields["told"]) == (0.5, "epoch 2.0 of 4")
