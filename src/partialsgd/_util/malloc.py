"""Settings of the C library's allocator."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Tell glibc not to hand freed memory back to the system: taking it again costs page faults.

    By default large blocks are mapped anew each time, and the top of the heap is given back when much of it is free.
    Training on a CPU then spends a large part of its time in page faults: logits, their softmax and their gradient are
    such blocks, at every step. How many faults there are depends on what the process did before, so benchmarks would
    measure the history of the heap.
    """
    if sys.platform != "linux":
        return
    glibc = ctypes.CDLL(None)
    if hasattr(glibc, "mallopt"):
        glibc.mallopt(_M_MMAP_MAX, 0)
        glibc.mallopt(_M_TRIM_THRESHOLD, -1)
