"""Run directories for tests of the report: the files that a training writes, with invented numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partialsgd.logging.metrics_log import Record, to_line

SETTINGS: dict[str, Any] = {"seed": 0, "method": "alternating", "epochs": 4, "lr": 0.1, "nest": "width", "alone": None}
SIGNATURE = "nrefs:1|case:mixed|version:2"
SIZES = {"core": 1_000, "1/2": 5_000, "full": 10_000}
SCORES = {"core": 21.5, "1/2": 27.25, "full": 30.125}
HOSTILE = '<script>document.title="taken"</script><img src=x onerror=alert(1)>"\'&amp;$x$'
PLAIN = {"method": "plain", "nest": "none", "levels": ["full"]}


def run(
    folder: Path,
    name: str = "joint",
    *,
    levels: Sequence[str] = ("core", "full"),
    updates: Mapping[str, int] | None = None,
    steps: int = 40,
    ends: bool = True,
    measures: bool = True,
    recipe: str = "translation",
    score: str = "BLEU",
    extras: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Write a run directory as `partialsgd train` does; if it does not end, half of the steps are logged."""
    path = folder / name
    path.mkdir(parents=True)
    config = {"recipe": recipe, "settings": {**SETTINGS, **settings}, "data": "0f" * 32, "versions": {"torch": "2.13"}}
    (path / "config.json").write_text(json.dumps(config))
    write_steps(path, [step(t, levels, steps, measures, score) for t in range(steps if ends else steps // 2)])
    if ends:
        updates = updates or dict.fromkeys(levels, steps // len(levels))
        entries = {level: level_summary(level, updates.get(level, 0), score) for level in levels}
        summary = {"recipe": recipe, "score": score, "steps": steps, "seconds": 90.0, "levels": entries}
        write_summary(path, {**summary, "extras": extras or samples(levels)})
    return path


def write_steps(path: Path, steps: Sequence[Record]) -> None:
    (path / "metrics.jsonl").write_bytes(b"".join(map(to_line, steps)))


def write_summary(path: Path, content: Mapping[str, Any]) -> None:
    (path / "summary.json").write_text(json.dumps(content))


def step(t: int, levels: Sequence[str], steps: int, measures: bool = False, score: str = "BLEU") -> Record:
    level = levels[::-1][t % len(levels)]
    record: Record = {"t": t, "level": level, "loss": {level: 3 / (1 + 0.1 * t)}, "lr": 0.1, "backwards": 1}
    record["epoch"] = 4 * (t + 1) / steps
    if (t + 1) % 10 == 0:
        for each in levels:
            record |= {f"valid/{each}/loss": 2 / (1 + 0.1 * t), f"valid/{each}/{score}": 0.5 * t}
    if measures and t % 5 in (0, 1):
        record["criteria"] = [criteria(level, t)]
    return record


def criteria(level: str, t: int, **more: Any) -> Record:
    """Return the criteria of plain training for the full level; at step 31 of others the alignment is negative."""
    names = ("c_norm", "c_sim", "c_align", "cosine", "alpha", "q")
    if level == "full":
        return {"level": level, "probe": None, **dict.fromkeys(names, 1.0), **more}
    values = (2.0, 1.0, -4.0, -0.25, 0.0, math.inf) if t == 31 else (2.0, 1.0, 1.25, 0.8, 0.8, 2.5)
    return {"level": level, "probe": None, **dict(zip(names, values, strict=True)), **more}


def level_summary(level: str, updates: int, score: str) -> dict[str, Any]:
    size, test = SIZES.get(level, 777), {"loss": 1.0, score: SCORES.get(level, 12.5)}
    costs = {"flops": 1e6 * size * updates, "latency": 0.002}
    return {"parameters": size, "share": size / 10_000, "updates": updates, **costs, "test": test}


def samples(levels: Sequence[str], answer: str = "eine Probe") -> dict[str, Any]:
    inputs = {"source": "a sample that is long enough to be text", "reference": "eine Probe"}
    return {
        "signature": SIGNATURE,
        "samples": [{**inputs, **{level: f"{answer} von {level}" for level in levels}}],
        "notes": ["two notes", "of the recipe"],
    }


def three(folder: Path) -> list[Path]:
    """Write a joint run of two levels, and a run of each level alone."""
    return [run(folder), _core_alone(folder), run(folder, "full-alone", measures=False, **PLAIN)]


def _core_alone(folder: Path) -> Path:
    """Write a run of an extracted level: its only level is called full, and its share is that of itself."""
    path = run(folder, "core-alone", levels=["full"], alone="core", method="plain", measures=False)
    content = json.loads((path / "summary.json").read_text())
    content["levels"]["full"] |= {"parameters": 1_000, "flops": 4e10, "test": {"loss": 1.0, "BLEU": 20.0}}
    write_summary(path, content)
    return path
