"""Every method trains on the device to the same bits as on the CPU, and reads no more often than its limit."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from partialsgd import PartialSGD
from partialsgd.testing.runs import Run, assert_same_bits
from tests.device import limits, reads
from tests.device.cases import METHODS, OPTIMIZERS, TRIED, problem_for
from tests.device.pretended import NAME, on_device, watch

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


@pytest.mark.parametrize("case", ["plain", "dropout", "block_coordinate_free"])
def test_a_capturable_optimizer_trains_as_on_the_cpu(case: str) -> None:
    """`capturable=True`, for CUDA graphs, keeps the step count on the device; torch refuses it on a CPU."""
    run = Run(
        on_device(problem_for(case)),
        lambda parameters: torch.optim.AdamW(parameters, 0.01, weight_decay=0.1, foreach=True, capturable=True),
        METHODS[case],
        False,
    )
    for t in range(limits.STEPS):
        run.step(t)
    expected = on_cpu(case, "AdamW")
    for name, tensor in run.trained().items():
        torch.testing.assert_close(tensor.cpu(), expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW fused"])
def test_a_step_with_a_grad_scaler_reads_no_more_than_its_limit(optimizer: str, clip_norm: float | None) -> None:
    problem = on_device(problem_for("plain"))
    model, scaler = problem.model(), torch.amp.GradScaler(NAME, init_scale=1024.0)
    sgd = PartialSGD(model, OPTIMIZERS[optimizer](model.parameters()), scaler=scaler, clip_norm=clip_norm)

    def closure() -> Tensor:
        loss = problem.evaluate(model, 0)
        scaler.scale(loss).backward()
        return loss

    for t in range(3):
        with watch() as traffic:
            sgd.step(closure)
        assert t == 0 or traffic.reads.total() <= limits.SCALER_LIMIT, reads.written([traffic.reads] * 3)
