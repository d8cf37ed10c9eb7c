"""A run directory is new, or is one; one process trains it."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
import torch

from partialsgd._util import files
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.runs import run as runs
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop, recipe_tools
from tests.lab.toy import Toy

pytestmark = pytest.mark.usefixtures("toy")


def test_the_settings_come_back(tmp_path: Path) -> None:
    settings = Toy(
        out=str(tmp_path / "deep" / "a"), clip_norm=0.1, track=("tensorboard",), method="sam(rho=0.1)", threads=2
    )
    run = Run.new(settings)
    assert run.path == tmp_path / "deep" / "a"
    assert Run.open(str(run.path)) == run and run.settings == settings
    assert [file.name for file in run.path.iterdir()] == ["config.json"]
    said = json.loads((run.path / "config.json").read_text())
    assert said["recipe"] == "toy" and {"partialsgd", "torch", "accelerate"} <= said["versions"].keys()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "must hold a JSON object"),
        ('{"format": 1, "levels": ["core", "full"]}', "is not the config.json of a run"),
        ('{"recipe": "toy", "settings": []}', "is not the config.json of a run"),
        (
            '{"recipe": "cooking", "settings": {}}',
            "there is no recipe 'cooking'; the recipes are translation, images, toy",
        ),
        ('{"recipe": "tabular", "settings": {}}', r"'tabular' was removed; examples/wide_and_deep\.py shows"),
        ('{"recipe": ["toy"], "settings": {}}', r"there is no recipe \['toy'\]"),
        (
            '{"recipe": "toy", "settings": {"new_option": 1}}',
            "was edited or written by another version of partialsgd: .*new_option",
        ),
        ('{"recipe": "toy", "settings": {"epochs": 0}}', "epochs must be a whole number of at least 1, got 0"),
    ],
)
def test_what_is_no_run_is_told(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        Run.open(tmp_path)


def test_a_run_of_before_a_setting_goes_on_and_one_without_its_rate_does_not(tmp_path: Path) -> None:
    run = Run.new(Translation(out=str(tmp_path / "a")))
    path = run.path / "config.json"
    config = json.loads(path.read_text())
    for name in ("full", "state", "part_ways"):
        del config["settings"][name]
    path.write_text(json.dumps(config))
    run.require_all_settings()
    assert run.settings == Translation(out=str(run.path)), "it was trained as the defaults say"
    del config["settings"]["lr"]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="has no lr: it was edited or written by another version of partialsgd"):
        run.require_all_settings()


def test_a_summary_is_there_at_the_end_only(tmp_path: Path) -> None:
    run = Run.new(Toy(out=str(tmp_path / "a")))
    assert run.summary is None
    run.write_json("summary.json", {"steps": 3})
    assert run.summary == {"steps": 3}
    assert run.settings == Toy(out=str(run.path)), "writing one file leaves the other"
    (run.path / "summary.json").write_text('{"steps": ')
    with pytest.raises(ValueError, match=r"summary\.json cannot be read .* damaged or only partly copied"):
        _ = run.summary


def test_a_path_from_here_is_stored_as_one_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert loop.pin(Images(data="cifar")).data == str(tmp_path / "cifar")
    found = loop.pin(Translation(start="one", init="svd", teacher="../two"))
    assert isinstance(found, Translation)
    assert (found.start, found.teacher) == (str(tmp_path / "one"), str(tmp_path.parent / "two"))
    assert loop.pin(Images()).data is None and loop.pin(Images(threads=3)).threads == 3


def test_the_default_place_is_named_by_recipe_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs.time, "strftime", lambda form: "20240229-235959")
    assert Run.new(Toy()).path == Path("runs/toy-20240229-235959")


def test_what_is_there_already_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    run = Run.new(Toy(out=str(tmp_path / "a")))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").touch()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    is_run = rf"{run.path} exists \(it is a run; `partialsgd resume {run.path}` continues"
    with pytest.raises(FileExistsError, match=is_run):
        Run.new(Toy(out=str(run.path), seed=5))
    for place in ("notes", "notes/thesis.txt"):
        with pytest.raises(FileExistsError, match=r"exists \(it is not empty\); give another --out"):
            Run.new(Toy(out=str(tmp_path / place)))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("has_stage", [False, True])
def test_an_empty_directory_is_taken_and_so_is_what_a_kill_left_of_none(tmp_path: Path, has_stage: bool) -> None:
    """Killed before config.json was there, a run cannot be resumed: it must be possible to start it again."""
    if has_stage:
        (tmp_path / files.STAGE).mkdir()
        (tmp_path / files.STAGE / "config.json").write_text('{"reci')
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=f"{place} is not a run: it has no config.json, which `partialsgd"):
            Run.open(place)
    Run.new(Toy(out=str(tmp_path)))
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.new(Toy(out=str(tmp_path / "a")))
    message = f"another process is training {run.path}; wait for it, or stop it"
    with run.locked(), pytest.raises(RuntimeError, match=message), run.locked():
        raise AssertionError("it was let in")

    def refuse(file: object, how: int) -> None:
        raise OSError(os.strerror(95))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="not supported"), run.locked():
        raise AssertionError("a lock that the system does not have is not taken for another process")


def test_a_hash_is_of_numbers_types_shapes_and_places() -> None:
    x = torch.arange(6.0)
    others = [x + (torch.arange(6) == 3), x.double(), x.reshape(2, 3), x[:5]]
    assert len({recipe_tools.hash_tensors(tensor) for tensor in (x, *others)}) == 5
    assert recipe_tools.hash_tensors(x, x) != recipe_tools.hash_tensors(x) == recipe_tools.hash_tensors(x.clone())
    assert recipe_tools.hash_texts("a", "bc") != recipe_tools.hash_texts("ab", "c")


def test_other_data_and_earlier_runs_are_refused_where_they_are_read(tmp_path: Path) -> None:
    run = Run.new(Translation(out=str(tmp_path / "run"), teacher="runs/whole"), "these teacher:one start:two")
    run.require_data("these teacher:one start:two")
    run.require_data("these")  # to score a network its teacher is not needed
    with pytest.raises(ValueError, match=r"weights of the teacher are not .*; restore the run at runs/whole, or"):
        run.require_data("these teacher:three start:two")
    with pytest.raises(ValueError, match=r"weights of the start are not"):
        run.require_data("these teacher:one start:one")
    with pytest.raises(ValueError, match=r"not those that .*run started with: the files changed, or a library"):
        run.require_data("those teacher:one start:one")
    Run.new(Images(out=str(tmp_path / "old"))).require_data("any")  # a run from before has none to compare


def test_the_lock_is_not_written_through_a_link_and_keeps_what_is_in_it(tmp_path: Path) -> None:
    run = Run.new(Toy(out=str(tmp_path / "a")))
    thesis, lock = tmp_path / "thesis.txt", run.path / ".lock"
    thesis.write_text("a year of work")
    lock.symlink_to(thesis)
    with pytest.raises(OSError, match=f"{lock} is a symbolic link, and nothing is written through"), run.locked():
        raise AssertionError("it was let in")
    lock.unlink()
    lock.write_text("notes")
    with run.locked():
        assert thesis.read_text() == "a year of work" and lock.read_text() == "notes"
