"""One page of one or several runs: a file that needs no network, opens from disk and prints."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path

from partialsgd.lab.page import configuration, cost, criteria, levels, numbers, outputs, training
from partialsgd.lab.page.charts import Charts
from partialsgd.lab.page.configuration import Usual
from partialsgd.lab.page.lead import lead
from partialsgd.lab.page.markup import Html, el, joined
from partialsgd.lab.page.runs import Run
from partialsgd.lab.page.stored import read

__all__ = ["write_page"]

_NAMED = 3  # runs that the title has room for

_SECTIONS = {
    "levels": "Levels",
    "cost": "Cost",
    "training": "Training",
    "criteria": "Convergence",
    "outputs": "Outputs",
    "configuration": "Configuration",
}


def write_page(
    runs: Sequence[str | os.PathLike[str]], to: str | os.PathLike[str], *, usual: Usual | None = None
) -> Path:
    """Write what runs say of themselves as one HTML page: levels, costs, curves, criteria, outputs, configuration.

    `runs` are directories that `partialsgd train` wrote, at their end or not. The page is one file without references
    to others, written whole or not at all. `usual(recipe, settings)` gives what the settings would be if nothing had
    been said, so that the page can tell what was; the command line hands the presets over.
    """
    return _written(Path(to), page(read(runs), usual))


def page(runs: Sequence[Run], usual: Usual | None = None) -> str:
    """The whole text."""
    charts, found = Charts(runs), cost.comparisons(runs)
    names = [run.name for run in runs]
    title = numbers.named(names) if len(runs) <= _NAMED else f"{len(runs)} runs"
    body = el(
        "body",
        el("header", el("p", "partialsgd report", class_="kind"), el("h1", title), levels.meta(runs), _contents()),
        el(
            "main",
            levels.shown(runs, lead(runs, found), training.sizes(runs, charts)),
            cost.shown(found),
            training.shown(runs, charts),
            criteria.shown(runs, charts),
            outputs.shown(runs),
            configuration.shown(runs, usual),
        ),
        el("footer", el("p", "Made from the files of the runs by ", el("code", "partialsgd report"), ".")),
        _asset("script", "page.js"),
    )
    head = joined(
        [el("meta", charset="utf-8"), *_head(), el("title", f"{title} · partialsgd"), _asset("style", "page.css")]
    )
    return f"<!doctype html>\n{el('html', el('head', head), body, lang='en')}\n"


def _head() -> list[Html]:
    """Nothing is fetched, and no script runs but the page's own: that of this hash."""
    digest = base64.b64encode(hashlib.sha256(_text("page.js").encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    return [
        el("meta", http_equiv="Content-Security-Policy", content=f"{policy}; form-action 'none'"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
    ]


def _contents() -> Html:
    links = (el("a", title, href=f"#{name}") for name, title in _SECTIONS.items())
    return el("nav", *links, aria_label="Contents")


def _asset(element: str, name: str) -> Html:
    return Html(f"<{element}>{_text(name)}</{element}>")


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _written(path: Path, text: str) -> Path:
    if path.is_dir():
        raise IsADirectoryError(
            f"{path} is a directory; give the file that the page is to be, as {path / 'report.html'}"
        )
    stage = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stage.write_text(text, encoding="utf-8", newline="\n")
        os.replace(stage, path)
    except OSError as error:
        raise OSError(
            f"the page cannot be written to {path} ({error.strerror or error}); give another place"
        ) from error
    finally:
        with suppress(OSError):
            stage.unlink(missing_ok=True)
    return path
