"""Commands that use what was trained: what they read, print and refuse."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from partialsgd import methods
from partialsgd.lab.recipes import RECIPES
from partialsgd.lab.runs import use_run as using
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import registry
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
    require_wrong(call, ["evaluate", str(tmp_path)], f"{tmp_path} is no run")


def test_methods_are_listed_with_their_line(call: Call) -> None:
    _, out, _ = call("methods")
    assert max(map(len, out.splitlines())) <= 80
    for name, summary in methods.SUMMARIES.items():
        assert f"{name} {summary}" in re.sub(r"\s+", " ", out)


def test_one_method_is_told_as_wide_as_the_terminal(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    long = max(methods.SUMMARIES, key=lambda name: len(registry.signature(name)))
    assert call("methods", long) == (0, registry.told(long, 80) + "\n", "")
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = call("methods", long)
    assert out == registry.told(long, 200) + "\n" != registry.told(long, 80) + "\n"


Told = Callable[[bytes], list[Any]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """Bytes for the standard input; what `translate` is asked for is noted, and every line comes back in capitals."""
    asked: list[Any] = []

    def translate(run: Run, lines: Iterable[list[str]], *args: Any, **options: Any) -> Iterator[str]:
        asked.append((run.path, args, options))
        for several in lines:
            yield from (line.upper() for line in several)

    def given(data: bytes) -> list[Any]:
        read, write = os.pipe()
        os.write(write, data)
        os.close(write)
        streams.append(os.fdopen(read, encoding="ascii"))
        monkeypatch.setattr(sys, "stdin", streams[-1])
        return asked

    streams: list[Any] = []
    monkeypatch.setattr(using, "translate", translate)
    yield given
    for stream in streams:
        stream.close()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.new(RECIPES["translation"](out=str(tmp_path / "run")))


def test_translate_is_a_line_in_and_a_line_out_by_the_full_level(call: Call, told: Told, run: Run) -> None:
    asked = told(b"one\n\ntwo")
    assert call("translate", str(run.path)) == (0, "ONE\n\nTWO\n", "")
    assert asked == [(run.path, ("full",), {"beam": None, "checkpoint": "best"})]


def test_text_is_utf_8_whatever_the_terminal_says(
    call: Call, told: Told, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    told("fünf\n".encode())
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert call("translate", str(run.path))[0] == 0
    assert written.getvalue() == "FÜNF\n".encode()


def test_what_is_not_utf_8_is_refused_by_name(call: Call, told: Told, run: Run) -> None:
    told("fünf\n".encode("latin-1"))
    code, out, err = call("translate", str(run.path))
    assert (code, out) == (1, "") and err.startswith("partialsgd: the standard input is not UTF-8: ")
