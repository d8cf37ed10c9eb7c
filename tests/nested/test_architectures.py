"""Architectures of `transformers`: some often, all by `make test-all`, against the stored results."""

from __future__ import annotations

import json

import pytest

from tests.architectures import AXES, FIRST, LAST, LATER, PAGE, STORED, outcome, page

OFTEN = [("distilbert", "Width"), ("phi3", "Width"), ("gpt_neox", "Width"), ("convnext", "Width"), ("mixtral", "Width"),
         ("falcon", "Width"), ("convnext", "Depth")]  # fmt: skip


def cells() -> list[object]:
    every = [(name, axis) for name in (*FIRST, *LATER, *LAST) for axis in AXES]
    return [pytest.param(*cell, marks=() if cell in OFTEN else pytest.mark.slow) for cell in every]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "axis"), cells())
def test_an_architecture_is_nested_or_refused_as_the_table_says(name: str, axis: str) -> None:
    stored = json.loads(STORED.read_text())[name][axis]
    if stored[0] == "failed":
        pytest.xfail(stored[1])
    assert outcome(name, axis)[0] == stored[0]


def test_the_page_has_the_stored_table() -> None:
    assert page() in PAGE.read_text()
