"""The toy as a recipe and calls of the command line, for the tests that ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from partialsgd.lab.cli import main
from tests.lab import toy as toys
from tests.lab.cli.calls import Call


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokenizers of tests are not kept where the user's are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def toy() -> Iterator[None]:
    """accelerate keeps one state for a process, which other tests must not find."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    toys.register()
    yield
    toys.unregister()
    AcceleratorState._reset_state(reset_partial_state=True)


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
