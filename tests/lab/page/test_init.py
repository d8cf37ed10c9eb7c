"""The whole page: one file, always the same, that holds nothing but what it was given as text."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab import page
from partialsgd.lab.page import write_page
from tests.lab.page import made
from tests.lab.page.test_markup import Seen


def test_it_is_one_file_that_refers_to_nothing_and_allows_nothing_else(tmp_path: Path) -> None:
    to = write_page([made.run(tmp_path)], tmp_path / "new" / "r.html")
    assert to == tmp_path / "new" / "r.html" and [file.name for file in to.parent.iterdir()] == ["r.html"]
    text = to.read_text(encoding="utf-8")
    seen = Seen(text)
    assert not {"link", "img", "iframe", "object", "embed"} & set(seen.tags)
    assert all(str(value).startswith("#") for name, value in seen.attributes if name in ("href", "src"))
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    policy = next(value for name, value in seen.attributes if name == "content" and "default-src" in str(value))
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; ") and f"'sha256-{digest}'" in policy


def test_headings_are_in_order_and_the_page_has_a_language_and_a_title(tmp_path: Path) -> None:
    text = write_page(made.three(tmp_path), tmp_path / "r.html").read_text(encoding="utf-8")
    depths = [int(depth) for depth in re.findall(r"<h(\d)>", text)]
    assert depths[0] == 1 and depths.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(depths))
    assert '<html lang="en">' in text and "<title>joint, core-alone and full-alone · partialsgd</title>" in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) and {"levels", "cost", "criteria", "configuration"} <= set(ids)


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    path = made.run(tmp_path)
    one, two = (write_page([path], tmp_path / name).read_bytes() for name in ("1.html", "2.html"))
    assert one == two


def test_whatever_a_run_holds_is_text(tmp_path: Path) -> None:
    evil = made.HOSTILE.replace("/", "⁄")  # a directory cannot be called so
    levels = [f"a{made.HOSTILE}", "full"]
    extras = {made.HOSTILE: [made.HOSTILE], "samples": made.samples(levels, made.HOSTILE * 3)["samples"]}
    extras |= {"signature": made.HOSTILE, "table": [{made.HOSTILE: made.HOSTILE[:20]}], "note": made.HOSTILE}
    more = {"method": made.HOSTILE, made.HOSTILE: made.HOSTILE}
    path = made.run(tmp_path, evil, levels=levels, score=f"s{made.HOSTILE}".replace("/", "⁄"), extras=extras, **more)
    plain = made.run(tmp_path, "plain")
    half = made.run(tmp_path, f"{evil} half", levels=levels, ends=False)
    usual = Seen(page.page(page.read([plain, made.run(tmp_path, "other")])))
    seen = Seen(page.page(page.read([path, half, plain])))
    assert set(seen.tags) <= {*usual.tags, "h4"} and seen.tags.count("script") == 1
    assert {name for name, _ in seen.attributes} <= {name for name, _ in usual.attributes}
    assert sum(made.HOSTILE in words for words in seen.words) > 10


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, to = made.run(tmp_path), tmp_path / "r.html"
    to.write_text("the old one")

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(page.os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_page([path], to)
    assert to.read_text() == "the old one" and sorted(file.name for file in tmp_path.iterdir()) == ["joint", "r.html"]


def test_a_directory_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(
        IsADirectoryError, match=r"is a directory; give the file that the page is to be, as .*report\.html"
    ):
        write_page([made.run(tmp_path)], tmp_path)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "partialsgd.logging.panels.find_spec", lambda name: None if name == "matplotlib" else found(name)
    )
    with pytest.raises(ImportError, match=r"matplotlib is needed: pip install partialsgd\[lab\]"):
        write_page([made.run(tmp_path)], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
