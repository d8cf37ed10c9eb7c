"""The documents are true: their code runs, their tables are the registry's, their links and paths exist.

`python -m tests.test_docs` writes the index of methods anew.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import partialsgd
from partialsgd import methods

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
INDEX = DOCS / "methods" / "README.md"
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *sorted(DOCS.rglob("*.md"))]
ITEMS = 92

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: .+ -->\n\Z")
_RAISES = re.compile(r"<!-- raises -->\n\Z")
_MESSAGE = re.compile(r"\n*```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:src|tests|docs|examples|benchmarks|studies)/[\w./]*)(?:::(\w+))?`")
_ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
_BEGIN, _END = "<!-- written by `python -m tests.test_docs` -->", "<!-- end -->"

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@dataclass(frozen=True)
class Block:
    code: str
    line: int
    is_run: bool
    error: str | None = None
    """The error that the block must end with, as the page prints it."""


def blocks(page: Path) -> Iterator[Block]:
    """The Python of a page; `<!-- not run: reason -->` on the line before a block leaves it out.

    `<!-- raises -->` there says that the block ends with the error that the ```text block after it shows.
    """
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        if found[1] == "python":
            before = text[: found.start()]
            message = _MESSAGE.match(text, found.end()) if _RAISES.search(before) else None
            error = message[1] if message else None
            yield Block(found[2], before.count("\n") + 1, _NOT_RUN.search(before) is None, error)


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def index() -> str:
    rows = [f"| [`{name}`]({name}.md) | {summary} |" for name, summary in sorted(methods.SUMMARIES.items())]
    return "\n".join(["| method | what it is |", "| --- | --- |", *rows])


def anchors(page: Path) -> set[str]:
    """The headings as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def require_error(call: Callable[[], None], printed: str) -> None:
    """The call raises what the page prints; line breaks do not count, and … stands for any words."""
    with pytest.raises(Exception) as raised:
        call()
    words = [".*" if word == "…" else re.escape(word) for word in printed.split()]
    message = " ".join(f"{raised.type.__name__}: {raised.value}".split())
    assert re.fullmatch(" ".join(words), message), f"it says: {message}"


@each_page
@pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.`:FutureWarning",  # torch 2.13 has deprecated what Lightning 2.6 uses
    "ignore:The '.*_dataloader' does not have many workers:UserWarning",  # Lightning, on three cores or more
)
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    with torch.random.fork_rng():
        for block in blocks(page):
            if block.is_run:
                padded = "\n" * block.line + block.code  # so that a traceback names the line of the page
                code = compile(padded, str(page), "exec")
                if block.error is None:
                    exec(code, namespace)
                else:
                    require_error(lambda code=code: exec(code, namespace), block.error)


def test_few_blocks_are_left_out() -> None:
    left_out = [block for page in PAGES for block in blocks(page) if not block.is_run]
    assert len(left_out) <= 3


def test_the_method_of_the_tutorial_goes_through_the_contract_suite(tmp_path: Path) -> None:
    code = "\n".join(block.code for block in blocks(DOCS / "write_your_own_method.md") if block.is_run)
    (tmp_path / "test_tutorial.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "-W", "error"]
    command += [
        "-k",
        "mlp and adamw and float32 or batchnorm and sgd and float32 or law_8 or law_9",
        "test_tutorial.py",
    ]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=one_thread, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "failed" not in done.stdout and "skipped" not in done.stdout


def test_every_method_has_one_page_and_a_line_in_the_index() -> None:
    assert {page.stem for page in INDEX.parent.glob("*.md")} - {"README"} == set(methods.SUMMARIES)
    assert index() in INDEX.read_text(encoding="utf-8"), f"run `python -m tests.test_docs`, or write:\n{index()}"


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if link.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@each_page
def test_files_and_tests_that_are_named_exist(page: Path) -> None:
    for path, test in _PATH.findall(prose(page)):
        assert (ROOT / path).exists(), f"{path} does not exist"
        assert not test or f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {test}"


def test_every_item_of_the_paper_has_a_place_or_says_that_it_has_none() -> None:
    rows = _ROW.findall((DOCS / "paper.md").read_text(encoding="utf-8"))
    assert [int(number) for number, _, _ in rows] == list(range(1, ITEMS + 1))
    for number, _, where in rows:
        assert _PATH.search(where) or "not done: " in where, (
            f"item {number} says neither where it is nor that it is not"
        )


def test_the_version_is_said_alike() -> None:
    version = partialsgd.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def write_index() -> None:
    text = INDEX.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    INDEX.write_text(f"{before}{_BEGIN}\n{index()}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write_index()
