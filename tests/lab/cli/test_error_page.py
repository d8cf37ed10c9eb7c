"""The errors of the command line that docs/errors.md answers are what a wrong call prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.cli.calls import Call, require_wrong

PAGE = Path(__file__).parents[3] / "docs" / "errors.md"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["tarin"], "there is no command 'tarin'; did you mean train?"),
        (["train", "--out", "RUN"], "RUN exists (it is not empty); give another --out"),
        (["train", "--data", "…"], "there is no folder …: give one with train.en, train.de and so on"),
        (["report", "MISSING"], "RUN is not a run directory: it does not exist"),
    ],
)
def test_the_page_shows_what_a_wrong_call_prints(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN" / "notes.txt").touch()
    assert f"| {message} |" in PAGE.read_text(encoding="utf-8")
    require_wrong(call, argv, message.replace("RUN is not", "MISSING is not").replace("…:", f"{tmp_path / '…'}:"))
