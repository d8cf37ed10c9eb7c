"""The assault finds what it looks for: each attack makes an attempt, and its judges tell good from bad."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from studies import results
from studies.assault import interrupts, page
from studies.assault.__main__ import ATTACKS
from studies.assault.processes import HUNG, Ended, ForkServer, can_trace
from studies.assault.targets import Arena, Tally, differences, fingerprint, refusal


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with ForkServer() as server:
        yield Arena(server, tmp_path_factory.mktemp("arena"), Random(0))


def parameter(name: str) -> object:
    is_quick = name in ("Ctrl-C at a line of a step", "kill at an operation of a save", "hostile model file")
    return pytest.param(name, marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize("name", [parameter(name) for name in ATTACKS])
def test_every_attack_makes_attempts(name: str, arena: Arena) -> None:
    tally = Tally()
    next(ATTACKS[name].run(arena, tally))
    assert tally.outcomes.total() >= 1


@pytest.mark.skipif(not can_trace(), reason="system calls are traced on Linux on x86-64 only")
def test_a_process_is_killed_before_the_operation_that_is_named(arena: Arena, tmp_path: Path) -> None:
    source, copy = tmp_path / "a", tmp_path / "b"
    source.write_text("x" * 9)
    call = ("shutil:copyfile", str(source), str(copy))
    operations = arena.server.call(*call, trace=True).operations
    assert operations[0] == "open" and len(operations) > 1 and copy.read_text() == "x" * 9
    for number, left in ((0, None), (1, "")):
        copy.unlink()
        assert arena.server.call(*call, kill_at=number).code == -signal.SIGKILL
        assert (copy.read_text() if copy.exists() else None) == left
        copy.touch()


def test_an_end_is_a_refusal_if_it_is_one_sentence(arena: Arena) -> None:
    assert refusal(Ended(1, "partialsgd: no room\n", [])) is None
    assert refusal(Ended(HUNG, "", [])) == "it hung"
    assert refusal(Ended(1, "Traceback (most recent call last):\nKeyError", [])) == "it ended with a traceback"
    for ended in (Ended(1, "", []), Ended(-11, "partialsgd: no\n", []), Ended(1, "partialsgd: a\npartialsgd: b\n", [])):
        assert "without a sentence" in str(refusal(ended))
    assert arena.server.call("time:sleep", 60, timeout=1).code == HUNG


def test_a_difference_of_one_bit_is_seen(arena: Arena) -> None:
    whole = arena.whole("images")
    assert differences(whole, fingerprint(whole)) == []
    copy = arena.copy(whole, "changed")
    weights = copy / "best" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert differences(copy, fingerprint(whole)) == ["best"]


def test_a_parameter_and_a_state_that_an_interruption_moved_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = (interrupts._OURS, interrupts._HERE)
    assert interrupts.interrupted_step(interrupts.build("dropout", "SGD"), folders, None).count > 100
    assert interrupts.verdict("dropout", "SGD", folders, 0)[0] == interrupts.GOOD

    def moved(setup: interrupts.Setup, folders: tuple[str, ...], at: int) -> interrupts.Interrupter:
        with torch.no_grad():
            for parameter in setup.nested.parameters():
                (parameter if at == 0 else setup.optimizer.state[parameter]["momentum_buffer"]).add_(1e-3)
        return interrupts.Interrupter(folders, at)

    monkeypatch.setattr(interrupts, "interrupted_step", moved)
    outcomes = [interrupts.verdict("dropout", "SGD", folders, at)[0] for at in (0, 1)]
    assert outcomes == ["x is neither x_t nor x_{t+1}", "optimizer state of held coordinates was changed"]


def test_the_page_says_what_was_broken(tmp_path: Path) -> None:
    assert page.sections(tmp_path / "none.jsonl") == "The assault was not run yet."
    record = {"attack": "full disk", "what": "A limit.", "attempts": 1200, "is_whole": True, "failures": 1}
    record |= {"outcomes": {"resumed": 1199, "hung": 1}, "examples": ["a limit of `9`: hung"], "seconds": 90.0}
    results.put(tmp_path / "a.jsonl", {**record, "date": "2030-01-02", "torch": "9", "python": "3"}, key=["attack"])
    text = page.sections(tmp_path / "a.jsonl")
    assert "| full disk | 1,200 | 1 |" in text and "- `a limit of '9': hung`" in text
    assert "**Full disk.** A limit. Tried: all of them. Outcomes: resumed: 1,199; hung: 1." in text
