"""Training one level by itself."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from partialsgd import PartialSGD, methods
from tests.methods.training import X, Y, backward
from tests.training import family


def test_it_is_the_extracted_network_trained_by_a_plain_loop() -> None:
    nested = family(kind="low_rank")
    with pytest.warns(UserWarning, match="never updated"):
        alone = copy.deepcopy(nested).extract("core", example=X)
    sgd = PartialSGD(nested, torch.optim.Adam(nested.parameters(), 0.01), methods.only("core"))
    optimizer = torch.optim.Adam(alone.parameters(), 0.01)
    for t in range(10):
        torch.manual_seed(t)
        step = sgd.step(backward(lambda: F.cross_entropy(nested(X), Y)))
        torch.manual_seed(t)
        optimizer.zero_grad()
        loss = F.cross_entropy(alone(X), Y)
        loss.backward()
        optimizer.step()
        assert step.level == "core"
        torch.testing.assert_close(step.loss, loss.detach(), rtol=1e-5, atol=1e-6)
    trained = nested.extract("core", example=X)
    for (name, p), q in zip(trained.state_dict().items(), alone.state_dict().values(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5, msg=name)


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="no level 'tiny'; there are 'core', 'full'"):
        methods.only("tiny").bind(family())
