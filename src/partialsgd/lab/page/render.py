"""Renders the report from its Jinja2 templates."""

from __future__ import annotations

import base64
import hashlib
import inspect
import math
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from partialsgd.lab.page import cost, criteria, formatting, sections
from partialsgd.lab.page.charts import Charts
from partialsgd.lab.page.run_files import Run, largest_scores
from partialsgd.lab.page.sections import DefaultSettings

_CONTROL_CHARACTERS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), 127) if chr(code) not in "\t\n\r"}


def render_page(runs: Sequence[Run], default_settings: DefaultSettings | None = None) -> str:
    """Return the whole page."""
    charts, script = Charts(runs), _asset("page.js")
    return render(
        "page",
        runs,
        levels=sections.levels(runs, charts),
        comparisons=cost.compare(runs),
        training=charts.training(),
        criteria=criteria.section(runs, charts),
        outputs=sections.outputs(runs),
        configuration=sections.configuration(runs, default_settings),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=_asset("page.css"),
    )


def render(template: str, runs: Sequence[Run], **context: Any) -> str:
    """Render one template; text from the runs is escaped, and characters that HTML cannot hold are replaced."""
    text = _environment().get_template(f"{template}.html.j2").render(runs=runs, largest=largest_scores(runs), **context)
    return text.translate(_CONTROL_CHARACTERS).encode("utf-8", "replace").decode("utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("partialsgd.lab.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= dict(inspect.getmembers(formatting, inspect.isfunction))
    environment.globals |= {"iterations_factors": criteria.iterations_factors, "infinity": math.inf}
    return environment


def _asset(name: str) -> Markup:
    return Markup(resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8"))
