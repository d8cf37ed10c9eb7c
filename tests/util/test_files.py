"""A file is written whole or not at all, whatever happens meanwhile, and read with a clear error."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from itertools import count
from pathlib import Path

import pytest
import torch

from partialsgd._util import files, tensor_files


class Stop(BaseException):
    """A kill that a test can place."""


SIZE = 2_000_000


def write_without_end(path: str) -> None:
    for number in count(os.getpid()):
        files.write_bytes(Path(path), bytes([number % 256]) * SIZE)


def test_a_kill_at_any_moment_leaves_one_whole_file(tmp_path: Path) -> None:
    path, draw = tmp_path / "numbers", random.Random(0)
    files.write_bytes(path, b"\0" * SIZE)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.util.test_files"])
    for kills in count(1):
        process = processes.Process(target=write_without_end, args=(str(path),))
        before = path.stat().st_mtime_ns
        process.start()
        while path.stat().st_mtime_ns == before:  # no write has arrived yet
            assert process.is_alive()
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.05))
        process.kill()
        process.join()
        data = path.read_bytes()
        assert len(data) == SIZE
        assert len(set(data)) == 1
        has_hit = len(list(tmp_path.iterdir())) > 1  # a kill hit a write and left its temporary file
        if has_hit and kills >= 8:
            break
        assert kills < 100, "no kill hit a write"


@pytest.mark.parametrize(("name", "is_new"), [("fsync", False), ("replace", False), ("second fsync", True)])
def test_a_stop_between_operations_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_new: bool
) -> None:
    path, operation = tmp_path / "text", name.removeprefix("second ")
    files.write_text(path, "old")
    real, calls = getattr(os, operation), []

    def stop(*args: object) -> object:
        calls.append(args)
        if len(calls) == 1 + name.startswith("second"):
            raise Stop
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, operation, stop)
        with pytest.raises(Stop):
            files.write_text(path, "new")
    assert path.read_text() == ("new" if is_new else "old")
    assert [file.name for file in tmp_path.iterdir()] == ["text"]


def test_a_write_makes_directories_and_replaces_links_not_their_targets(tmp_path: Path) -> None:
    theirs, path = tmp_path / "theirs", tmp_path / "a" / "b" / "text"
    theirs.write_text("theirs")
    files.write_bytes(path, b"\r\n\0")
    assert path.read_bytes() == b"\r\n\0"
    assert path.stat().st_mode == theirs.stat().st_mode
    path.unlink()
    path.symlink_to(theirs)
    files.write_text(path, "ours")
    assert (theirs.read_text(), path.read_text(), path.is_symlink()) == ("theirs", "ours", False)


def test_staged_files_arrive_together_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "new"
    with pytest.raises(Stop), files.staged(place) as stage:
        (stage / "a").write_text("1")
        raise Stop
    assert not place.exists()
    (place / files.STAGE).mkdir(parents=True)  # a kill left it
    (place / files.STAGE / "junk").touch()
    with files.staged(place) as stage:
        (stage / "a").write_text("1")
    assert [file.name for file in place.iterdir()] == ["a"]
    with pytest.raises(NotADirectoryError, match="is a file; give the directory"), files.staged(place / "a"):
        pass


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "damaged or only partly"), ("[1]", "a JSON object, .* a list"), ("[" * 99_000, "damaged or only partly")],
    ids=["half", "list", "deep"],
)
def test_read_json_names_the_file_and_the_fault(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=rf"x\.json .*{message}"):
        files.read_json(tmp_path / "x.json")
    files.write_json(tmp_path / "x.json", {"a": ["ä", 1.5]})
    assert files.read_json(tmp_path / "x.json") == {"a": ["ä", 1.5]}


def test_a_file_written_alone_leaves_nothing_else_and_removes_what_a_kill_has_left(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("a year of work")
    for leave in (lambda stage: stage.mkdir(), lambda stage: stage.touch(), lambda stage: stage.symlink_to(thesis)):
        leave(tmp_path / files.STAGE)
        files.write_alone(tmp_path / "x.json", b"{}")
        assert {file.name for file in tmp_path.iterdir()} == {"x.json", "thesis.txt"}
        leave(tmp_path / files.STAGE)
        with files.staged(tmp_path) as stage:
            (stage / "x.json").write_text("[]")
        assert {file.name for file in tmp_path.iterdir()} == {"x.json", "thesis.txt"}
    assert thesis.read_text() == "a year of work"


def test_hashes_depend_on_every_part() -> None:
    assert len({files.sha256(*parts) for parts in [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ()]}) == 5
    assert files.sha256("ä") == files.sha256("ä".encode())


def test_the_digest_of_tensors_depends_on_names_dtypes_shapes_and_the_record() -> None:
    zeros = torch.zeros(2, 2)
    each = [{"a": zeros}, {"b": zeros}, {"a": zeros.view(4)}, {"a": zeros.int()}, {"a": zeros + 1}, {}]
    each += [{"a": t} for t in (torch.tensor(1.0), torch.zeros(0, 3), torch.ones(3, dtype=torch.bfloat16))]
    assert len({tensor_files.digest({}, tensors) for tensors in each}) == len(each)
    assert tensor_files.digest({}, {"a": zeros, "b": zeros}) == tensor_files.digest({}, {"b": zeros, "a": zeros})
    assert tensor_files.digest({"x": 1}, {}) != tensor_files.digest({"x": 2}, {})
