"""Curves: which there are, how a long one is made shorter, and the words for them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from partialsgd.lab.page import curves
from partialsgd.lab.page.stored import read
from partialsgd.logging.series import Series
from tests.lab.page import made


def test_a_curve_is_named_by_its_level_and_of_several_runs_by_the_run_too(tmp_path: Path) -> None:
    runs = read(made.three(tmp_path))
    assert list(curves.training_loss(runs[:1])) == ["full", "core"]
    names = ["joint · core", "joint · full", "core-alone · core", "full-alone · full"]
    assert sorted(curves.training_loss(runs)) == sorted(names) == sorted(curves.validation(runs, "BLEU"))
    assert curves.names(runs) == names


def test_a_probe_has_a_name_among_the_curves(tmp_path: Path) -> None:
    path = made.run(tmp_path, levels=["full"], measures=False)
    lines = [made.step(t, ["full"], 4, False, "BLEU") for t in range(4)]
    lines[2]["criteria"] = [made.criteria("core", 2, probe="only('core')")]
    (path / "metrics.jsonl").write_bytes(b"".join(map(made.line, lines)))
    assert curves.names(read([path])) == ["full", "only('core'), core"]


@pytest.mark.parametrize("count", [1, 100, 101, 1000, 12_345])
def test_a_long_curve_keeps_its_mean_and_its_span(count: int) -> None:
    values = {3 * t: float(t) for t in range(count)}
    thin = curves.thinned(values)
    assert len(thin) <= curves.MOST and list(thin) == sorted(thin)
    assert thin == values if count <= curves.MOST else len(thin) > curves.MOST / 2
    assert min(thin) <= 3 * count / curves.MOST + 3 and max(thin) >= 3 * count * (1 - 2 / curves.MOST) - 3
    assert all(abs(value - t / 3) <= 1 for t, value in thin.items())


def test_the_words_say_where_a_curve_begins_ends_and_is_best() -> None:
    found = {"core": Series({0: 3.0, 5: 1.0, 9: 2.0}), "full": Series({0: math.nan})}
    assert curves.told(found, "loss") == (
        "core: loss 3 at step 0, 2 at step 9, lowest 1 at step 5. full: nothing to draw."
    )
    assert "highest 3 at step 0" in curves.told(found, "BLEU", best=max)
