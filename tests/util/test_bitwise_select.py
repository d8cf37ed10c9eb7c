"""Selection is exact on numbers that arithmetic would spoil, and its buffers are never shared."""

from __future__ import annotations

import pytest
import torch

from partialsgd import PartialSGD, methods
from partialsgd._util.bitwise_select import Scratch, Selection, by_rows, over_rows, rows_of
from tests.training import MLP

AWKWARD = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-45, 3e38, 1.0]
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.complex64]


def awkward(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    index = torch.randint(len(AWKWARD), shape, generator=torch.Generator().manual_seed(seed))
    return torch.tensor(AWKWARD)[index].to(dtype)


def raw(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5), (4096,), (300, 701), (1 << 16,), ((1 << 16) + 1,)])
@pytest.mark.parametrize("transposed", [False, True])
def test_what_is_outside_comes_back_to_the_bit(dtype, shape, transposed) -> None:
    old, new = awkward(shape, dtype, 1), awkward(shape, dtype, 2)
    if transposed:
        old, new = old.t() if old.ndim == 2 else old, new.t() if new.ndim == 2 else new
    mask = torch.rand(old.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    expected = torch.where(mask, new, old)
    tensor, saved = old.clone(), torch.empty_like(old)
    selection = Selection(mask, Scratch())
    selection.save_outside([tensor], [saved])
    tensor.copy_(new)
    selection.restore_outside([tensor], [saved])
    assert torch.equal(raw(tensor), raw(expected))
    selection.keep_inside(tensor)
    assert torch.equal(raw(tensor), raw(torch.where(mask, new, torch.zeros_like(new))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 1), (5, 3), (300, 701), (4, 3, 2, 2), (0, 3)])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_mask_of_rows_selects_as_the_same_mask_written_out(dtype, shape, share) -> None:
    rows = torch.rand(shape[0], generator=torch.Generator().manual_seed(3)) < share
    mask, scratch = over_rows(rows, shape), Scratch()
    assert shape[1] == 1 or not mask.numel() or torch.equal(rows_of(mask), rows)
    assert rows_of(mask.contiguous()) is None
    old, new = awkward(shape, dtype, 1), awkward(shape, dtype, 2)
    tensor, saved = old.clone(), torch.empty_like(old)
    selection = Selection(mask, scratch)
    selection.save_outside([tensor], [saved])
    tensor.copy_(new)
    selection.restore_outside([tensor], [saved])
    assert torch.equal(raw(tensor), raw(torch.where(mask, new, old)))
    selection.keep_inside(tensor)
    assert torch.equal(raw(tensor), raw(torch.where(mask, new, torch.zeros_like(new))))


def test_masks_of_rows_stay_masks_of_rows() -> None:
    a, b = (over_rows(torch.rand(6) < 0.5, (6, 4)) for _ in range(2))
    dense = torch.rand(6, 4) < 0.5
    for op, given in ((torch.logical_and, (a, b)), (torch.logical_or, (a, b)), (torch.logical_not, (a,))):
        assert rows_of(by_rows(op, *given)) is not None
        assert torch.equal(by_rows(op, *given), op(*(m.contiguous() for m in given)))
    assert rows_of(by_rows(torch.logical_and, a, dense)) is None
    assert torch.equal(by_rows(torch.logical_and, a, dense), a & dense)


def test_the_layout_may_change_between_saving_and_restoring() -> None:
    mask = torch.rand(80, 80) < 0.5
    old, new = torch.randn(80, 80), torch.randn(80, 80)
    for before, after in ((old.t().contiguous().t(), new), (old, new.t().contiguous().t())):
        saved, result = torch.empty_like(old), after.clone(memory_format=torch.preserve_format)
        selection = Selection(mask, Scratch())
        selection.save_outside([before], [saved])
        selection.restore_outside([result], [saved])
        assert torch.equal(result, torch.where(mask, new, old))


def test_a_buffer_has_one_borrower_at_a_time() -> None:
    scratch, like = Scratch(), torch.randn(3, 4)
    a, b = scratch.borrow(like), scratch.borrow(like)
    assert a.data_ptr() != b.data_ptr()
    scratch.give_back(a)
    assert scratch.borrow(like) is a
    assert scratch.borrow(like, torch.int32).dtype is torch.int32
    scratch.give_back(b)
    assert scratch.borrow(like.t()) is not b, "other strides"
    with_holes = torch.randn(10, 6)[::2, ::2]
    scratch.give_back(first := scratch.borrow(with_holes))
    assert scratch.borrow(with_holes) is first, "tensors with holes do not pile up"


def test_a_run_borrows_what_it_gave_back() -> None:
    for method in (methods.dropout(0.5), methods.sam(0.1), methods.random_mask(0.5)):
        model = MLP.model()
        sgd = PartialSGD(model, torch.optim.AdamW(model.parameters(), 0.01), method)
        sizes = []
        for t in range(30):  # small masks are whole now and then, so it takes some steps to have borrowed all
            sgd.step(MLP.closure(model, t))
            sizes.append(sum(len(free) for free in sgd.parameters.scratch._free.values()))
        assert sizes[20] == sizes[29] > 0
        if method.name.startswith("sam"):
            with pytest.raises(ZeroDivisionError):
                sgd.step(lambda: 1 / 0)
            assert sum(len(free) for free in sgd.parameters.scratch._free.values()) == sizes[29]
