"""What is kept is what was made, or it is made again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from partialsgd.lab.recipes.translation import kept


def counted(text: str = "made\r\nonce\n") -> tuple[list[int], Callable[[], str]]:
    calls: list[int] = []

    def make() -> str:
        calls.append(1)
        return text

    return calls, make


def test_it_is_made_once(tmp_path: Path) -> None:
    calls, make = counted()
    assert [kept.text("name", make, tmp_path / "new" / "folder") for _ in range(3)] == ["made\r\nonce\n"] * 3
    assert len(calls) == 1
    assert [file.name for file in (tmp_path / "new" / "folder").iterdir()] == ["name"]


@pytest.mark.parametrize("damage", [b"", b"x", b"\xff\xfe", None])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: bytes | None) -> None:
    calls, make = counted()
    kept.text("name", make, tmp_path)
    whole = (tmp_path / "name").read_bytes()
    flipped = whole[:-2] + b"!" + whole[-1:]
    (tmp_path / "name").write_bytes(flipped if damage is None else damage)
    assert kept.text("name", make, tmp_path) == "made\r\nonce\n"
    assert len(calls) == 2 and (tmp_path / "name").read_bytes() == whole


@pytest.mark.parametrize("size", range(0, 70, 7))
def test_a_part_of_a_file_is_not_taken_for_it(tmp_path: Path, size: int) -> None:
    calls, make = counted()
    kept.text("name", make, tmp_path)
    os.truncate(tmp_path / "name", size)
    assert kept.text("name", make, tmp_path) == "made\r\nonce\n" and len(calls) == 2


def test_a_write_that_fails_leaves_nothing_and_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    calls, make = counted()
    monkeypatch.setattr(kept.os, "replace", full)
    assert [kept.text("name", make, tmp_path) for _ in range(2)] == ["made\r\nonce\n"] * 2
    assert len(calls) == 2 and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert kept.text("name", counted()[1], tmp_path / "file") == "made\r\nonce\n"


def test_an_interruption_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kept.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kept.text("name", counted()[1], tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_default_folder_is_where_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert kept.default_folder() == tmp_path / "elsewhere" / "partialsgd"
    for none in ("", "relative/path"):  # which the standard tells to ignore
        monkeypatch.setenv("XDG_CACHE_HOME", none)
        assert kept.default_folder() == tmp_path / ".cache" / "partialsgd"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert kept.default_folder() == tmp_path / ".cache" / "partialsgd"
    kept.text("name", counted()[1])
    assert (tmp_path / ".cache" / "partialsgd" / "name").is_file()


def test_a_key_is_that_of_the_parts_and_of_their_order() -> None:
    assert kept.key("a", "bc") == kept.key("a", "bc")
    assert len({kept.key(*parts) for parts in (("a", "bc"), ("ab", "c"), ("bc", "a"), ("abc",), ("abc", ""), ())}) == 6
