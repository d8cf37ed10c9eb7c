"""A call of the command line in this process."""

from __future__ import annotations

from typing import Any

import pytest

from partialsgd.lab.cli import main
from tests.lab.cli.calls import Call


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """The exit code, what is printed and what is said of errors, in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("PARTIALSGD_TRACEBACK", raising=False)

    def called(*argv: str) -> tuple[Any, str, str]:
        try:
            code: Any = main(argv)
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return called
