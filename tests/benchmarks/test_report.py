"""What is stored is what is shown, and a baseline needs nothing of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import NAMES, chosen
from benchmarks.figures import Figure, Record, stored
from benchmarks.harness import Estimate

from benchmarks import report


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (Estimate(0.9, 0.8, 1.0), "met"),
        (Estimate(0.9, 0.8, 1.1), "met ~"),
        (Estimate(1.1, 0.9, 1.2), "missed ~"),
        (Estimate(1.2, 1.1, 1.3), "missed"),
    ],
)
def test_a_verdict_says_when_another_run_may_say_otherwise(measured: Estimate, verdict: str) -> None:
    assert Figure("x", measured, 1.0).verdict == verdict
    assert Figure("x", measured).verdict == "reported"


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    figure = Figure("a ÷ b", Estimate(1.5, 1.4, 1.6), 2.0, medians={"a": 3.0, "b": 2.0})
    for threads in (1, 2):
        record = Record("speed", [figure], threads, 21, None, "2030-01-02")
        record.save(tmp_path / "results.jsonl")
        assert stored(tmp_path / "results.jsonl")["speed", threads] == record
    assert len(stored(tmp_path / "results.jsonl")) == 2


def test_the_page_shows_what_is_stored() -> None:
    page = report.README.read_text(encoding="utf-8")
    assert page == report.in_place(page, report.tables(NAMES)), "run python -m benchmarks --write"


def test_words_choose_benchmarks_by_name_and_by_summary() -> None:
    assert chosen([]) == list(NAMES)
    assert chosen(["plain"]) == ["plain"]
    assert chosen(["update", "sam"]) == ["whole_tensor", "element_masks", "two_gradients", "memory"]
    with pytest.raises(SystemExit, match="no benchmark is about 'speed'"):
        chosen(["plain", "speed"])


def test_baselines_run_without_our_package() -> None:
    script = """
import sys
sys.modules["partialsgd"] = None  # importing it is an error now
from benchmarks import baselines
training = baselines.mlp(batch=2, width=8, depth=2)
training.step()
baselines.after_backward(baselines.only_these(training, training.parameters[:1]))()
baselines.many_small_tensors(4).step()
assert all(p.grad is None for p in training.parameters)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
