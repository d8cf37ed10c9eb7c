"""Every method trains on the device to the same bits as on the CPU, and reads no more often than its limit."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from partialsgd.testing.runs import Run, assert_same_bits
from tests.device import limits, reads
from tests.device.cases import METHODS, OPTIMIZERS, TRIED, problem_for
from tests.methods.laws import NAME_OF

ROUNDED = {"sam", "sam_interval", "compose_freezing", "guarded", "scaled_by_alpha", "scaled_by_alpha_dropout"}
"""Their step depends on a norm or an inner product of all gradients, which a device sums in another order."""


@cache
def on_cpu(case: str, optimizer: str, option: str = "") -> dict[str, Tensor]:
    options = dict(limits.OPTIONS[option][1]) if option else {}
    meter = options.pop("meter", None)
    run = Run(problem_for(case), OPTIMIZERS[optimizer], METHODS[case], False, meter, options)
    for t in range(limits.STEPS):
        run.step(t)
    return run.tensors()


def check_same(case: str, optimizer: str, option: str = "") -> None:
    expected = on_cpu(case, optimizer, option)
    found = {name: value for name, value in reads.trained(case, optimizer, option).tensors.items() if "rng" not in name}
    expected = {name: value for name, value in expected.items() if "rng" not in name}
    if case in ROUNDED or option == "clip_norm":
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6, msg=name)
    else:
        assert_same_bits(expected, found)


@pytest.mark.parametrize(("case", "optimizer"), TRIED)
def test_a_method_trains_as_on_the_cpu(case: str, optimizer: str) -> None:
    check_same(case, optimizer)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW fused"])
@pytest.mark.parametrize("option", limits.OPTIONS)
def test_an_option_trains_as_on_the_cpu(option: str, optimizer: str) -> None:
    check_same(limits.OPTIONS[option][0], optimizer, option)


@pytest.mark.parametrize(("case", "optimizer"), TRIED)
def test_a_step_of_a_method_reads_no_more_than_its_limit(case: str, optimizer: str) -> None:
    result = reads.trained(case, optimizer)
    most = result.most
    assert most <= limits.limit_of(case), f"{most} reads: {result.sites}"


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW fused"])
@pytest.mark.parametrize("option", limits.OPTIONS)
def test_a_step_with_an_option_reads_no_more_than_its_limit(option: str, optimizer: str) -> None:
    case, _, limit = limits.OPTIONS[option]
    result = reads.trained(case, optimizer, option)
    most = result.most
    assert most <= limit, f"{most} reads: {result.sites}"


def test_every_method_has_a_limit() -> None:
    assert all(limits.limit_of(case) in (0, 1) for case in METHODS)
    assert limits.LIMITS.keys() <= METHODS.keys() | set(NAME_OF.values()), "a limit of a method that is not there"
