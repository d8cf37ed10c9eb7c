"""TensorBoard shows what the log says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import partialsgd as ps
from partialsgd.logging import read
from tests.logging.training import alternating, made_up, steps


def test_tensorboard_is_given_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path, board, taken = tmp_path / "metrics.jsonl", tmp_path / "board", steps(alternating(), 8)
    with ps.MetricsLog(path, tensorboard=board) as log:
        for step in taken[:6]:
            log.write(step, accuracy=0.5)
    with ps.MetricsLog(path, t=4, tensorboard=board) as log:  # killed, and resumed
        log.write(made_up(4, skipped=True), accuracy=0.75)
        for step in taken[4:]:
            log.write(step, accuracy=0.25)
    events = EventAccumulator(str(board))
    events.Reload()

    def told(tag: str) -> dict[int, float]:
        assert len({event.step for event in events.Scalars(tag)}) == len(events.Scalars(tag))
        return {event.step: event.value for event in events.Scalars(tag)}

    found = {line["t"]: line for line in read(path)}
    assert told("lr") == pytest.approx(dict.fromkeys(range(8), 0.1))
    assert told("accuracy") == {t: 0.5 if t < 4 else 0.25 for t in range(8)}
    assert told("loss/core") == pytest.approx({t: found[t]["loss"]["core"] for t in (1, 3, 5, 7)})
    core = {t: line["criteria"][0] for t, line in found.items() if t % 2 and "criteria" in line}
    assert len(core) == 2
    for key in ("c_norm", "c_sim", "c_align", "alpha", "q"):
        assert told(f"criteria/core/{key}") == pytest.approx({t: one[key] for t, one in core.items()})
    assert not any("probe" in tag or tag.endswith(("/level", "/t")) for tag in events.Tags()["scalars"])


def test_without_tensorboard_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r"tensorboard is needed: pip install partialsgd\[lab\]"):
        ps.MetricsLog(tmp_path / "metrics.jsonl", tensorboard=tmp_path)
    assert not list(tmp_path.iterdir())
