"""Workers on one machine behind slow links: a network namespace for each, joined by a switch, shaped by `tc`.

    with shaped_links(workers=4, rate="100mbit") as hosts:
        results = hosts.run(work, "an argument")  # work(rank, "an argument") on each worker, in a gloo group

Bytes are those that the kernel counts on a worker's only link, headers included: `bytes_sent()` inside a worker,
`hosts.bytes_sent(rank)` outside. Namespaces, links and processes end with the `with` block. It needs root, `ip`, `tc`.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, final

LINK = "eth0"
"""The name of each worker's link, inside its namespace."""
_SENT = Path("/sys/class/net") / LINK / "statistics" / "tx_bytes"
_STORE_PORT = 29_500


def bytes_sent() -> int:
    """The bytes that this worker has put on its link so far; called inside a worker."""
    return int(_SENT.read_text())


@contextmanager
def shaped_links(workers: int, rate: str, *, delay: str | None = None) -> Iterator[Hosts]:
    """A worker's namespace for each rank; every link carries `rate` (as `tc` writes it) in each direction.

    `delay` (as "2ms") is added on the way from a worker to the switch.
    """
    _require_tools()
    prefix = f"psgd-{os.getpid()}-{time.monotonic_ns() % 1_000_000}"
    switch, names = f"{prefix}-switch", [f"{prefix}-{rank}" for rank in range(workers)]
    made: list[str] = []
    hosts = Hosts(names)
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # else `finally` is not run
    try:
        for namespace in (switch, *names):
            _call("ip", "netns", "add", namespace)
            made.append(namespace)
            _inside(namespace, "ip", "link", "set", "lo", "up")
        _inside(switch, "ip", "link", "add", "bridge", "type", "bridge")
        _inside(switch, "ip", "link", "set", "bridge", "up")
        for rank, namespace in enumerate(names):
            _join(switch, namespace, f"port{rank}", hosts.addresses[rank], rate, delay)
        yield hosts
    finally:
        hosts.stop()
        for namespace in made:
            subprocess.run(["ip", "netns", "del", namespace], check=False)
        signal.signal(signal.SIGTERM, before)


@final
class Hosts:
    """The workers' namespaces, in which processes are started."""

    def __init__(self, namespaces: Sequence[str]) -> None:
        self.namespaces = namespaces
        self.addresses = [f"10.77.0.{rank + 1}" for rank in range(len(namespaces))]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, rank: int, command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a command on a worker. gloo finds the link by itself; the environment is this process's and `env`."""
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": LINK, "TP_SOCKET_IFNAME": LINK, **(env or {})}
        process = subprocess.Popen(["ip", "netns", "exec", self.namespaces[rank], *command], env=environment)
        self._processes.append(process)
        return process

    def run(self, work: Callable[..., Any], *arguments: Any, timeout: float = 1800.0) -> list[Any]:
        """`work(rank, *arguments)` on every worker, in a gloo group of all; returns what each returned.

        The function stands at the top of a module that workers can import. One that raises ends the others.
        """
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "arguments").write_bytes(pickle.dumps(arguments))
            module = sys.modules[work.__module__]
            where = module.__spec__.name if module.__spec__ is not None else work.__module__  # also of `python -m`
            command = [sys.executable, "-m", "benchmarks.links", where, work.__qualname__, folder]
            world = {"WORLD_SIZE": str(len(self.namespaces)), "MASTER_ADDR": self.addresses[0]}
            world |= {"MASTER_PORT": str(_STORE_PORT), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            started = [self.start(rank, command, {**world, "RANK": str(rank)}) for rank in range(len(self.namespaces))]
            self._wait(started, timeout)
            return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(len(self.namespaces))]

    def bytes_sent(self, rank: int) -> int:
        """The bytes that a worker has put on its link so far."""
        return int(_inside(self.namespaces[rank], "cat", str(_SENT)))

    def stop(self) -> None:
        """End the processes that still run."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        self._processes.clear()

    def _wait(self, started: Sequence[subprocess.Popen[bytes]], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while any(process.poll() is None for process in started):
            ended = [rank for rank, process in enumerate(started) if process.poll() not in (None, 0)]
            if ended or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"worker {ended[0]} failed" if ended else f"no result after {timeout} s")
            time.sleep(0.05)
        if failed := [rank for rank, process in enumerate(started) if process.returncode]:
            raise RuntimeError(f"worker {failed[0]} failed")


def _join(switch: str, namespace: str, port: str, address: str, rate: str, delay: str | None) -> None:
    """A link between a worker and the switch, shaped at both ends: each end shapes what it sends."""
    _call("ip", "link", "add", LINK, "netns", namespace, "type", "veth", "peer", "name", port, "netns", switch)
    _inside(namespace, "ip", "address", "add", f"{address}/24", "dev", LINK)
    _inside(switch, "ip", "link", "set", port, "master", "bridge")
    for where, device in ((namespace, LINK), (switch, port)):
        _inside(where, "ip", "link", "set", device, "up")
        bucket = ("burst", "128kb", "latency", "200ms")
        _inside(where, "tc", "qdisc", "add", "dev", device, "root", "handle", "1:", "tbf", "rate", rate, *bucket)
    if delay is not None:
        _inside(namespace, "tc", "qdisc", "add", "dev", LINK, "parent", "1:1", "handle", "2:", "netem", "delay", delay)


def _require_tools() -> None:
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise RuntimeError(f"shaped links need {' and '.join(missing)}: install the package iproute2")
    if os.geteuid() != 0:
        raise PermissionError("shaped links are network namespaces, which only root may make: run this as root")


def _inside(namespace: str, *command: str) -> str:
    return _call("ip", "netns", "exec", namespace, *command)


def _call(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {result.stderr.strip()}")
    return result.stdout


def _work(module: str, name: str, folder: str) -> None:
    """What each process of `Hosts.run` does."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    work = getattr(import_module(module), name)
    dist.init_process_group("gloo")
    try:
        result = work(rank, *pickle.loads((Path(folder) / "arguments").read_bytes()))
        dist.barrier()
    finally:
        dist.destroy_process_group()
    (Path(folder) / str(rank)).write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    _work(*sys.argv[1:])
