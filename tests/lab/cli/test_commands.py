"""Commands on runs and methods: what they print and refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from partialsgd import methods
from partialsgd.lab.training import method_text
from tests.lab.cli.calls import Call, as_text, require_wrong


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["methods", "adma"], "there is no method 'adma'"),
        (["evaluate"], "RUN"),
        (["evaluate", "runs", "--split", "train"], "--split"),
    ],
    ids=as_text,
)
def test_a_wrong_call_names_what_is_wrong(call: Call, argv: list[str], message: str) -> None:
    require_wrong(call, argv, message)


def test_a_directory_that_is_no_run_is_named(call: Call, tmp_path: Path) -> None:
    require_wrong(call, ["evaluate", str(tmp_path)], f"{tmp_path} is not a run")


def test_methods_are_listed_with_their_line(call: Call) -> None:
    _, out, _ = call("methods")
    assert max(map(len, out.splitlines())) <= 80
    for name, summary in methods.SUMMARIES.items():
        assert f"{name} {summary}" in re.sub(r"\s+", " ", out)


def test_one_method_is_told_as_wide_as_the_terminal(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    long = max(methods.SUMMARIES, key=lambda name: len(method_text.signature(name)))
    assert call("methods", long) == (0, method_text.describe_method(long, 80) + "\n", "")
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = call("methods", long)
    assert out == method_text.describe_method(long, 200) + "\n" != method_text.describe_method(long, 80) + "\n"
