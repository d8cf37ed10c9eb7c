"""One thread for each worker, the matrix of the contract suite, and what was skipped."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start: two threads each would wait for one another

_SYMBOL = {"holds": "●", "refused": "○", "not claimed": "–", "BROKEN": "✗"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Autocast is tried where it changes the most; on all problems by `make test-all`, with two optimizers."""
    bfloat16 = [item for item in items if "bfloat16" in item.name]
    refused = [item for item in items if _is_refused(getattr(getattr(item, "callspec", _NoCall), "params", {}))]
    left_out = [item for item in bfloat16 if not ("-AdamW-" in item.name or "-SGD_momentum_wd-" in item.name)]
    left_out += refused  # they have a test of their own
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
    for item in (item for item in bfloat16 if not str(item.path).endswith("tests/contracts.py")):
        if not ("-AdamW-" in item.name and ("transformer" in item.name or "mlp" in item.name)):
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Laws × methods, and laws × optimizers: holds, refused (and seen to raise), not claimed."""
    tables: dict[str, dict[str, dict[str, set[str]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(set)))
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            for key, value in getattr(report, "user_properties", []):
                if key == "matrix":
                    table, row, column, verdict = value
                    tables[table][row][column].add("BROKEN" if outcome == "failed" else verdict)
    for title, rows in tables.items():
        _draw(terminalreporter, title, rows)
    skipped = terminalreporter.stats.get("skipped", [])
    terminalreporter.section(f"skipped tests: {len(skipped) or 'none'}")
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"{report.nodeid}: {reason}")


def _draw(out: pytest.TerminalReporter, title: str, rows: dict[str, dict[str, set[str]]]) -> None:
    columns = sorted({column for row in rows.values() for column in row})
    width = max(len(row) for row in rows)
    out.section(f"contracts: laws for every {title}")
    out.write_line(" ".join([" " * width, *columns]))
    for row, cells in sorted(rows.items()):
        drawn = ["".join(_SYMBOL[v] for v in sorted(cells.get(c, ()))).center(len(c)) for c in columns]
        out.write_line(" ".join([row.ljust(width), *drawn]))
    out.write_line("● holds   ○ refused, and seen to raise before anything moved   – not claimed   ✗ BROKEN")


@pytest.fixture
def accelerator() -> Iterator[Any]:
    """accelerate keeps one state for a process: tests of other precisions must not find it."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(cpu=True, mixed_precision="bf16")
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(autouse=True)
def _matrix_of_methods(request: pytest.FixtureRequest, record_property) -> None:
    name = getattr(request.node, "originalname", "") or ""
    if name.startswith("test_law_") and "method" in getattr(request.node, "callspec", _NoCall).params:
        law = " ".join(name.split("_")[1:3])
        claimed = not (law == "law 1" and _projects(request.node.callspec.params["method"]))
        verdict = "holds" if claimed else "not claimed"
        record_property("matrix", ("method", request.node.callspec.params["method"], law, verdict))


class _NoCall:
    params: ClassVar[dict[str, object]] = {}


def _is_refused(params: dict[str, Any]) -> bool:
    from tests.contracts import REFUSED

    method = params.get("method", params.get("name"))
    return isinstance(method, str) and (method, getattr(params.get("problem"), "name", None)) in REFUSED


def _projects(name: str) -> bool:
    from partialsgd.method import nowhere
    from partialsgd.testing.problems import PROBLEMS
    from tests.contracts import METHODS

    mlp = next(p for p in PROBLEMS if p.name == "mlp")
    return name in METHODS and METHODS[name].bind(mlp.model()).project is not nowhere
