"""A first signal is a wish, a second an order."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from partialsgd.lab.training import errors as stopping
from partialsgd.lab.training.errors import stop_on_signal


def ignore(line: str) -> None: ...


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_REPEAT_SECONDS", 0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_said_and_the_handlers_come_back(number: int) -> None:
    before, said = signal.getsignal(number), list[str]()
    with stop_on_signal(said.append) as is_asked:
        assert not is_asked() and not said
        os.kill(os.getpid(), number)
        assert is_asked() and said == ["Stopping after this step; signal again to stop at once, without saving."]
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_ends_at_once_and_the_handlers_come_back(second: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stop_on_signal(ignore):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.06)
        os.kill(os.getpid(), second)
        raise AssertionError("it went on")
    assert signal.getsignal(signal.SIGINT) is before


def test_what_a_launcher_passes_on_is_the_same_wish() -> None:
    """Ctrl-C reaches workers from the terminal, and again from torchrun."""
    said = list[str]()
    with stop_on_signal(said.append) as is_asked:
        try:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            pytest.fail("it was taken for a second one")
        assert is_asked() and len(said) == 1


def test_a_wish_that_cannot_be_said_is_heard() -> None:
    """A signal in the middle of a print finds the stream busy."""

    def busy(line: str) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    with stop_on_signal(busy) as is_asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert is_asked()


def test_a_thread_has_no_signals_and_trains_all_the_same() -> None:
    def asked() -> tuple[bool, Callable[..., object] | int | None]:
        assert threading.current_thread() is not threading.main_thread()
        with stop_on_signal(ignore) as is_asked:
            return is_asked(), signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asked).result() == (False, signal.getsignal(signal.SIGINT))
