"""Reading run directories: names, levels, unfinished runs, and errors that name what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from partialsgd.lab.page.run_files import Level, read_runs
from tests.lab.page import example_runs


def test_runs_are_named_by_the_part_of_their_path_that_differs(tmp_path: Path) -> None:
    places = [("a", "seed0"), ("b", "seed0"), ("b", "seed1")]
    paths = [example_runs.run(tmp_path / folder, name) for folder, name in places]
    assert [run.name for run in read_runs(paths[:1])] == ["seed0"]
    assert [run.name for run in read_runs(paths)] == ["a/seed0", "b/seed0", "b/seed1"]
    assert [run.name for run in read_runs([paths[1], paths[2]])] == ["seed0", "seed1"]
    assert [run.name for run in read_runs([paths[0], paths[1]])] == ["a", "b"]
    twice = [*paths[1:], paths[0] / ".." / ".." / "b" / "seed0"]
    assert [run.name for run in read_runs(twice)] == ["seed0", "seed1"]


def test_error_says_why_a_path_is_not_a_run(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, "joint")
    (path / "best").mkdir()
    (path / "best" / "config.json").write_text('{"format": 1}')
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model": "another program\'s"}')
    seed = example_runs.run(tmp_path / "paper" / "rows" / "core", "seed0")
    for wrong, message in [
        (seed.parents[2], "directories that may be runs: rows/core/seed0"),
        (tmp_path / "nothing", "nothing is not a run directory: it does not exist"),
        (path / "config.json", "is not a run directory: it is a file; give the directory"),
        (tmp_path, "it has no config.json, which `partialsgd train` writes first; it contains directories"),
        (tmp_path, "that may be runs: joint, other"),
        (path / "best", f"best is a part of a run; give the run directory {path}"),
        (tmp_path / "other", "its config.json has no recipe and settings"),
    ]:
        with pytest.raises(FileNotFoundError) as raised:
            read_runs([wrong])
        assert message in str(raised.value)
    for wrong in ([], "runs/r"):
        with pytest.raises(ValueError, match="runs must be a list of run directories with at least one entry, got"):
            read_runs(wrong)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", "config.json cannot be read"),
        ("config.json", "[]", "config.json must hold a JSON object"),
        ("summary.json", "{}", "summary.json is damaged, or another version of partialsgd wrote it: KeyError"),
        ("summary.json", '{"levels": {"core": {"size": 1}}}', "summary.json is damaged, or another version"),
        ("metrics.jsonl", "hello\n", "metrics.jsonl"),
    ],
)
def test_error_names_a_damaged_file(tmp_path: Path, file: str, content: str, message: str) -> None:
    path = example_runs.run(tmp_path)
    (path / file).write_text(content)
    with pytest.raises(ValueError) as raised:
        read_runs([path])
    assert message in str(raised.value)


def test_unfinished_run_is_read_to_its_last_whole_line_and_the_last_record_of_a_step_counts(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, ends=False)
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"t": 20, "lev')
    (run,) = read_runs([path])
    assert len(run.steps) == 20 and not run.summary
    (path / "metrics.jsonl").unlink()
    assert read_runs([path])[0].steps == []
    path = example_runs.run(tmp_path, "repeated", ends=False)
    first = {"t": 0, "level": "core", "loss": {"full": 1.0}, "lr": 0.1, "backwards": 2}
    again = {**first, "loss": {"core": 1.0, "core#2": 3.0}}
    example_runs.write_steps(path, [first, again])
    (run,) = read_runs([path])
    assert run.steps == [again] and run.levels == (Level("core", 1),)


def test_levels_are_those_of_the_summary_or_of_the_evaluations_and_one_trained_alone_keeps_its_name(
    tmp_path: Path,
) -> None:
    path = example_runs.run(tmp_path, levels=["core", "1/2", "full"], updates={"core": 7, "full": 8})
    (run,) = read_runs([path])
    assert [level.name for level in run.levels] == ["core", "1/2", "full"]
    assert [level.name for level in run.trained] == ["core", "full"]
    assert (run.score, run.flops, run.levels[1].score) == ("BLEU", 1e6 * (7 * 1_000 + 8 * 10_000), 27.25)
    assert run.validation("loss")["1/2"] == pytest.approx({9: 2 / 1.9, 19: 2 / 2.9, 29: 2 / 3.9, 39: 2 / 4.9})
    assert run.validation("nothing") == {} and run.last_loss("nothing") is None
    path = example_runs.run(tmp_path, "half", levels=["core", "1/2", "full"], ends=False, score="accuracy")
    (run,) = read_runs([path])
    assert run.levels == (Level("core", 6), Level("1/2", 7), Level("full", 7))  # in the order of the evaluations
    assert (run.score, run.extras) == ("accuracy", {})
    _, alone, full = read_runs(example_runs.three(tmp_path / "three"))
    assert [level.name for level in alone.levels] == ["core"] == list(alone.validation("loss"))
    assert alone.levels[0].share is None  # the file has its share of itself
    assert alone.level_name("model") == "core"
    assert [level.name for level in full.levels] == ["full"] and full.level_name("model") == "full"
    assert full.levels[0].share == 1.0
