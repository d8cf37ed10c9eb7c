"""Shaped links carry what was sent, at their rate, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from time import perf_counter

import pytest
import torch
import torch.distributed as dist

from benchmarks.links import bytes_sent, shaped_links

CAN_SHAPE = os.geteuid() == 0 and shutil.which("tc") is not None and shutil.which("ip") is not None
NUMBERS = 500_000


def exchange(rank: int, numbers: int) -> tuple[float, int, float]:
    dist.all_reduce(torch.ones(1))
    before, start = bytes_sent(), perf_counter()
    tensor = torch.full((numbers,), 1.0 + rank)
    dist.all_reduce(tensor)
    dist.barrier()
    return float(tensor[0]), bytes_sent() - before, perf_counter() - start


def fail(rank: int) -> None:
    if rank == 1:
        raise ValueError("this worker fails on purpose")
    dist.barrier()


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not CAN_SHAPE, reason="network namespaces need root, ip and tc")
def test_links_have_their_rate_and_count_bytes() -> None:
    with shaped_links(workers=2, rate="40mbit") as hosts:
        assert all(namespace in namespaces() for namespace in hosts.namespaces)
        results = hosts.run(exchange, NUMBERS)
        assert hosts.bytes_sent(0) >= results[0][1]
    assert not any(namespace in namespaces() for namespace in hosts.namespaces)
    for total, sent, seconds in results:
        assert total == 3.0
        assert 1.0 < sent / (4 * NUMBERS) < 1.1, "a sum on two workers sends each number once, and headers"
        assert seconds > 0.9 * sent * 8 / 40e6, "the link is not faster than its rate"


@pytest.mark.slow
@pytest.mark.skipif(not CAN_SHAPE, reason="network namespaces need root, ip and tc")
def test_a_worker_that_fails_ends_the_others() -> None:
    with shaped_links(workers=2, rate="1gbit") as hosts, pytest.raises(RuntimeError, match=r"worker [01] failed"):
        hosts.run(fail)
    assert not any(namespace in namespaces() for namespace in hosts.namespaces)
