"""The page of the deaths, and how states are compared; tests/distributed and tests/lab kill real processes."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from studies import results
from studies.deaths import page, replica, torchft
from studies.deaths.__main__ import unfinished


def test_the_page_tells_what_was_lost(tmp_path: Path) -> None:
    file = tmp_path / "deaths.jsonl"
    assert page.sections(file) == "No process was killed yet."
    about = {"date": "2026-01-01", "torch": "2", "seconds": 10.0, "kills": 20, "lost": 1, "different": 0}
    run = {**about, "under": "torchrun", "launches": 5, "undisturbed": 4.0}
    found = {"replicas": 3, "steps": 1500, "dropped": 6, "distance": 1e-7, "sent": {"full": 9, "core": 2}}
    results.write(file, [run, {**about, "under": "torchft", "lost": 0, **found}])
    text = page.sections(file)
    assert "| torchrun | 20 | 1 | 0 |" in text and "| torchft | 20 | 0 | 0 |" in text
    assert "1,500 steps" in text and "6 attempts" in text and "1e-07 of the largest" in text


def test_kills_go_on_after_those_of_a_record_that_was_stopped() -> None:
    about = {"under": "torchrun", "torch": "2", "seed": 0, "date": "2026-01-02"}
    stopped = {**about, "kills": 7, "launches": 3, "date": "2026-01-01"}
    assert unfinished([{**stopped, "under": "torchft"}, stopped], about, 20) is stopped
    for other in ({"kills": 20}, {"seed": 1}, {"torch": "3"}, {"under": "torchft"}):
        assert unfinished([{**stopped, **other}], about, 20) == {}, other


def test_replicas_that_differ_are_noticed(tmp_path: Path) -> None:
    nested = replica.network()
    state = {"model": nested.state_dict(), "optimizer": {}, "sgd": {"t": 2}}
    torch.save(state, tmp_path / "a.pt")
    lines = [{"t": t, "level": level, "size": 1, "sent": 4, "dropped": 0} for t, level in ((0, "full"), (1, "core"))]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "a.1.jsonl").write_text(text + '{"t": 2, "lev')  # cut by a kill
    torch.save({**state, "sgd": {"t": 3}}, tmp_path / "b.pt")
    (tmp_path / "b.1.jsonl").write_text(text.replace("core", "full"))
    found = torchft.compare(tmp_path, ("a", "b", "c"))
    assert found["lost"] == 1 and found["steps"] == 2 and not found["agree"] and not found["equal"]
    assert found["distance"] > 1e-3, "it was not trained"
    (tmp_path / "b.1.jsonl").write_text(text)
    torch.save({**state, "model": torchft.replay([1, 1])}, tmp_path / "a.pt")
    found = torchft.compare(tmp_path, ("a",))
    assert found["agree"] and found["equal"] and found["distance"] == 0.0
