"""Checks for several test files: a model is unchanged, and a level is one function masked, structural and extracted."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings
from torch import Tensor, nn

from partialsgd import Nested
from partialsgd.nested.example_inputs import tensors_of
from tests.nested.test_laws import check_extracted, check_masked, close, outputs_and_gradients

few = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # a network of another size is as good an example as the smallest
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
many = settings(few, max_examples=50)


def hooks_of(module: nn.Module) -> list[int]:
    return [len(hooks) for key, hooks in sorted(vars(module).items()) if key.endswith("_hooks")]


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """After the block, however it ends: the same objects, numbers, gradients, modes and hooks; nothing was drawn."""
    modules = dict(model.named_modules(remove_duplicate=False))
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    gradients = {name: (p.grad, None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()}
    modes = [(module.training, hooks_of(module)) for module in modules.values()]
    trained = [p.requires_grad for p in model.parameters()]
    keys, random = list(model.state_dict()), torch.get_rng_state()
    try:
        yield
    finally:
        now = dict(model.named_modules(remove_duplicate=False))
        assert list(now) == list(modules) and all(now[name] is modules[name] for name in modules)
        then = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
        assert list(then) == list(tensors) and all(then[name] is tensors[name] for name in tensors)
        assert all(torch.equal(tensors[name], value) for name, value in values.items())
        for name, parameter in model.named_parameters():
            gradient, numbers = gradients[name]
            assert parameter.grad is gradient and (numbers is None or torch.equal(gradient, numbers))
        assert [(module.training, hooks_of(module)) for module in modules.values()] == modes
        assert [p.requires_grad for p in model.parameters()] == trained
        assert list(model.state_dict()) == keys
        assert torch.equal(torch.get_rng_state(), random)


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """Double precision, and nothing at zero or one, so that nothing is right by chance."""
    generator = torch.Generator().manual_seed(seed)
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.1)
    return model


def output(network: nn.Module, inputs: dict[str, Any]) -> Tensor:
    return next(tensors_of(network(**inputs)))


def assert_one_function(
    before: nn.Module, nested: Nested, inputs: dict[str, Any], *, is_mask: bool = True, preserves: bool = True
) -> None:
    """Laws 6 and 7: as it was = full, and at every level masked = structural = extracted, with one gradient."""
    if preserves:
        with torch.no_grad():
            close([output(before, inputs)], [output(nested, inputs)])
    start = copy.deepcopy(nested.state_dict())
    for level in nested.levels:
        nested.load_state_dict(start)
        with nested.at(level):
            structural, gradients = outputs_and_gradients(nested, inputs, over=nested)
        nested.load_state_dict(start)
        if is_mask:
            check_masked(nested, level, inputs, structural, gradients)
            nested.load_state_dict(start)
        check_extracted(nested, level, inputs, structural, gradients)
