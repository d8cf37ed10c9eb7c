"""The whole command without training: wrong calls, and the files that are written."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from partialsgd.lab.reproduce import Request, make_experiment
from partialsgd.lab.reproduce.reproduce import reproduce, show
from partialsgd.lab.reproduce.schedule import ready
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.errors import AlreadyThere, WrongCall
from tests.lab.reproduce.made import open_folder, run, valid


def quiet() -> Console:
    return Console(file=io.StringIO(), width=80)


@pytest.mark.parametrize(
    ("name", "request_", "options", "message"),
    [
        ("table3", Request(), {"rows": ["cor"]}, r"--rows cor: table3 has no such row; it has alternating, .*full"),
        ("table3", Request(), {"train": False}, r"new has no finished run of table3; without --show they are made"),
        ("table1a", Request("paper"), {}, "--scale paper is for the paper's data"),
        ("table3", Request(data="nowhere"), {}, "--data nowhere does not exist"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_started(
    name: str, request_: Request, options: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(WrongCall, match=message):
        reproduce(name, request_, out=tmp_path / "new", console=quiet(), **options)
    assert not (tmp_path / "new").exists()


def test_a_file_and_the_runs_of_another_experiment_are_no_place_for_a_table(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(WrongCall, match="out is a file; give the directory for the runs"):
        reproduce("table3", Request(), out=tmp_path / "out", console=quiet())
    run(open_folder(tmp_path).run("alternating", 0), [valid(core=0.3, full=0.4)], {"core": 0.5, "full": 0.6})
    with pytest.raises(WrongCall, match="has no finished run of figure3"):
        reproduce("figure3", Request(), out=tmp_path, train=False, console=quiet())


def test_with_show_the_table_is_of_all_rows_and_it_is_told(tmp_path: Path) -> None:
    for row in ("alternating@lr0.1-warm0", "slimmable@lr0.1-warm0"):
        (job,) = ready(make_experiment("table3", Request(seeds=1)), open_folder(tmp_path), [row])
        run(job.path, [valid(core=0.3, full=0.4)], {"core": 0.5, "full": 0.6}, settings=job.settings)
    for rows, is_told in ((["slimmable"], True), ([], False)):
        console = quiet()
        found, _ = reproduce("table3", Request(seeds=1), rows=rows, out=tmp_path, train=False, console=console)
        assert {cell["row"] for cell in found["other_cells"]} == {"alternating", "slimmable"}
        assert [cell["scores"] for cell in found["other_cells"]] == [{"0": 50.0}, {"0": 60.0}] * 2
        assert isinstance(console.file, io.StringIO)
        said = " ".join(console.file.getvalue().split())
        assert ("The table shows all finished runs: --rows selects what is trained" in said) == is_told


def test_without_matplotlib_nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partialsgd.logging.figures.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"matplotlib is needed: pip install .*\[lab\]"):
        reproduce("table3", Request("smoke"), out=tmp_path / "a", console=quiet())
    assert not (tmp_path / "a").exists()


def test_what_is_there_is_written_as_markdown_json_and_figures(tmp_path: Path) -> None:
    evaluations = [valid(core=0.3, full=0.4), valid(core=0.5, full=0.6)]
    run(open_folder(tmp_path).run("alternating", 0), evaluations, {"core": 0.5, "full": 0.6})
    console = quiet()
    found, failures = reproduce("table3", Request(), out=tmp_path, train=False, console=console)
    assert failures == []
    written = {path.name for path in tmp_path.iterdir() if path.is_file()}
    figures = {f"table3-{name}.{kind}" for name in ("size", "curves") for kind in ("png", "svg")}
    assert written == {"table3.md", "table3.json"} | figures
    assert json.loads((tmp_path / "table3.json").read_text()) == json.loads(json.dumps(found))
    page = io.StringIO()
    show(found, Console(file=page, width=80))
    assert "│ 1/2 │ core    │ alternating │ 93.94 │ 50.00 │" in page.getvalue()
    assert "Choices" in page.getvalue()


def test_two_reproductions_do_not_work_in_one_place(tmp_path: Path) -> None:
    with Run(tmp_path).locked(), pytest.raises(RuntimeError, match="another process is training"):
        reproduce("table3", Request("smoke"), out=tmp_path, console=quiet())
    assert not list(tmp_path.glob("grid"))


def test_data_that_were_changed_while_it_trained_make_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, folder = Request("smoke", seeds=1), open_folder(tmp_path)

    def train(*_: object, **__: object) -> list[str]:
        for job, digest in zip(ready(make_experiment("table3", request), folder)[:2], "ab", strict=True):
            path = run(job.path, [valid(core=0.1, full=0.1)], {"core": 0.1, "full": 0.1}, settings=job.settings)
            config = json.loads((path / "config.json").read_text())
            (path / "config.json").write_text(json.dumps({**config, "data": digest}))
        return []

    monkeypatch.setattr("partialsgd.lab.reproduce.reproduce.run_jobs", train)
    with pytest.raises(AlreadyThere, match="was trained on other data than"):
        reproduce("table3", request, out=tmp_path, console=quiet())
    assert not (tmp_path / "table3.md").exists()
