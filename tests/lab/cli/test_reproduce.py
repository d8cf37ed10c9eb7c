"""`partialsgd reproduce`: what it is told, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from partialsgd.lab.cli.reproduce import Reproduce, _summarise
from partialsgd.lab.reproduce import EXPERIMENTS
from partialsgd.lab.reproduce.experiment import Scale
from tests.lab.cli.calls import Call, as_text, require_wrong


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["reproduce"], "NAME"),
        (["reproduce", "table7"], "table7"),
        (["reproduce", "table1a", "--scale", "huge"], "--scale"),
        (["reproduce", "table1a", "--seeds", "0"], "--seeds must be a whole number of at least 1, got 0"),
        (["reproduce", "table1a", "--epochs", "0"], "--epochs must be a whole number of at least 1, got 0"),
        (["reproduce", "table1a", "--jobs", "0"], "--jobs must be a whole number of at least 1, got 0"),
        (["reproduce", "table3", "--rows", "tabel"], "has no such row; it has alternating, slimmable"),
    ],
    ids=as_text,
)
def test_a_wrong_call_names_what_is_wrong(call: Call, argv: list[str], message: str) -> None:
    require_wrong(call, argv, message)


def test_every_experiment_and_scale_is_offered() -> None:
    hints = get_type_hints(Reproduce)
    assert list(get_args(hints["name"])) == list(EXPERIMENTS)
    assert get_args(hints["scale"]) == get_args(Scale)


def test_what_was_never_begun_is_not_shown(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "nothing"
    require_wrong(call, ["reproduce", "table3", "--show", "--out", str(out)], "nothing has no finished run of table3")
    assert not out.exists()


def test_a_reason_that_many_runs_share_is_told_once() -> None:
    said = _summarise(["a, seed 0: no file; see x", "a, seed 1: no file; see x", "b: no memory"])
    assert said == "a, seed 0 and 1 more: no file; see x; b: no memory"
