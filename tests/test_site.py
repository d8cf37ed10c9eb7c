"""The documentation site: every page is in its menu, every public name has a page, and it builds without a warning."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import partialsgd

ROOT = Path(__file__).parents[1]
SECTIONS = ["Start", "Guides", "Methods", "Criteria", "Reference", "Results", "Design"]


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    """docs/conf.py, imported as Sphinx does it."""
    spec = importlib.util.spec_from_file_location("site_conf", ROOT / "docs" / "conf.py")
    assert spec is not None and spec.loader is not None
    module, path = importlib.util.module_from_spec(spec), list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = path
    return module


def test_every_page_is_in_the_menu_once_and_exists(conf: ModuleType) -> None:
    menu = conf.menu((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert re.findall(r"^:caption: (.+)$", menu, re.MULTILINE) == SECTIONS
    entries = re.findall(r"^(?:.+ <)?/([\w/.]+)>?$", menu, re.MULTILINE)
    assert len(entries) == len(set(entries))
    assert all((ROOT / entry).is_file() for entry in entries)
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/notebooks/*.ipynb")]
    assert {str(page.relative_to(ROOT)) for page in pages} - set(entries) == {"docs/index.md"}


def test_a_page_that_the_index_does_not_name_is_put_into_the_guides(conf: ModuleType) -> None:
    menu = conf.menu("# x\n\n## Guides\n\n- [Nested](nested.md): text\n\n## Design\n\n- [Design](design.md)\n")
    guides, design = menu.split(":caption: Design")
    assert "Nested </docs/nested.md>" in guides and "\n/docs/export.md\n" in guides
    assert "Design </docs/design.md>" in design and "export" not in design


def test_every_public_name_has_a_page(conf: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "gone.rst").write_text("a name that is not public any more")
    conf.api_pages.write(tmp_path)
    names = {*partialsgd.__all__, "testing", *conf.api_pages.MODULES_BESIDE_ALL} - {"__version__"}
    assert {page.stem for page in tmp_path.iterdir()} == names
    assert ".. autofunction:: sandwich" in (tmp_path / "methods.rst").read_text(encoding="utf-8")
    assert all(f"- [{name}](api/{name}.rst): " in conf.api_pages.listing() for name in names)


def test_docstrings_are_read_as_markdown(conf: ModuleType) -> None:
    assert conf.markdown_to_rst("`a|b` is ‖|x| g‖, `c` not") == r"``a|b`` is ‖\|x\| g‖, ``c`` not"


@pytest.mark.slow  # about 40 seconds; the workflow of every pull request calls `make docs`
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-c", "docs", "-b", "html", "-q", "-W", "--keep-going", "."]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run([*command, tmp_path], cwd=ROOT, env=one_thread, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "docs/index.html" in (tmp_path / "index.html").read_text(encoding="utf-8")
    api, nested = (tmp_path / "docs" / name for name in ("api/PartialSGD.html", "nested.html"))
    assert "One iteration of Algorithm 1" in api.read_text(encoding="utf-8")
    assert 'href="partial_sgd.html#' in nested.read_text(encoding="utf-8")  # a link to a heading of another page
