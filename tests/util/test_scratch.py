"""Borrowed, given back, and never shared."""

from __future__ import annotations

import torch

from partialsgd import PartialSGD, methods
from partialsgd._util.scratch import Scratch
from partialsgd.testing.problems import PROBLEMS

MLP = next(p for p in PROBLEMS if p.name == "mlp")


def test_a_buffer_has_one_borrower_at_a_time() -> None:
    scratch, like = Scratch(), torch.randn(3, 4)
    a, b = scratch.borrow(like), scratch.borrow(like)
    assert a.data_ptr() != b.data_ptr()
    scratch.give_back(a)
    assert scratch.borrow(like) is a
    assert scratch.borrow(like, torch.int32).dtype is torch.int32
    scratch.give_back(b)
    assert scratch.borrow(like.t()) is not b, "other strides"


def test_a_run_borrows_what_it_gave_back() -> None:
    for method in (methods.dropout(0.5), methods.sam(0.1), methods.random_mask(0.5)):
        model = MLP.model()
        sgd = PartialSGD(model, torch.optim.AdamW(model.parameters(), 0.01), method)
        sizes = []
        for t in range(30):  # small masks are whole now and then, so it takes some steps to have borrowed all
            sgd.step(MLP.closure(model, t))
            sizes.append(sum(len(free) for free in sgd.parameters.scratch._free.values()))
        assert sizes[20] == sizes[29] > 0


def test_an_error_in_the_closure_loses_nothing() -> None:
    model = MLP.model()
    sgd = PartialSGD(model, torch.optim.AdamW(model.parameters(), 0.01), methods.sam(0.1))
    sgd.step(MLP.closure(model, 0))
    before = sum(len(free) for free in sgd.parameters.scratch._free.values())
    for _ in range(3):
        try:
            sgd.step(lambda: 1 / 0)
        except ZeroDivisionError:
            continue
    assert sum(len(free) for free in sgd.parameters.scratch._free.values()) == before


def test_tensors_with_holes_do_not_pile_up() -> None:
    scratch, like = Scratch(), torch.randn(10, 6)[::2, ::2]
    first = scratch.borrow(like)
    scratch.give_back(first)
    assert scratch.borrow(like) is first
