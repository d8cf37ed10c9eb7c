"""`export --to` writes into a directory that is empty or its own, and leaves everything else as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partialsgd._util import files
from partialsgd.lab.cli import main
from partialsgd.lab.runs import export_run
from partialsgd.lab.runs.export_run import export_level
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.errors import AlreadyThere
from tests.lab.made_runs import made_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    return [made_run(folder / name, "images", seed=seed) for seed, name in enumerate(("run", "other"))]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_an_export_is_replaced_by_the_same_level_of_the_same_run_alone(runs: list[Run], tmp_path: Path) -> None:
    run, other = runs
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / files.STAGE).mkdir()  # a kill left it
    export_level(run, "core", to=tmp_path / "to")
    first = contents(tmp_path / "to")
    for wrong_run, level in ((run, "full"), (other, "core")):
        with pytest.raises(
            AlreadyThere, match=r"holds the level 'core' of (this|another) run; give an empty directory"
        ):
            export_level(wrong_run, level, to=tmp_path / "to")
        assert contents(tmp_path / "to") == first
    export_level(run, "core", to=tmp_path / "to")
    assert contents(tmp_path / "to") == first
    (tmp_path / "to" / "notes.txt").write_text("mine")
    export_level(other, "full", to=tmp_path / "to", format="onnx", overwrite=True)
    after = contents(tmp_path / "to")
    assert "model.safetensors" not in after and after["notes.txt"] == b"mine", "its own files go, and no others"
    assert after["README.md"].startswith(b"# images: full") and json.loads(after["export.json"])["level"] == "full"


def test_files_of_the_user_are_overwritten_only_on_demand(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("my project")
    call = ["export", str(runs[0].path), "--to", str(tmp_path)]
    assert main(call) == 2
    assert (
        "is not empty, and has no export.json of ours (README.md); give an empty directory" in capsys.readouterr().err
    )
    assert contents(tmp_path) == {"README.md": b"my project"}
    assert main([*call, "--overwrite"]) == 0
    assert (tmp_path / "README.md").read_text().startswith("# images: core")


@pytest.mark.parametrize("moment", ["readme", "move"])
def test_a_failure_leaves_no_readme_beside_weights_of_another_level_and_the_same_call_goes_on(
    moment: str, runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_level(runs[0], "core", to=tmp_path / "to")
    before = contents(tmp_path / "to")
    with monkeypatch.context() as patch:
        if moment == "readme":  # the last file that is made
            patch.setattr(export_run, "_readme", lambda *_: 1 / 0)
        else:
            weights = [tmp_path / name / "model.safetensors" for name in ("to", "new")]
            patch.setattr(files.os, "replace", lambda a, b: 1 / 0 if b in weights else a.rename(b))
        with pytest.raises(ZeroDivisionError):
            export_level(runs[0], "full", to=tmp_path / "to", overwrite=True)
        with pytest.raises(ZeroDivisionError):
            export_level(runs[0], "full", to=tmp_path / "new")
    if moment == "readme":
        assert contents(tmp_path / "to") == before and not (tmp_path / "new").exists()
    else:
        assert not (tmp_path / "to" / "README.md").exists() and not (tmp_path / "new" / "README.md").exists()
    for name in ("to", "new"):
        export_level(runs[0], "full", to=tmp_path / name, overwrite=moment == "readme")
    assert contents(tmp_path / "to") == contents(tmp_path / "new")


def test_a_file_of_the_same_name_that_no_export_wrote_names_nothing_to_delete(tmp_path: Path) -> None:
    for text in ('{"files": ["thesis.txt"]}', "[1]", "not JSON"):
        tmp_path.joinpath("export.json").write_text(text)
        assert export_run._record_of(tmp_path) == {}
