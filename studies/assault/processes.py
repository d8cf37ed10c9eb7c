"""Processes that have imported torch already, one for each attempt: a real process can be killed, and forking is fast.

As a program, this is the process that forks them. It has no threads, whose locks a fork would copy. An attempt can be
killed after some time, or traced by ptrace and killed before its n-th operation that changes a file.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import time
from importlib import import_module
from typing import Any, NamedTuple, final

TIMEOUT = 120
"""Seconds after which an attempt counts as hung."""
HUNG = -signal.SIGALRM

# System calls that change files, by their numbers on x86-64, and the register that holds the flags of an open.
_CHANGES = {
    **{1: "write", 18: "pwrite", 20: "writev", 40: "sendfile", 76: "truncate", 77: "ftruncate", 74: "fsync"},
    **{75: "fdatasync", 26: "msync", 82: "rename", 264: "rename", 316: "rename", 83: "mkdir", 258: "mkdir"},
    **{84: "rmdir", 85: "create", 87: "unlink", 263: "unlink", 86: "link", 265: "link", 88: "symlink"},
    **{90: "chmod", 91: "chmod", 268: "chmod", 285: "fallocate", 326: "copy_file_range", 2: "open", 257: "open"},
}
_NUMBER, _FIRST, _SECOND, _THIRD = 15 * 8, 14 * 8, 13 * 8, 12 * 8  # places of registers in the user area
_TRACE_ME, _PEEK, _SYSCALL, _SET_OPTIONS = 0, 3, 24, 0x4200


class Ended(NamedTuple):
    """The end of an attempt."""

    code: int
    """The exit code; negative if a signal ended it."""
    output: str
    operations: list[str]
    """The operations that change files, if the attempt was traced; the last one was not done if it was killed there."""


def can_trace() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


@final
class ForkServer:
    """The process that forks; one attempt at a time."""

    def __enter__(self) -> ForkServer:
        pipe, environment = subprocess.PIPE, {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "studies.assault.processes"]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        assert self._ask({}) == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()  # which closes the pipes

    def partialsgd(self, *arguments: object, **options: Any) -> Ended:
        """Run the command `partialsgd` with these arguments."""
        return self.call("partialsgd.lab.cli:main", list(map(str, arguments)), **options)

    def call(
        self,
        function: str,
        *arguments: Any,
        kill_after: float | None = None,
        trace: bool = False,
        kill_at: int | None = None,
        file_limit: int | None = None,
        timeout: int = TIMEOUT,
    ) -> Ended:
        """Call `module:function`, whose result is the exit code, in a new process and wait for its end.

        `kill_after` are seconds, `kill_at` the number of an operation on files, beginning with 0, and `file_limit` the
        size in bytes beyond which no file can be written, as on a full disk.
        """
        request = {"function": function, "arguments": arguments, "limit": file_limit, "timeout": timeout}
        end = {"trace": trace or kill_at is not None, "kill_at": kill_at, "kill_after": kill_after}
        return Ended(*self._ask({**request, **end}))

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _serve() -> None:
    import sklearn.datasets  # imported here once, as are the other modules, for all attempts
    import sklearn.metrics  # noqa: F401  # what the first scores import
    import torch._dynamo
    from rich import live, pretty, progress_bar  # noqa: F401  # what rich imports when it prints
    from transformers import MarianMTModel  # noqa: F401  # what the translation recipe imports

    import partialsgd.lab.cli
    import partialsgd.lab.page
    import partialsgd.lab.training.loop  # noqa: F401  # what a training imports

    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_attempt(**request) if request else "ready"), flush=True)


def _attempt(*, kill_at: int | None, kill_after: float | None, **call: Any) -> Ended:
    """Fork a process and wait for its end. Its output goes through a pipe, which a limit of files does not limit."""
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 1 << 20)  # nobody reads until the end
    pid = os.fork()
    if pid == 0:
        _become(output=theirs, **call)
    os.close(theirs)
    if call["trace"]:
        code, operations = _trace(pid, kill_at)
    else:
        code, operations = _wait(pid, kill_after), []
    with os.fdopen(ours, "rb") as pipe:
        return Ended(code, pipe.read().decode("utf-8", "replace"), operations)


def _wait(pid: int, kill_after: float | None) -> int:
    if kill_after is not None:
        deadline = time.monotonic() + kill_after
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.0005)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(*, function: str, arguments: list[Any], output: int, limit: int | None, timeout: int, trace: bool) -> None:
    """Be the new process: this does not return."""
    import resource
    import traceback

    code = 1
    try:
        os.setsid()
        for number in (1, 2):
            os.dup2(output, number)
        signal.alarm(timeout)
        if trace:
            _ptrace(_TRACE_ME)
            os.kill(os.getpid(), signal.SIGSTOP)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        module, _, name = function.partition(":")
        code = getattr(import_module(module), name)(*arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)


def _trace(pid: int, kill_at: int | None) -> tuple[int, list[str]]:
    """Follow the system calls of a process, and kill it before the one that is wanted."""
    operations: list[str] = []
    is_entry, is_first = True, True
    while True:
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status), operations
        number, deliver = os.WSTOPSIG(status), 0
        if number == signal.SIGTRAP | 0x80:
            if is_entry and (operation := _change(pid)):
                operations.append(operation)
                if kill_at is not None and len(operations) > kill_at:
                    os.kill(pid, signal.SIGKILL)
                    continue
            is_entry = not is_entry
        elif is_first:
            _ptrace(_SET_OPTIONS, pid, 0, 1)  # system calls are told from other traps
        else:
            deliver = number
        is_first = False
        _ptrace(_SYSCALL, pid, 0, deliver)


def _change(pid: int) -> str | None:
    """The operation on a file that the process is about to do; None if it changes none."""
    number = _ptrace(_PEEK, pid, _NUMBER)
    name = _CHANGES.get(number)
    if name in ("write", "writev") and _ptrace(_PEEK, pid, _FIRST) in (1, 2):
        return None  # its output
    if name == "open":
        flags = _ptrace(_PEEK, pid, _THIRD if number == 257 else _SECOND)
        return name if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else None
    return name


def _ptrace(request: int, pid: int = 0, address: int = 0, data: int = 0) -> int:
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes, ptrace.restype = [ctypes.c_long] * 4, ctypes.c_long
    return int(ptrace(request, pid, address, data))


if __name__ == "__main__":
    _serve()
