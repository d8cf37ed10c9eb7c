"""A series has the last attempt of each step at the right level, and leaves nothing out silently."""

from __future__ import annotations

import math
import random
import statistics
from pathlib import Path

import pytest

from partialsgd import MetricsLog
from partialsgd.logging import series
from tests.logging.training import made_up, measured, run


def test_what_an_axis_cannot_show_is_set_apart() -> None:
    found = dict(enumerate({"c": value} for value in (2.0, -3.0, math.inf, math.nan, 0.0, -math.inf, 1e200)))
    plain = series.ratio(found, "c")
    assert [value for value in plain.values.values() if not math.isnan(value)] == [2.0, 0.0, 1e200]
    assert (plain.negative, plain.infinite, plain.undefined) == ((1, 5), (2,), (3,))
    squared = series.ratio(found, "c", squared=True)
    assert [value for value in squared.values.values() if not math.isnan(value)] == [4.0, 0.0]
    assert (squared.negative, squared.infinite, squared.undefined) == ((1, 5), (2, 6), (3,))  # 1e400 is too large
    signed = series.ratio(found, "c", signed=True)
    assert signed.values[1] == -3.0
    assert (signed.negative, signed.infinite, signed.undefined) == ((), (2, 5), (3,))
    for one in (plain, squared, signed):
        assert list(one.values) == list(found)


@pytest.mark.parametrize("window", [1, 2, 5, 8, 100])
def test_smoothing_is_a_running_median_in_which_a_negative_ratio_is_a_large_one(window: int) -> None:
    draw = random.Random(0)
    numbers = [draw.choice([draw.random(), -1.0, math.inf]) for _ in range(40)]
    numbers[7] = math.nan
    smooth = series.ratio({2 * t: {"c": number} for t, number in enumerate(numbers)}, "c").smoothed(window)
    large = [(2 * t, math.inf if n < 0 else n) for t, n in enumerate(numbers) if not math.isnan(n)]
    assert list(smooth.values) == [t for t, _ in large]
    for k, (t, _) in enumerate(large):
        around = [n for j, (_, n) in enumerate(large) if -((window - 1) // 2) <= j - k <= window // 2]
        middle = statistics.median(around)
        shown = smooth.values[t]
        assert shown == middle if math.isfinite(middle) else math.isnan(shown)


def test_of_a_step_that_was_tried_again_the_last_attempt_counts(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        for t, loss, skipped in ((0, 1.0, False), (1, math.inf, True), (1, 2.0, False), (2, math.nan, True)):
            log.write(made_up(t, ((None, loss),), skipped=skipped))
    ((found,),) = series.load({"a": tmp_path / "metrics.jsonl"}).values()
    assert [(step["t"], step["loss"]["model"]) for step in found] == [(0, 1.0), (1, 2.0)]


def test_a_run_is_a_file_or_records_and_several_are_seeds(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        log.write(made_up())
    path, records = tmp_path / "metrics.jsonl", run(measured(), measured())
    found = series.load({"file": path, "text": str(path), "records": records, "seeds": [path, records, str(path)]})
    lengths = {label: [len(seed) for seed in seeds] for label, seeds in found.items()}
    assert lengths == {"file": [1], "text": [1], "records": [2], "seeds": [1, 2, 1]}


def test_what_is_no_run_is_refused() -> None:
    for wrong in ({}, [], run(measured())):
        with pytest.raises(ValueError, match="runs must map a label to each run"):
            series.load(wrong)
    for empty in ([], [[]], [run(measured()), []]):
        with pytest.raises(ValueError, match="run 'dropout' has no steps"):
            series.load({"dropout": empty})


def test_a_probe_comes_first_then_the_level_farthest_from_plain_training() -> None:
    full, core, tiny = measured(level="full"), measured(1.5, 1, 2, level="core"), measured(1.2, 1, -2, level="tiny")
    assert series.names(run([full, core, tiny], [full, core])) == ["tiny", "core", "full"]
    assert series.names(run([full, core])) == ["core", "full"]
    assert series.names(run([full, measured(probe="core", level="core"), tiny])) == ["core", "tiny", "full"]
    assert series.names(run(measured())) == ["model"]
    several = run(measured(probe="dropout"), measured(probe="dropout", level="core"))
    assert series.names(several) == ["dropout", "dropout, core"]
    assert series.names(run([])) == []
