"""The report: one HTML file about one or several runs, which needs no network and can be printed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from partialsgd._util import files
from partialsgd.lab.page.render import render_page
from partialsgd.lab.page.run_files import read_runs
from partialsgd.lab.page.sections import DefaultSettings

__all__ = ["write_page"]

_KIND = b'<p class="kind">partialsgd report</p>'
"""This is in every page that was written here, and marks a file that may be replaced."""


def write_page(
    runs: Sequence[str | os.PathLike[str]],
    to: str | os.PathLike[str],
    *,
    default_settings: DefaultSettings | None = None,
) -> Path:
    """Write an HTML page about runs: their levels, costs, curves, criteria, outputs and configuration.

    `runs` are directories that `partialsgd train` wrote; they need not be finished. The page refers to no other file
    and is written whole or not at all. `default_settings(recipe, settings)` returns the settings of the run's preset,
    so that the page can show which settings were changed.
    """
    path, page_runs = Path(to), read_runs(runs)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; give the file to write, for example {path / 'report.html'}")
    if path.exists() and not (path.is_file() and _KIND in path.read_bytes()):
        raise FileExistsError(
            f"{path} exists and is not a page of `partialsgd report`; give another file, or remove it"
        )
    text = render_page(page_runs, default_settings)
    try:
        files.write_text(path, text)
    except OSError as error:
        raise OSError(f"the page cannot be written to {path} ({error.strerror or error}); give another file") from error
    return path
