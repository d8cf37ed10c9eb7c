"""A checkpoint is whole or passed over; what a kill, a flipped bit or a full disk leaves is told from a good one."""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn, optim

from partialsgd._util import files, tensor_files
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.runs.checkpoints import pack, unpack
from tests.optimizer_zoo import ALL

STATE = {
    "model": {"weight": torch.arange(12.0).reshape(3, 4)},
    "optimizers": [{"state": {0: {"step": torch.tensor(3.0)}}}],
    "best": 0.5,
}


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    """In the length of the header, in the header, in the record or in a tensor."""
    folder, whole = two(tmp_path)
    newest = checkpoints.paths(folder)[-1]
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        newest.write_bytes(flipped)
        found = checkpoints.latest(folder)
        assert found is not None and found[0] == 1, f"byte {place}: {bytes(whole[place - 20 : place + 20])!r}"


def two(folder: Path) -> tuple[Path, bytes]:
    """Two checkpoints, and the bytes of the newer."""
    for position in (1, 2):
        checkpoints.save(folder, position, {**STATE, "at": position}, keep=2)
    return folder, checkpoints.paths(folder)[-1].read_bytes()


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        (None, "it is not the checkpoint of a training"),
        ({"partialsgd.training": '{"format": 1}'}, "its sha256 is not the one"),
        ({"partialsgd.training": "[]"}, "its sha256 is not the one"),
        ({"partialsgd.training": "oh"}, "Expecting value"),
    ],
)
def test_files_of_others_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, metadata: Any, why: str
) -> None:
    save_file({"x": torch.ones(2)}, tmp_path / "0000000009.safetensors", metadata=metadata)
    assert checkpoints.latest(tmp_path) is None
    assert why in caplog.text


def test_a_half_written_one_is_named_and_is_gone_after_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """safetensors writes under a name that it draws: a kill leaves it, and only its folder tells whose it is."""
    folder, whole = two(tmp_path)
    stage = folder / files.STAGE
    stage.mkdir()
    (stage / ".tmpAbC123").write_bytes(whole[: len(whole) // 2])
    (stage / "0000000003.safetensors").write_bytes(whole[:-1])
    found = checkpoints.latest(folder)
    assert found is not None and found[0] == 2
    assert f"a checkpoint was being written when the run ended; {stage} is skipped" in caplog.text
    checkpoints.save(folder, 3, STATE, keep=2)
    assert [path.name for path in sorted(folder.iterdir())] == ["0000000002.safetensors", "0000000003.safetensors"]


def test_a_disk_that_is_full_leaves_the_ones_before_and_nothing_else(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the system refuses the same write, for everyone's CI."""
    checkpoints.save(tmp_path, 1, STATE, keep=2)
    whole = checkpoints.paths(tmp_path)[-1].read_bytes()
    code = f"""
import resource, torch
from pathlib import Path
from partialsgd.lab.runs import checkpoints
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(whole)}, {resource.RLIM_INFINITY}))
folder = Path({str(tmp_path)!r})
try:
    checkpoints.save(folder, 2, {{"weight": torch.zeros({len(whole)})}}, keep=1)
except OSError as error:
    assert error.errno == 27 and "File too large" in str(error) and str(folder) in str(error), error
else:
    raise AssertionError("it was written")
assert [path.name for path in folder.iterdir()] == ["0000000001.safetensors"]
resource.setrlimit(resource.RLIMIT_FSIZE, ({resource.RLIM_INFINITY}, {resource.RLIM_INFINITY}))
checkpoints.save(folder, 2, {{"weight": torch.zeros({len(whole)})}}, keep=1)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    found = checkpoints.latest(tmp_path)
    assert found is not None and found[0] == 2


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(NotADirectoryError, match="is a file"):
        checkpoints.save(tmp_path / "checkpoints", 1, STATE, keep=1)


Make = Callable[[Iterable[nn.Parameter]], optim.Optimizer]

MAKES: dict[str, Make] = {
    **ALL,
    "LBFGS": lambda p: optim.LBFGS(p, 0.1, max_iter=3, line_search_fn="strong_wolfe"),
    "SparseAdam": lambda p: optim.SparseAdam(p, 0.01),
    "Adam with lr a tensor": lambda p: optim.Adam(p, torch.tensor(0.01), betas=(0.8, 0.9)),
}


def same(one: Any, two: Any) -> bool:
    """The same types all the way down, and the same bits; NaN is NaN."""
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        alike = one.dtype == two.dtype and one.shape == two.shape
        return alike and one.reshape(-1).view(torch.uint8).equal(two.reshape(-1).view(torch.uint8))
    if isinstance(one, dict):
        return [*one] == [*two] and all(
            type(a) is type(b) and same(one[a], two[b]) for a, b in zip(one, two, strict=True)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return repr(one) == repr(two)  # so that -0.0 is not 0.0, and NaN is NaN


@pytest.mark.parametrize("name", MAKES)
def test_the_state_of_every_optimizer_comes_back_from_the_disk_and_goes_on_to_the_bit(
    name: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(5, 3)
    optimizer = MAKES[name](model.parameters())
    for _ in range(3):
        step(model, optimizer, name)
    state = optimizer.state_dict()
    checkpoints.save(tmp_path, 3, state, keep=1)
    found = checkpoints.latest(tmp_path)
    assert found is not None and found[0] == 3 and same(found[1], state)

    other = copy.deepcopy(model)
    fresh = MAKES[name](other.parameters())
    fresh.load_state_dict(found[1])
    batch = torch.get_rng_state()
    step(model, optimizer, name)
    torch.set_rng_state(batch)
    step(other, fresh, name)
    assert same(dict(other.state_dict()), dict(model.state_dict()))


def step(model: nn.Module, optimizer: optim.Optimizer, name: str) -> None:
    x = torch.randint(5, (4,))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.embedding(x, model.weight, sparse=name == "SparseAdam").square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


VALUES: dict[str, Any] = {
    "plain": [None, True, 0, -(2**70), "tensor", "", -0.0, math.nan, math.inf, -math.inf, 5e-324, 0.1 + 0.2],
    "nested": [(), [], {}, (1, [2, (3,)], {"a": (4,)})],
    "keys": {0: "int", "0": "text", True: "a second key 1 would be"} | {1: "int"},
    "spelled like the format": {"tensor": "a name that says something else here", "dict": [], "tuple": ()},
    "tensors": [torch.tensor(3), torch.tensor(True), torch.tensor([math.nan, math.inf, -0.0]), torch.zeros(0, 4)],
    "dtypes": [torch.ones(3, dtype=torch.bfloat16), torch.get_rng_state(), torch.arange(6)],
    "a.b": torch.tensor(1),
    "a": {"b": torch.tensor(2)},
    0: torch.tensor(3),
    "0": torch.tensor(4),
    "0.": [torch.tensor(5)],
}


def test_values_of_every_kind_come_back_and_stay_as_they_were(tmp_path: Path) -> None:
    """Also tensors whose paths are spelled alike."""
    before = copy.deepcopy(VALUES)
    checkpoints.save(tmp_path, 0, VALUES, keep=1)
    found = checkpoints.latest(tmp_path)
    assert found is not None and same(found[1], VALUES) and same(VALUES, before)
    turned = torch.arange(6).reshape(2, 3).T
    assert torch.equal(unpack(*pack(turned)), turned)


def test_what_is_packed_does_not_follow_the_training() -> None:
    weight = torch.zeros(3)
    views = {"whole": weight, "part": weight[:2], "again": weight}  # safetensors refuses shared memory
    said, tensors = pack(views)
    weight.fill_(7)
    assert json.loads(json.dumps(said)) == said
    assert all(not tensor.any() for tensor in tensors.values())
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == 3


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"optimizer": [1, {2}]}, r"state\.optimizer\.1 is a set, which a checkpoint cannot hold: nothing is pickled"),
        ({"a": same}, r"state\.a is a function"),
        ({"a": {(1, 2): 3}}, r"state\.a has the key \(1, 2\); a checkpoint holds only"),
        ({0.5: 1}, r"state has the key 0\.5"),
    ],
)
def test_what_would_have_to_be_pickled_is_refused_with_its_place(tmp_path: Path, state: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        checkpoints.save(tmp_path / "checkpoints", 1, state, keep=1)
    assert not (tmp_path / "checkpoints").exists()


def test_the_newest_are_kept_and_the_newest_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    assert checkpoints.latest(folder) is None
    for position in (5, 9, 10, 100, 1_000_000, 1_000_000):  # the last is written again in its place
        checkpoints.save(folder, position, {"at": position}, keep=3)
        assert checkpoints.latest(folder) == (position, {"at": position})
    names = [file.name for file in sorted(folder.iterdir())]
    assert names == ["0000000010.safetensors", "0000000100.safetensors", "0001000000.safetensors"]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_damaged_ones_ahead_do_not_take_the_place_of_new_ones(tmp_path: Path, keep: int) -> None:
    """A run that went back behind damaged checkpoints must not lose what it writes then."""
    for position in (8, 9):
        checkpoints.save(tmp_path, position, {"at": position}, keep=2)
        newest = checkpoints.paths(tmp_path)[-1]
        newest.write_bytes(newest.read_bytes()[:20])
    for position in (3, 6):
        checkpoints.save(tmp_path, position, {"at": position}, keep=keep)
        assert checkpoints.latest(tmp_path) == (position, {"at": position})
    assert [int(path.stem) for path in checkpoints.paths(tmp_path)] == [3, 6][-keep:]


def test_a_file_cut_at_any_byte_is_passed_over_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, whole = two(tmp_path)
    older, newest = checkpoints.paths(folder)
    for length in [0, 1, 7, 8, 9, len(whole) - 1, *random.Random(0).sample(range(len(whole)), 40)]:
        newest.write_bytes(whole[:length])
        caplog.clear()
        found = checkpoints.latest(folder)
        assert found is not None and found[0] == 1, length
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith(f"the checkpoint {newest} is skipped: ")
    older.write_bytes(whole[:100])
    assert checkpoints.latest(folder) is None, "when all are damaged there is none"


def test_a_checkpoint_that_cannot_be_read_or_is_newer_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    folder, whole = two(tmp_path)
    newest = checkpoints.paths(folder)[-1]
    tensor_files.write_checked(newest, "partialsgd.training", {"format": 2, "position": 2, "state": {}}, {})
    with pytest.raises(ValueError, match=f"the checkpoint {newest} has format 2, .*left as it is: resume it with the"):
        checkpoints.latest(folder)
    newest.unlink()
    newest.mkdir()
    message = rf"the checkpoint {newest} cannot be read \(Is a directory\); the run was left as it is: make the file"
    with pytest.raises(OSError, match=message):
        checkpoints.latest(folder)
    newest.rmdir()
    newest.write_bytes(whole)
    free = os.open(newest, os.O_RDONLY)
    os.close(free)
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, most))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            checkpoints.latest(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    assert checkpoints.latest(folder) is not None
    (tmp_path / "gone").symlink_to(tmp_path / "a disk that is not mounted")
    with pytest.raises(FileNotFoundError):
        checkpoints.latest(tmp_path / "gone")


def test_files_with_other_names_are_neither_read_nor_deleted(tmp_path: Path) -> None:
    names = ("mine.safetensors", "9.safetensors", "0000000009.safetensors.bak", "x0000000009.safetensors", "notes.txt")
    for name in names:
        (tmp_path / name).write_text("not a checkpoint")
    for position in (1, 2):
        checkpoints.save(tmp_path, position, STATE, keep=1)
    assert {path.name for path in tmp_path.iterdir()} == {*names, "0000000002.safetensors"}
    found = checkpoints.latest(tmp_path)
    assert found is not None and found[0] == 2
    assert {(tmp_path / name).read_text() for name in names} == {"not a checkpoint"}
