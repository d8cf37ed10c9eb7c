"""Where a training runs; what two processes agree on is in test_two_processes.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from partialsgd.lab.training import launch
from tests.lab.toy import Toy

pytestmark = pytest.mark.usefixtures("toy")


def test_each_run_of_a_process_has_its_own_precision() -> None:
    found = [launch.make_accelerator(Toy(precision=p), Path("runs")).mixed_precision for p in ("bf16", "fp32", "bf16")]
    assert found == ["bf16", "no", "bf16"]
