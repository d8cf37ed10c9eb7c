"""The whole page: one file, reproducible, in which everything from a run's files is text."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partialsgd.lab.page import write_page
from partialsgd.lab.page.render import render, render_page
from partialsgd.lab.page.run_files import read_runs
from partialsgd.lab.page.sections import Output, Sample
from tests.lab.page import example_runs
from tests.lab.page.example_runs import HOSTILE
from tests.lab.page.page_parts import ParsedPage

_HOSTILE_PARTS = ["<script>", "</td>", '"', "' onclick='", "&lt;", "{{ runs }}", "<!--", "]]>", "\x00", "\ud800"]
_any_text = st.one_of(
    st.text(),
    st.lists(st.sampled_from(_HOSTILE_PARTS)).map("".join),
    st.text(alphabet=st.characters(categories=["Cs", "Cc"])),
)


def test_page_is_one_file_that_loads_nothing_and_allows_only_its_script(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path)
    to = write_page([path], tmp_path / "new" / "r.html")
    assert to.read_bytes() == write_page([path], tmp_path / "again.html").read_bytes()
    assert to == tmp_path / "new" / "r.html" and [file.name for file in to.parent.iterdir()] == ["r.html"]
    text = to.read_text(encoding="utf-8")
    page = ParsedPage(text)
    assert not {"link", "img", "iframe", "object", "embed"} & set(page.tags)
    assert all(str(value).startswith("#") for name, value in page.attributes if name in ("href", "src"))
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    policy = next(value for name, value in page.attributes if name == "content" and "default-src" in str(value))
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert str(policy).startswith("default-src 'none'; style-src 'unsafe-inline'; ") and f"'sha256-{digest}'" in policy


def test_headings_are_in_order_and_references_point_to_unique_ids(tmp_path: Path) -> None:
    text = render_page(read_runs(example_runs.three(tmp_path)))
    depths = [int(depth) for depth in re.findall(r"<h(\d)>", text)]
    assert depths[0] == 1 and depths.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(depths))
    assert '<html lang="en">' in text and "<title>joint, core-alone and full-alone · partialsgd</title>" in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    targets = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)
    assert len(targets) > 6 and {a or b for a, b in targets} <= set(ids)


def test_everything_in_the_files_of_a_run_is_escaped(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "⁄")  # a directory name has no slash
    levels = [f"a{HOSTILE}", "full"]
    extras = {HOSTILE: [HOSTILE], "samples": example_runs.samples(levels, HOSTILE * 3)["samples"]}
    extras |= {"signature": HOSTILE, "table": [{HOSTILE: HOSTILE[:20]}], "note": HOSTILE}
    options: dict[str, Any] = {"method": HOSTILE, HOSTILE: HOSTILE, "levels": levels}
    hostile = example_runs.run(tmp_path, name, score=f"s{name}", extras=extras, **options)
    half = example_runs.run(tmp_path, f"{name} half", levels=levels, ends=False)
    harmless = [example_runs.run(tmp_path, name) for name in ("plain", "other")]
    harmless_half = example_runs.run(tmp_path, "half", ends=False)
    expected = ParsedPage(render_page(read_runs([*harmless, harmless_half])))
    page = ParsedPage(render_page(read_runs([hostile, half, harmless[0]])))
    assert set(page.tags) <= {*expected.tags, "h4"} and page.tags.count("script") == 1
    assert {name for name, _ in page.attributes} <= {name for name, _ in expected.attributes}
    assert sum(HOSTILE in text for text in page.texts) > 10


@given(_any_text)
@settings(max_examples=50)
def test_any_text_is_shown_as_it_is_without_characters_that_html_cannot_hold(text: str) -> None:
    sample = Sample([(text, text)], [(text, text)])
    table = {"head": [text, text], "rows": [[text, text]]}
    outputs = [Output(text, [sample] * 7, [(text, text), (text, [text]), (text, table)])]
    page = ParsedPage(render("outputs", [], outputs=outputs))
    assert not {"script", "img", "!--"} & set(page.tags)
    assert {name for name, _ in page.attributes} <= {"id", "class", "aria-label", "tabindex", "role", "scope"}
    readable = text.encode("utf-8", "replace").decode()
    shown = "".join("\ufffd" if ord(c) in {*range(32), 127} - {9, 10, 13} else c for c in readable)
    assert not shown or page.texts.count(shown) >= 20


def test_page_takes_the_place_of_a_page_and_of_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, to = example_runs.run(tmp_path), tmp_path / "r.html"
    to.write_text("somebody's page")
    with pytest.raises(FileExistsError, match=r"r\.html exists and is not a page of `partialsgd report`; give another"):
        write_page([path], to)
    assert to.read_text() == "somebody's page"
    to.unlink()
    old = write_page([path], to).read_bytes()
    example_runs.write_steps(path, [])

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_page([path], to)
    with pytest.raises(IsADirectoryError, match=r"is a directory; give the file to write, for example .*report\.html"):
        write_page([path], tmp_path)
    assert to.read_bytes() == old and sorted(file.name for file in tmp_path.iterdir()) == ["joint", "r.html"]
    monkeypatch.undo()
    assert write_page([path], to).read_bytes() != old


def test_error_without_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "partialsgd.logging.figures.find_spec", lambda name: None if name == "matplotlib" else find_spec(name)
    )
    with pytest.raises(ImportError, match=r"matplotlib is needed: pip install .*\[lab\]"):
        write_page([example_runs.run(tmp_path)], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
