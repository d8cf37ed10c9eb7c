"""Whose fault an error is, and what the command line makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from partialsgd.lab import cli
from partialsgd.lab.training.errors import AlreadyThere, NotThere, WrongCall


@pytest.mark.parametrize(
    ("error", "kind"), [(WrongCall, ValueError), (NotThere, FileNotFoundError), (AlreadyThere, FileExistsError)]
)
def test_a_wrong_call_is_also_the_error_that_a_program_expects(error: type[Exception], kind: type[Exception]) -> None:
    assert issubclass(error, WrongCall) and issubclass(error, kind)
    assert str(error("runs/a is there")) == "runs/a is there"  # as it is, whatever an OSError makes of its arguments


@pytest.mark.parametrize(
    ("error", "code"),
    [(WrongCall, 2), (NotThere, 2), (AlreadyThere, 2), (ValueError, 1), (FileNotFoundError, 1), (FileExistsError, 1)],
)
def test_a_wrong_call_ends_with_2_and_a_failure_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: type[Exception], code: int
) -> None:
    def fails(_: Any) -> Any:
        raise error("so it is")

    monkeypatch.setattr(cli, "_command", fails)
    assert cli.main(["train"]) == code
    assert capsys.readouterr().err == "partialsgd: so it is\n"
