"""Errors that end a command: their exit codes, and the advice they give."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.training import errors as stopping
from partialsgd.lab.training.errors import AlreadyThere, NotThere, WrongCall, advice_on_errors, stop_on_signal
from partialsgd.lab.training.settings import Settings

NAN = FloatingPointError("the loss is NaN at step 3; write another loop")


def test_a_wrong_call_is_also_the_error_that_a_program_expects() -> None:
    assert issubclass(WrongCall, ValueError) and issubclass(NotThere, FileNotFoundError)
    assert issubclass(AlreadyThere, FileExistsError)


def message_of(error: Exception, settings: Settings, run: Path) -> str:
    with pytest.raises(type(error)) as raised, advice_on_errors(run, settings):
        raise error
    return str(raised.value)


def ignore(line: str) -> None: ...


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_REPEAT_SECONDS", 0.05)


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


@pytest.mark.parametrize(
    ("settings", "remedies"),
    [
        (Translation(), "a smaller --lr, a longer --warm-up, --clip-norm 1, another --init, or a check"),
        (Images(clip_norm=1.0, precision="fp16"), "a smaller --lr, .*a smaller --clip-norm, .*--precision fp32, or a"),
    ],
)
def test_against_nan_options_of_the_recipe_are_suggested(tmp_path: Path, settings: Settings, remedies: str) -> None:
    text = message_of(NAN, settings, tmp_path)
    assert re.match(rf"the loss is NaN at step 3\. What to try: {remedies}", text)
    assert "another loop" not in text  # advice for people who write loops
    assert text.endswith("There is no checkpoint yet: start again with another --out")
    checkpoints.save(tmp_path / "checkpoints", 4, {}, keep=1)
    assert message_of(NAN, settings, tmp_path).endswith(f"good checkpoints are in {tmp_path / 'checkpoints'}")


def test_a_full_disk_is_reported_with_how_to_continue_and_other_errors_are_unchanged(tmp_path: Path) -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        text = message_of(OSError(number, "no room"), Images(), tmp_path)
        assert text.startswith(f"{tmp_path} could not be written ([Errno {number}] no room). Free some disk space, ")
        assert f"partialsgd resume {tmp_path} " in text
    for error in (PermissionError(errno.EACCES, "not yours"), ValueError("other"), OSError("no number")):
        with pytest.raises(type(error)) as raised, advice_on_errors(tmp_path, Images()):
            raise error
        assert raised.value is error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_said_the_second_ends_at_once_and_the_handlers_come_back(number: int) -> None:
    """What a launcher passes on is the same wish: Ctrl-C reaches workers from the terminal, and again from torchrun."""
    before, said = signal.getsignal(number), list[str]()
    with pytest.raises(KeyboardInterrupt), stop_on_signal(said.append) as is_asked:
        assert not is_asked() and not said
        for _ in range(3):
            os.kill(os.getpid(), number)
        assert is_asked() and said == ["Stopping after this step; signal again to stop at once, without saving."]
        time.sleep(0.06)
        os.kill(os.getpid(), signal.SIGTERM)
        said.append("it went on")
    assert len(said) == 1 and signal.getsignal(number) is before
