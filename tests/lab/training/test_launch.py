"""Where a training runs; what two processes agree on is in test_two_processes.py."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from partialsgd.lab.training import launch
from tests.lab.toy import Toy

pytestmark = pytest.mark.usefixtures("toy")


def be(monkeypatch: pytest.MonkeyPatch, *, main: bool) -> None:
    monkeypatch.setattr(launch, "processes", lambda: SimpleNamespace(is_main_process=main))


def test_the_first_rank_speaks_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, main=True)
    assert not launch.console().quiet and launch.console().stderr
    with launch.warnings_on_first_rank(), pytest.raises(UserWarning, match="something"):
        warnings.warn("something", stacklevel=1)
    be(monkeypatch, main=False)
    assert launch.console().quiet
    with launch.warnings_on_first_rank():
        warnings.warn("something", stacklevel=1)


def test_of_the_layout_of_gradients_nobody_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, main=True)
    with launch.warnings_on_first_rank():
        warnings.warn("Grad strides do not match bucket view strides. This may indicate …", stacklevel=1)


def test_alone_one_agrees_with_oneself() -> None:
    here = launch.make_accelerator(Toy(), Path("runs"))
    assert (here.num_processes, here.is_main_process, here.scaler) == (1, True, None)
    assert launch.from_main("path") == "path"
    assert launch.total(here, True) == 1 and launch.total(here, False) == 0
    assert launch.total(here, 3.0) == 3.0 and launch.mean(here, torch.tensor(2.0)) == 2.0


def test_each_run_of_a_process_has_its_own_precision() -> None:
    found = [launch.make_accelerator(Toy(precision=p), Path("runs")).mixed_precision for p in ("bf16", "fp32", "bf16")]
    assert found == ["bf16", "no", "bf16"]


def test_the_generators_come_back() -> None:
    here = launch.make_accelerator(Toy(), Path("runs"))
    states = launch.random_states(here)
    first = torch.rand(5)
    launch.set_random_states(here, states)
    assert torch.equal(torch.rand(5), first)
    with pytest.raises(ValueError, match="saved by 2 processes, and this is a launch of 1"):
        launch.set_random_states(here, states * 2)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "tensorbord"])
def test_trackers_that_are_not_there_are_refused(name: str) -> None:
    if name == "tensorboard":
        launch.require_available(Toy(track=(name,)))
        return
    with pytest.raises(ValueError, match=f"track: '{name}' is not installed .*; available are"):
        launch.require_available(Toy(track=(name,)))
