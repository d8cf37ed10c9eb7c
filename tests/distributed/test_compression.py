"""`compress` on two real processes: nothing is lost, and one process with `compressed_gradient` gives the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from partialsgd import PartialSGD, methods
from partialsgd.distributed import compress
from tests.distributed import compression_ranks as ranks
from tests.distributed.compression_ranks import EXACT, SENT_PARTS, SETTINGS, STEPS
from tests.distributed.data_parallel_ranks import family
from tests.functions import backward
from tests.processes import run_on


def test_two_ranks_give_the_numbers_of_the_method_in_one_process(tmp_path: Path) -> None:
    zero, one = run_on(ranks.same_as_the_method, 2, tmp_path)
    for name in SETTINGS:
        model = ranks.without_biases()
        method = methods.compressed_gradient(0.25, kind=name, scope="layer")
        sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method, seed=3)
        for t in range(STEPS):
            data = (0,) if name == "top-k" else (0, 1)  # random-k is linear: the mean of both ranks' data
            sgd.step(lambda t=t, m=model, d=data: backward(torch.stack([ranks.evaluate(m, t, r) for r in d]).mean()))
        for ours, other, alone in zip(zero[name], one[name], model.parameters(), strict=True):
            assert torch.equal(ours, other), f"ranks differ: {name}"
            if name == "top-k":
                assert torch.equal(ours, alone), "the same data on both ranks: the same bits"
            torch.testing.assert_close(ours, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("world", [2, 4])
def test_what_was_sent_and_what_is_remembered_add_up_to_the_gradients(world: int, tmp_path: Path) -> None:
    """The gradients are whole numbers, and SGD steps by 1 from 0: all sums are exact, so they must be equal.

    x has moved by minus the mean over the ranks of all that they sent. What is outside the mask is not sent.
    """
    results = run_on(ranks.sums, world, tmp_path)
    for name in EXACT:
        for key in [f"{name}, {part}" for part in SENT_PARTS]:
            moved = results[0][f"{key} moved"]
            for i in range(2):
                gradients = sum(each[f"{key} gradients"][i] for each in results)
                unsent = sum(each[f"{key} unsent"][i] for each in results)
                assert all(torch.equal(moved[i], each[f"{key} moved"][i]) for each in results), f"ranks differ: {key}"
                assert torch.equal(unsent - world * moved[i], gradients), f"{key}: mass was lost"
            if name != "fp16":
                assert any(bool(e.any()) for e in results[0][f"{key} unsent"]), f"{key} sends all, and shows nothing"


def test_a_step_sends_the_share_of_its_level_in_the_chosen_type(tmp_path: Path) -> None:
    zero, _ = run_on(ranks.sizes_sent, 2, tmp_path)
    nested = family("width")
    for step, (level, chosen) in enumerate(zero["random-k"]):
        tensors = [p.numel() for p in nested.parameters(level=level)]
        assert sum(tensors) / 4 <= chosen <= sum(tensors) / 4 + len(tensors), "a quarter of each, at least one number"
        bytes_of_each = {"top-k": 4 + 4, "top-k, fp16": 4 + 2, "top-k, bf16": 4 + 2, "random-k, fp16": 1}
        for name, size in bytes_of_each.items():  # with places, messages are bytes; without them numbers
            assert zero[name][step] == (level, size * chosen), name
        assert zero["fp16"][step] == (level, sum(tensors))


def test_a_loss_scale_that_changes_loses_nothing(tmp_path: Path) -> None:
    zero, one = run_on(ranks.scaled_sums, 2, tmp_path)
    for name in SETTINGS:
        assert len(set(zero[f"{name} scales"])) > 1, "the scale does not change, and shows nothing"
        for i in range(2):
            gradients = zero[f"{name} gradients"][i] + one[f"{name} gradients"][i]
            unsent = zero[f"{name} unsent"][i] + one[f"{name} unsent"][i]
            assert torch.equal(-2 * zero[f"{name} moved"][i] + unsent, gradients), f"{name}: mass was lost"


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_payload_and_memory_split_the_sum_to_the_bit(dtype: torch.dtype | None) -> None:
    """Any numbers: e + g is rounded once, when it is added up, and split without a loss."""
    generator = torch.Generator().manual_seed(0)
    gradient, unsent = (torch.randn(1000, generator=generator) for _ in range(2))
    for settings in ({"top_k": 0.1}, {}):
        if not settings and dtype is None:
            continue
        payload, rest = compress(**settings, dtype=dtype).encode(None, "weight", gradient, unsent)
        places = torch.arange(1000) if payload.places is None else payload.places
        sent = torch.zeros(1000).index_copy(0, places, payload.numbers.float())
        assert payload.numbers.dtype == (dtype or torch.float32)
        assert torch.equal(sent + rest, gradient + unsent)


def test_memory_is_kept_through_levels_skips_and_resumes(tmp_path: Path) -> None:
    zero, one = run_on(ranks.levels, 2, tmp_path)
    for name in SETTINGS:
        assert zero[f"{name} held"] and all(zero[f"{name} held"]), "a core step touched the memory of other parameters"
        assert all(zero[f"{name} memory"]), "the resumed memory is another"
        for key in (name, f"{name} resumed", f"{name} after a skip"):
            assert all(torch.equal(a, b) for a, b in zip(zero[key], one[key], strict=True)), f"ranks differ: {key}"
        for a, b in zip(zero[name], zero[f"{name} resumed"], strict=True):
            assert torch.equal(a, b), "a resumed run parts ways"
        assert zero[f"{name} skipped"] == one[f"{name} skipped"] == [True, True, True]
    assert not any(zero["outside"]) and all(zero["inside"])
    messages = zero["messages"]
    assert "PowerSGD keeps its memory by bucket" in messages["power"] and "t = 1, untouched: True" in messages["power"]
    assert "use equal weights" in messages["weights"] and "t = 0, untouched: True" in messages["weights"]
    for name in ("chosen by it", "corrected", "guarded", "measured"):
        assert "reads the gradient that this step trains with" in messages[name], name
        assert "t = 0, untouched: True" in messages[name], name
    assert "train by PartialSGD" in messages["alone"] and "find_unused_parameters" in messages["unused"]


def test_power_sgd_learns_where_every_step_sends_the_same(tmp_path: Path) -> None:
    zero, one = run_on(ranks.power_sgd, 2, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(zero["parameters"], one["parameters"], strict=True))
    assert zero["losses"][-1] < zero["losses"][0]


def test_settings_are_checked() -> None:
    for settings, message in (
        ({}, "give one of top_k"),
        ({"top_k": 0.1, "random_k": 0.1}, "give one of top_k"),
        ({"top_k": 0.0}, "share in"),
        ({"random_k": 1.5}, "share in"),
        ({"power_sgd": 0}, "rank of at least 1"),
        ({"dtype": torch.int32}, "floating-point"),
    ):
        with pytest.raises(ValueError, match=message):
            compress(**settings)
    compression = compress(top_k=0.5)
    with pytest.raises(ValueError, match=r"saved by compress\(random_k=0.5"):
        compression.load_state_dict(compress(random_k=0.5).state_dict())
    with pytest.raises(NotImplementedError, match="cannot be resumed"):
        compress(power_sgd=2).state_dict()
