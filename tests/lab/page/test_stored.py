"""What a run directory is, and what is said of one that is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partialsgd.lab.page.stored import read
from tests.lab.page import made


def test_runs_are_named_by_as_much_of_their_path_as_tells_them_apart(tmp_path: Path) -> None:
    paths = [made.run(tmp_path / folder, name) for folder, name in [("a", "seed0"), ("b", "seed0"), ("b", "seed1")]]
    assert [run.name for run in read(paths[:1])] == ["seed0"]
    assert [run.name for run in read(paths)] == ["a/seed0", "b/seed0", "b/seed1"]
    assert [run.name for run in read([paths[1], paths[2]])] == ["seed0", "seed1"]
    assert [run.name for run in read([paths[0], paths[1]])] == ["a", "b"]


def test_a_run_that_is_named_twice_is_there_once_in_its_first_place(tmp_path: Path) -> None:
    first, second = made.run(tmp_path, "first"), made.run(tmp_path, "second")
    assert [run.name for run in read([first, second, tmp_path / "second" / ".." / "first"])] == ["first", "second"]


def test_what_is_no_run_is_named_with_the_reason(tmp_path: Path) -> None:
    path = made.run(tmp_path, "joint")
    (path / "best").mkdir()
    (path / "best" / "config.json").write_text('{"format": 1}')
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model": "another program\'s"}')
    seed = made.run(tmp_path / "paper" / "rows" / "core", "seed0")
    for wrong, message in [
        (seed.parents[2], "runs may be in it: rows/core/seed0"),
        (tmp_path / "nothing", "nothing is no run: it does not exist"),
        (path / "config.json", "is no run: it is a file; give the directory"),
        (tmp_path, "no config.json, which `partialsgd train` writes first; runs may be in it: joint, other"),
        (path / "best", f"best is a part of a run; give the run itself, {path}"),
        (tmp_path / "other", "its config.json has no recipe and settings"),
    ]:
        with pytest.raises(FileNotFoundError) as raised:
            read([wrong])
        assert message in str(raised.value)


def test_no_run_and_one_path_are_refused() -> None:
    for wrong in ([], "runs/r"):
        with pytest.raises(ValueError, match="runs must be a list of run directories, at least one; got"):
            read(wrong)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", "config.json cannot be read"),
        ("config.json", "[]", "config.json is not of a run: it holds list"),
        ("summary.json", "{}", "summary.json is damaged, or of another version of partialsgd: KeyError"),
        ("summary.json", '{"levels": {"core": {"size": 1}}}', "summary.json is damaged, or of another version"),
        ("metrics.jsonl", "hello\n", "is none that MetricsLog wrote"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, content: str, message: str) -> None:
    path = made.run(tmp_path)
    (path / file).write_text(content)
    with pytest.raises(ValueError) as raised:
        read([path])
    assert message in str(raised.value) and file in str(raised.value)


def test_a_run_that_is_being_written_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = made.run(tmp_path, ends=False)
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"t": 20, "lev')
    (run,) = read([path])
    assert len(run.steps) == 20 and not run.is_finished
    (path / "metrics.jsonl").unlink()
    assert read([path])[0].steps == []


def test_of_a_step_that_was_tried_again_the_last_counts(tmp_path: Path) -> None:
    path = made.run(tmp_path, steps=2, ends=False)
    again = {"t": 0, "level": "full", "loss": {"full": 9.0}, "lr": 0.1, "backwards": 1}
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n")
    assert [step["loss"]["full"] for step in read([path])[0].steps] == [9.0]
