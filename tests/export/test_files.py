"""Files are whole or refused, whatever happens while they are written, and afterwards."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from partialsgd import Width, export, nest
from partialsgd._util import tensor_files
from partialsgd.export import files
from tests.export import saving

WRITTEN = {"model.safetensors", "config.json"}


class Stop(BaseException):
    """A kill that a test can place."""


def tiny(directory: Path, loss: float = 1.5) -> Path:
    nested = nest(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), Width(1 / 2))
    export.save(nested, directory, metrics={"core": {"loss": loss}})
    return directory


def loss_in(directory: Path) -> float:
    return float(files.read(directory)[0]["metrics"]["core"]["loss"])


def test_a_kill_at_any_moment_leaves_one_whole_checkpoint(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.export.saving"])
    draw, kept, leftovers = random.Random(0), set(), 0
    export.save(saving.nested_model(0), tmp_path, metrics={"core": {"number": 0}})
    for _ in range(12):
        process = processes.Process(target=saving.without_end, args=(str(tmp_path),))
        before = (tmp_path / "model.safetensors").stat().st_mtime_ns
        process.start()
        while (tmp_path / "model.safetensors").stat().st_mtime_ns == before:  # it has not begun
            assert process.is_alive()
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.05))
        process.kill()
        process.join()
        assert process.exitcode == -9
        leftovers += bool({file.name for file in tmp_path.iterdir()} - WRITTEN)
        nested = export.load(tmp_path, saving.build())
        record, _ = files.read(tmp_path)
        assert saving.numbers(nested) == {record["metrics"]["core"]["number"]}
        kept |= saving.numbers(nested)
    assert len(kept) > 1  # new ones did arrive
    assert leftovers  # some kill hit a write, else this test shows nothing
    export.save(saving.nested_model(-1), tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == WRITTEN


@pytest.mark.parametrize("name", ["replace", "unlink", "fsync"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_stop_between_any_two_operations_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, at: int
) -> None:
    tiny(tmp_path, loss=1.0)
    owner = Path if name == "unlink" else os
    real, calls = getattr(owner, name), []

    def stopping(*args: object, **kwargs: object) -> object:
        calls.append(args)
        if len(calls) == at + 1:
            raise Stop
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stopping)
        try:
            tiny(tmp_path, loss=2.0)
            stopped = False
        except Stop:
            stopped = True
    assert stopped == (at < {"replace": 2, "unlink": 2, "fsync": 3}[name])
    is_new = not stopped or (name == "replace" and at == 1) or (name == "fsync" and at == 2)
    assert loss_in(tmp_path) == (2.0 if is_new else 1.0)


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(tensor_files, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        tiny(tmp_path / "runs" / "new")
    assert not (tmp_path / "runs" / "new").exists()


def test_every_edited_byte_and_every_truncation_is_noticed(tmp_path: Path) -> None:
    tiny(tmp_path)
    (tmp_path / "config.json").unlink()  # the weights alone must tell
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"damaged|has changed since|not a saved nested|reads format"):
            files.read(tmp_path)
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model\.safetensors is truncated or damaged .* take another copy"):
            files.read(tmp_path)
    path.write_bytes(whole)
    assert loss_in(tmp_path) == 1.5


def test_config_json_may_be_missing_but_must_not_say_otherwise(tmp_path: Path) -> None:
    path = tiny(tmp_path) / "config.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record))  # other spaces, the same facts
    assert loss_in(tmp_path) == 1.5
    for text in (json.dumps({**record, "norms": "shared"}), "{", ""):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"does not belong to model\.safetensors.*remove it to go on"):
            files.read(tmp_path)
    path.unlink()
    assert loss_in(tmp_path) == 1.5


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors does not exist; save"):
        files.read(tmp_path)
    for metadata in (None, {"format": "pt"}):
        save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors", metadata=metadata)
        with pytest.raises(ValueError, match="not a saved nested model"):
            files.read(tmp_path)
    with pytest.raises(ValueError, match="holds another model and would be lost"):
        tiny(tmp_path)
    assert not files.is_nested_model(tmp_path)


def test_a_later_format_names_the_version_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files, "FORMAT", 2)
        tiny(tmp_path)
    with pytest.raises(ValueError, match=r"has format 2, and this partialsgd reads format 1; install partialsgd \d"):
        files.read(tmp_path)


class Canary:
    def __reduce__(self) -> object:
        return (os.mkdir, ("unpickled",))


@pytest.mark.parametrize("write", [pickle.dump, torch.save])
def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object) -> None:
    monkeypatch.chdir(tmp_path)
    with open("model.safetensors", "wb") as file:
        write(Canary(), file)
    with pytest.raises(ValueError, match="truncated or damaged"):
        export.load(tmp_path, nn.Linear(1, 1))
    assert not Path("unpickled").exists()


def test_others_may_read_what_they_may_read_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "any").touch()
    tiny(tmp_path)
    assert len({file.stat().st_mode for file in tmp_path.iterdir()}) == 1
