"""A run as a page sees it: what its levels are called, and what is known before its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partialsgd.lab.page.runs import Level
from partialsgd.lab.page.stored import read
from tests.lab.page import made


def test_at_the_end_the_summary_says_what_the_levels_are(tmp_path: Path) -> None:
    (run,) = read([made.run(tmp_path, levels=["core", "1/2", "full"], updates={"core": 7, "full": 8})])
    assert [level.name for level in run.levels] == ["core", "1/2", "full"]
    assert [level.name for level in run.trained] == ["core", "full"]
    assert (run.score, run.seconds, run.flops) == ("BLEU", 90.0, 1e6 * (7 * 1_000 + 8 * 10_000))


def test_before_its_end_the_metrics_do(tmp_path: Path) -> None:
    (run,) = read([made.run(tmp_path, levels=["core", "1/2", "full"], ends=False, score="accuracy")])
    assert run.levels == (Level("core", 6), Level("1/2", 7), Level("full", 7))  # as evaluated, not as first trained
    assert (run.score, run.seconds, run.flops, dict(run.extras)) == ("accuracy", None, None, {})


def test_a_level_with_a_slash_is_told_from_the_number(tmp_path: Path) -> None:
    (run,) = read([made.run(tmp_path, levels=["1/2", "full"])])
    assert run.validation("loss")["1/2"] == pytest.approx({9: 2 / 1.9, 19: 2 / 2.9, 29: 2 / 3.9, 39: 2 / 4.9})
    assert run.validation("nothing") == {}


def test_a_level_that_was_taken_out_goes_by_its_own_name(tmp_path: Path) -> None:
    _, alone, full = read(made.three(tmp_path))
    assert [level.name for level in alone.levels] == ["core"] == list(alone.validation("loss"))
    assert alone.levels[0].share is None  # it would be that of itself
    assert alone.called("model") == "core"
    assert [level.name for level in full.levels] == ["full"] and full.called("model") == "full"
    assert full.levels[0].share == 1.0


def test_a_pass_that_comes_again_is_of_the_same_level(tmp_path: Path) -> None:
    path = made.run(tmp_path, ends=False, steps=2)
    step = {"t": 0, "level": "core", "loss": {"core": 1.0, "core#2": 3.0}, "lr": 0.1, "backwards": 2}
    (path / "metrics.jsonl").write_text(json.dumps(step) + "\n")
    assert read([path])[0].levels == (Level("core", 1),)
