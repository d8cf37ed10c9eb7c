"""Taking temporary changes back, also when Ctrl-C arrives while they are taken back.

`finally` alone is not enough: an interrupt on the first line of a `finally` block, or between a `with` block and the
`__exit__` that ends it, skips it. So what takes a change back is pushed on a stack and leaves it only when it has
returned. Whoever catches the interrupt runs the stack again, and it goes on where it was interrupted.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, final


@final
class UndoStack(list[Callable[[], object]]):
    """Functions that take changes back, the last one first. Each must be repeatable: an interrupted one runs again."""

    _error: tuple[Any, Any, Any] = (None, None, None)

    def enter(self, context: AbstractContextManager[object]) -> None:
        """Enter a context manager, which is left when the stack runs."""
        leave = lambda: context.__exit__(*self._error)  # noqa: E731  # one line below: an interrupt may come between lines
        self.append((context.__enter__(), leave)[1])

    def run(self, *error: Any) -> None:
        """Take everything back. Context managers are told the error of their block, if there was one."""
        if error:
            self._error = error
        while self:
            try:
                self[-1]()
            except Exception:  # not an interrupt: it would fail again
                self.pop()
                self.run()
                raise
            self.pop()
        self._error = (None, None, None)


def postpone_interrupts(undo: UndoStack) -> None:
    """Make Ctrl-C wait until the stack runs: inside an optimizer's step it would leave some parameters stepped."""
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):  # another thread is never interrupted; SIG_IGN and SIG_DFL raise nothing
        return
    received: list[tuple[int, Any]] = []

    def deliver() -> None:
        signal.signal(signal.SIGINT, handler)
        while received:
            handler(*received.pop())

    undo.append(deliver)
    signal.signal(signal.SIGINT, lambda number, frame: received.append((number, frame)))
