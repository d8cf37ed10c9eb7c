"""A run by a worker: made, gone on with, refused, failed or diverged; and how its process ends."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.worker import _done, work
from partialsgd.lab.runs.metrics import FAILED

TINY = Images(epochs=1, limit=40, width=4, batch=20, threads=1)

IN_ITS_LAST_STEP = """
import time
from partialsgd.lab.training.stopping import asked_to_stop
from partialsgd.lab.reproduce import worker

def work(settings):
    with asked_to_stop(lambda line: None) as is_asked:
        print("begun", flush=True)
        while not is_asked():
            time.sleep(0.01)

worker.work = work
worker.main()
"""


def test_a_run_that_is_at_its_end_stays_as_it_is(tmp_path: Path) -> None:
    settings = replace(TINY, out=str(tmp_path / "r"))
    work(settings)
    before = (tmp_path / "r" / "summary.json").read_bytes()
    work(settings)
    assert (tmp_path / "r" / "summary.json").read_bytes() == before


def test_numbers_that_leave_the_finite_are_kept_as_an_outcome(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    path = folder.run("core", 0)
    work(replace(TINY, lr=1e30, epochs=3, out=str(path)))
    assert "NaN or infinite" in json.loads((path / FAILED).read_text())["error"]
    assert len(folder.seeds("core")) == 1 and folder.scored("core") == []


def test_where_something_went_wrong_is_in_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.json").write_text("half of it")
    said = _done(replace(TINY, out=str(tmp_path / "r")))
    assert said.keys() == {"error"} and said["error"].startswith("ValueError: ")
    log = capsys.readouterr().err
    assert f"{tmp_path / 'r'} has failed\nTraceback (most recent call last)" in log and "worker.py" in log


def test_a_wrong_call_is_told_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = _done(replace(TINY, data=str(tmp_path / "nothing"), out=str(tmp_path / "r")))
    assert said.keys() == {"wrong call"} and "nothing" in said["wrong call"]
    assert capsys.readouterr().err == f"{tmp_path / 'r'} has failed: {said['wrong call']}\n"


def test_a_process_that_is_told_to_end_in_the_last_step_of_a_run_answers_and_ends() -> None:
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen([sys.executable, "-c", IN_ITS_LAST_STEP], text=True, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(json.dumps({"recipe": "images", "settings": asdict(TINY)}) + "\n")
        process.stdin.flush()
        assert process.stderr.readline() == "begun\n"
        process.stdin.close()
        assert process.stdout.read() == "{}\n"
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_data_that_were_moved_are_found_where_they_are_now(tmp_path: Path) -> None:
    """The run knows the old place; that the data are the same is told by their hash."""
    lines = [f"eins zwei {k} drei {k % 7}\n" for k in range(60)]
    here, there = tmp_path / "here" / "corpus", tmp_path / "there" / "corpus"
    here.mkdir(parents=True)
    for part, own in (("train", lines[:40]), ("valid", lines[40:50]), ("test", lines[50:])):
        for language in ("de", "en"):
            (here / f"{part}.{language}").write_text("".join(own))
    small = Translation(layers=1, d_model=16, ffn=16, heads=2, vocabulary=300, epochs=1, threads=1, beam=1)
    settings = replace(small, nest="none", method="plain", data=str(here), source="de", target="en")
    settings = replace(settings, out=str(tmp_path / "r"))
    work(settings)
    (tmp_path / "r" / "summary.json").unlink()  # killed before its last file
    there.parent.mkdir()
    here.rename(there)
    work(replace(settings, data=str(there)))
    assert (tmp_path / "r" / "summary.json").exists()
    (there / "train.de").write_text("etwas anderes\n" * 40)
    (tmp_path / "r" / "summary.json").unlink()
    with pytest.raises(ValueError, match=r"the data are not those that .* was begun with"):
        work(replace(settings, data=str(there)))
