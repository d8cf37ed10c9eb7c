"""The notebooks run from top to bottom, and are stored with their outputs.

`python -m tests.test_notebooks` runs them and stores what they print and draw.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

SLOW = {"a_small_translator"}
"""It starts five processes of the command line, each of which imports torch and transformers."""

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]  # nbformat is not annotated


def run(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run every cell in a new kernel, in an empty folder, with one thread and the package of this tree."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    client = NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)


@each_notebook
def test_a_notebook_is_stored_with_its_outputs_and_a_figure(path: Path) -> None:
    notebook = read(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run it from top to bottom"
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.output_type == "error" for output in outputs)
    assert str(Path.home()) not in path.read_text(encoding="utf-8") and str(ROOT) not in path.read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] if path.stem in SLOW else [], id=path.stem) for path in NOTEBOOKS],
)
@pytest.mark.filterwarnings("default")  # the kernel is a process of its own; these would be Jupyter's
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    run(read(path), tmp_path)


def test_the_table_of_the_readme_is_that_of_the_notebook() -> None:
    notebook = read(ROOT / "docs" / "notebooks" / "from_trained_to_small.ipynb")
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    rows = re.findall(r"^(\S+) +([\d,]+) +([\d.]+)% +([\d.]+)%$", printed, re.MULTILINE)
    assert [level for level, *_ in rows] == ["1/16", "1/4", "full"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for level, size, cut, trained in rows:
        assert f"| {level} | {size} | {cut} % | {trained} % |" in readme


if __name__ == "__main__":
    import sys
    import tempfile

    for path in NOTEBOOKS:
        if len(sys.argv) == 1 or path.stem in sys.argv:
            with tempfile.TemporaryDirectory() as folder:
                notebook = read(path)
                run(notebook, Path(folder))
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)  # the time of day
            nbformat.write(notebook, path)  # type: ignore[no-untyped-call]  # nbformat is not annotated
            print(f"{path.stem}: done")
