"""Hooks go with copies of the model, and are missed on others."""

from __future__ import annotations

import copy
import io

import pytest
import torch

from partialsgd import Method, PartialSGD
from partialsgd.methods._shared.stages import Chain
from tests.methods.test_stages import loss_of, mlp, noting


def test_a_model_with_a_chain_is_saved_copied_and_refused_to_others() -> None:
    model = mlp()
    chain = Chain(model, None, cut=True, who="freezing")
    method = Method(mask=lambda c: chain.mask(c, [3]), within=chain.cut)
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)
    torch.save(model, io.BytesIO())
    both, other = copy.deepcopy((model, sgd))
    for net, run in ((model, sgd), (both, other)):
        seen: list[bool] = []
        for _ in range(3):
            run.step(noting(net, seen))
        assert seen == [True, False, False]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), both.parameters(), strict=True))
    stranger = mlp()
    wrong = PartialSGD(stranger, torch.optim.SGD(stranger.parameters(), 0.1), method)
    with pytest.raises(ValueError, match="freezing was made for another model"):
        wrong.step(lambda: loss_of(stranger).backward() or 0.0)
