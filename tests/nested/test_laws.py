"""Laws 6 and 7 over every kind of nesting and every network of the zoo.

A level is defined by a mask: the full network with everything outside the mask at zero. It is run structurally,
and it is taken out as a plain module. All three must be one function, with one gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.nested.checks import assert_one_function, built
from tests.zoo import CASES, ZOO, Network


def in_both_modes() -> Iterator[Any]:
    """Every network and every kind in both modes, but a pair of them in one; in the other by `make test-all`."""
    names, kinds = list(ZOO), list(dict.fromkeys(kind for _, kind in CASES))
    for (name, kind), training in product(CASES, (True, False)):
        is_often = (names.index(name) + kinds.index(kind)) % 2 == training
        mode = "train" if training else "eval"
        yield pytest.param(name, kind, training, id=f"{name}-{kind}-{mode}", marks=() if is_often else pytest.mark.slow)


def test_every_network_and_every_kind_is_often_tried_in_both_modes() -> None:
    often = [cell.values for cell in in_both_modes() if not cell.marks]
    for known, place in ((ZOO, 0), ({kind for _, kind in CASES}, 1)):
        assert {(cell[place], cell[2]) for cell in often} == set(product(known, (True, False)))


@pytest.mark.parametrize(("name", "kind", "training"), list(in_both_modes()))
def test_masked_structural_and_extracted_are_one_function(name: str, kind: str, training: bool) -> None:
    network, before, nested = built(name, kind)
    nested.train(training)
    before.train(training)
    preserves = "zero" not in kind and "sum" not in kind
    is_mask = is_pure_mask(network, kind)
    assert_one_function(before, nested, network.inputs(3), is_mask=is_mask, preserves=preserves)


def is_pure_mask(network: Network, kind: str) -> bool:
    """Separate BatchNorm, blocks of a post-norm network and weights of its own are chosen by structure alone."""
    by_norms = network.has_norms and ("separate" in kind or "width" not in kind)
    return not by_norms and "own" not in kind and (network.is_pre_norm or "depth" not in kind)
