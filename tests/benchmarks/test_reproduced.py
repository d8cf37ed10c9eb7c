"""What is stored of a reproduction, and the pages that are written from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.plans import Asked
from tests.lab.reproduce.made import look, run

from benchmarks import reproduced
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.reproduce import experiment, figures, numbers
from partialsgd.lab.training.errors import AlreadyThere

ABOUT: dict[str, Any] = {
    "name": "table3",
    "asked": {"scale": "laptop", "data": "cifar"},
    "order": 1,
    "says": "Table 3 on a part of CIFAR-10",
    "command": "partialsgd reproduce table3",
    "commit": "abc",
    "data": "Ten thousand images.",
    "machine": "Two cores.",
    "note": "",
}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    folder = Folder(tmp_path / "table3-laptop")
    for seed in (0, 1):
        settings = Images(data=str(tmp_path / "secret" / "cifar"), seed=seed)
        looks = [look(core=0.3, full=0.4), look(core=0.5, full=0.6 + seed / 10)]
        run(folder.run("alternating", seed), looks, {"core": 0.5, "full": 0.6 + seed / 10}, settings=settings)
    unfinished = run(folder.run("slimmable", 0), [look(core=0.3, full=0.4)], {"core": 0.3, "full": 0.4})
    (unfinished / "summary.json").unlink()
    gone = run(folder.path / "grid" / "alternating" / "lr0.7-warm0", [], None, settings=Images(epochs=2))
    (gone / "metrics.jsonl").unlink()  # in its first step
    (gone / "failed.json").write_text(json.dumps({"error": f"the loss is nan. What to try: less. It is in {gone}"}))
    summary = folder.run("alternating", 0) / "summary.json"
    told = json.loads(summary.read_text())
    told["versions"] = {"torch": "9.9"}
    told["extras"]["samples"] = [{"source": "a sentence of somebody"}]
    summary.write_text(json.dumps(told))
    return folder.path


def test_no_place_and_no_text_is_stored(made: Path, tmp_path: Path) -> None:
    to = reproduced.store(made, ABOUT, tmp_path / "stored")
    texts = [path.read_text() for path in to.rglob("*") if path.is_file()]
    assert not [text for text in texts if str(tmp_path) in text or "somebody" in text]
    assert {path.parent.name for path in to.rglob("config.json")} == {"seed0", "seed1", "lr0.7-warm0"}
    (gone,) = to.rglob("failed.json")
    assert json.loads(gone.read_text()) == {"error": "the loss is nan"}
    assert not (to / "rows" / "slimmable").exists()  # it is not at its end


def test_what_is_stored_stays_where_there_is_nothing_to_store(made: Path, tmp_path: Path) -> None:
    to = reproduced.store(made, ABOUT, tmp_path / "stored")
    before = sorted(tmp_path.rglob("*"))
    for nothing in (tmp_path / "not there" / made.name, tmp_path / "stored"):
        with pytest.raises(SystemExit, match="has no finished run"):
            reproduced.store(nothing, ABOUT, tmp_path / "stored")
    assert sorted(tmp_path.rglob("*")) == before and (to / "about.json").exists()


def test_a_reproduction_is_stored_under_its_own_name(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    assert reproduced.store(Path("."), ABOUT, tmp_path / "stored") == tmp_path / "stored" / made.name
    again = reproduced.store(Path("."), ABOUT, tmp_path / "stored")
    assert sorted(path.name for path in again.parent.iterdir()) == [made.name]  # in the place of the first


def test_what_is_stored_gives_the_same_numbers(made: Path, tmp_path: Path) -> None:
    to = reproduced.store(made, ABOUT, tmp_path / "stored")
    plan = experiment("table3", Asked(**ABOUT["asked"]))
    assert numbers.found(plan, Folder(to)) == numbers.found(plan, Folder(made))
    assert sum(len(path.read_bytes().splitlines()) for path in to.rglob("metrics.jsonl")) == 4  # of 40 lines


def test_a_section_says_what_was_run_and_what_came_out(made: Path, tmp_path: Path) -> None:
    reproduced.store(made, ABOUT, tmp_path / "stored")
    text = reproduced.sections(tmp_path / "stored")
    for part in (
        "Table 3 on a part of CIFAR-10",
        "partialsgd reproduce table3",
        "Commit abc",
        "2 runs",
        "65.00 (7.07)",
        "Network resnet18, 16 channels in the first stage.",  # a choice
        "Made with torch 9.9.",
    ):
        assert part in text


def test_wall_time_is_told_once_every_run_has_counted_it(made: Path, tmp_path: Path) -> None:
    for seed, wall in enumerate((1800.0, 3600.0)):
        to = reproduced.store(made, ABOUT, tmp_path / f"stored{seed}")
        assert "evaluations come on top" in reproduced.sections(to.parent)
        file = made / "rows" / "alternating" / f"seed{seed}" / "summary.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "wall": wall}))
    to = reproduced.store(made, ABOUT, tmp_path / "stored")
    assert "1.5 hours of wall time with evaluations" in reproduced.sections(to.parent)


@pytest.mark.parametrize("page", [reproduced.PAGE, reproduced.README], ids=["results", "readme"])
def test_the_pages_are_what_is_stored(page: Path) -> None:
    assert reproduced.stored()  # else there is nothing to compare
    text = page.read_text(encoding="utf-8")
    found = reproduced.sections() if page == reproduced.PAGE else reproduced.in_short()
    assert reproduced.in_place(text, found) == text


@pytest.mark.parametrize("path", sorted(reproduced.stored()), ids=lambda path: path.name)
def test_the_figures_are_what_is_stored(path: Path, tmp_path: Path) -> None:
    about = reproduced.stored()[path]
    plan, folder = reproduced.opened(path, about)
    for name, figure in figures.drawn(plan, folder, numbers.found(plan, folder)):
        pixels, vector = figures.write(figure, tmp_path, reproduced.picture(path, name))
        assert vector.read_bytes() == (reproduced.PICTURES / vector.name).read_bytes()
        now, shown = (imread(each) for each in (pixels, reproduced.PICTURES / pixels.name))
        assert now.shape == shown.shape and abs(now - shown).mean() < 1e-3  # compressed and smoothed as may be


def test_what_was_made_for_something_else_is_not_published(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "figure3-laptop")
    run(folder.run("dropout", 0), [look(full=0.4)], {"full": 0.4}, settings=Images(data="cifar", lr=7.0))
    reproduced.store(folder.path, {**ABOUT, "name": "figure3"}, tmp_path / "stored")
    with pytest.raises(AlreadyThere, match=r"other settings .*lr 7\.0 instead of"):
        reproduced.sections(tmp_path / "stored")
