"""How far a training is, by the end of its metrics."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from partialsgd.recipes.images.settings import Images
from partialsgd.reproduce.folder import Folder
from partialsgd.reproduce.jobs import Job
from partialsgd.reproduce.showing import Display, epoch_of
from tests.reproduce.made import look, run


def test_the_last_whole_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert epoch_of(path) == 0.0
    path.write_text('{"t": 0, "epoch": 0.5}\n{"t": 1, "epoch": 1.25}\n{"t": 2, "epo')
    assert epoch_of(path) == 1.25
    path.write_text("".join(f'{{"t": {t}, "filler": "{"x" * 90}", "epoch": {t / 10}}}\n' for t in range(500)))
    assert epoch_of(path) == 49.9
    path.write_text('{"t": 0, "epo')
    assert epoch_of(path) == 0.0


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
    lines = page.getvalue().splitlines()
    assert lines[:2] == ["good begins", "bad begins"]
    assert lines[2].startswith("good is done, 0.0 minutes") and lines[3].endswith("it has diverged")
    assert lines[4] == "good goes on"


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
