"""Laws 6 and 7 over every kind of nesting and every network of the zoo.

A level is defined by a mask: the full network with everything outside the mask at zero. It is run structurally,
and it is taken out as a plain module. All three must be one function, with one gradient.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partialsgd import Nested, nest
from partialsgd.nested.example_inputs import tensors_of
from partialsgd.nested.extract.level import extract_level
from partialsgd.nested.layers.low_rank import LowRankLayer
from partialsgd.nested.layers.sums import SumLayer
from partialsgd.parameters import Parameters
from partialsgd.perturbations import drop_outside, perturbed
from tests.zoo import CASES, ZOO, Network, specs_for


def built(name: str, kind: str) -> tuple[Network, nn.Module, Nested]:
    """A network as it was, and the nested model made of it."""
    network = ZOO[name]
    torch.manual_seed(0)
    model = network.build().double()
    with torch.no_grad():
        for parameter in model.parameters():  # nothing at zero or one, so that nothing is right by chance
            parameter.add_(torch.randn_like(parameter) * 0.1)
    before = copy.deepcopy(model)
    return network, before, nest(model, **specs_for(network)[kind])


def outputs_and_gradients(
    network: nn.Module, inputs: dict[str, Any], *, over: nn.Module
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """All floating-point outputs, and the gradient of a fixed mixture of them over the parameters of `over`."""
    outputs = list(tensors_of(network(**inputs)))
    mixtures = [torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y) for y in outputs]
    total = sum((y * mixture).sum() for y, mixture in zip(outputs, mixtures, strict=True) if y.requires_grad)
    assert isinstance(total, Tensor)
    named = {name: p for name, p in Parameters(over).items() if p.requires_grad}
    gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return [y.detach() for y in outputs], {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named.items(), gradients, strict=True)
    }


def close(a: list[Tensor], b: list[Tensor]) -> None:
    assert len(a) == len(b) > 0
    for x, y in zip(a, b, strict=True):
        # Llama and T5 normalise in single precision, whatever the dtype.
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6 * max(1.0, float(x.abs().max())))


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
    inputs = network.inputs(3)
    nested.train(training)
    before.train(training)
    if "zero" not in kind and "sum" not in kind:
        with torch.no_grad():  # law 7
            close(list(tensors_of(before(**inputs))), list(tensors_of(nested(**inputs))))
    start = copy.deepcopy(nested.state_dict())
    for level in nested.levels:
        nested.load_state_dict(start)
        with nested.at(level):
            structural, gradients = outputs_and_gradients(nested, inputs, over=nested)
        nested.load_state_dict(start)
        with torch.no_grad(), nested.at(level):
            close(structural, list(tensors_of(nested(**inputs))))
        nested.load_state_dict(start)
        if is_pure_mask(network, kind):
            check_masked(nested, level, inputs, structural, gradients)
        nested.load_state_dict(start)
        check_extracted(nested, level, inputs, structural, gradients)


def is_pure_mask(network: Network, kind: str) -> bool:
    """Separate BatchNorm and blocks of a post-norm network are chosen by structure alone."""
    by_norms = network.has_norms and ("separate" in kind or "width" not in kind)
    return not by_norms and (network.is_pre_norm or "depth" not in kind)


def check_masked(
    nested: Nested, level: str, inputs: dict[str, Any], structural: list[Tensor], gradients: dict[str, Tensor]
) -> None:
    parameters = Parameters(nested)
    mask = nested.mask(level, parameters)
    with perturbed(parameters, drop_outside(mask)):
        masked, theirs = outputs_and_gradients(nested, inputs, over=nested)
    close(structural, masked)
    inside = [name for name in gradients if mask[name]]
    close([gradients[name] for name in inside], [theirs[name] for name in inside])


def check_extracted(
    nested: Nested, level: str, inputs: dict[str, Any], structural: list[Tensor], gradients: dict[str, Tensor]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # statistics that were never updated
        plain = nested.extract(level, example=inputs)
        assert nested.size(level) == sum(p.numel() for p in plain.parameters())
        assert_no_trace(plain)
        plain.train(nested.training)
        outputs, theirs = outputs_and_gradients(plain, inputs, over=plain)
        close(structural, outputs)
        # Joining is linear: a nested model whose numbers are gradients, taken out, shows which gradient belongs where.
        as_numbers = copy.deepcopy(nested)
        parameters = Parameters(as_numbers)
        for name, gradient in gradients.items():
            with torch.no_grad():
                parameters[name].copy_(gradient)
        merged = {
            n for n, m in nested.model.named_modules() if isinstance(m, LowRankLayer) and level not in m.low_rank_levels
        }
        for module in as_numbers.model.modules():
            with torch.no_grad():  # of merged layers the gradient is that of one term
                if isinstance(module, LowRankLayer) and level not in module.low_rank_levels:
                    module.U0.zero_()
                if isinstance(module, SumLayer) and module.is_sum(level):
                    torch._foreach_zero_(list(module.new.parameters()))
        ours = dict(Parameters(extract_level(as_numbers.model, level, {})).items())
    names = [n for n in theirs if not any(n.startswith(f"{m}.") for m in merged) or len(nested.levels) == 2]
    close([ours[n].detach() for n in names], [theirs[n] for n in names])
    assert names


def assert_no_trace(plain: nn.Module) -> None:
    for module in plain.modules():
        assert "partialsgd" not in type(module).__module__ or "recipes" in type(module).__module__
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            assert not hooks
        assert not any("partialsgd" in type(value).__module__ for value in vars(module).values())
