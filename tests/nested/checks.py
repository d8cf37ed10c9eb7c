"""Checks for several test files: a model is unchanged, and a level is one function masked, structural and extracted."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings
from torch import Tensor, nn

from partialsgd import Nested, nest
from partialsgd.nested.example_inputs import tensors_of
from partialsgd.nested.extract.level import extract_level
from partialsgd.nested.layers.low_rank import LowRankLayer
from partialsgd.nested.layers.sums import SumLayer
from partialsgd.parameters import Parameters
from partialsgd.perturbations import drop_outside, perturbed
from tests.zoo import ZOO, Network, specs_for

few = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # a network of another size is as good an example as the smallest
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
many = settings(few, max_examples=30)


class Auxiliary(nn.Module):
    """The layer `extra` runs in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.extra = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        y: Tensor = self.b(h)
        return y + self.extra(h) if self.training else y


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


def built(name: str, kind: str) -> tuple[Network, nn.Module, Nested]:
    """A network of the zoo as it was, and the nested model made of it."""
    torch.manual_seed(0)
    network = ZOO[name]
    model = shaken(network.build())
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


def assert_one_function(
    before: nn.Module, nested: Nested, inputs: dict[str, Any], *, is_mask: bool = True, preserves: bool = True
) -> None:
    """Laws 6 and 7: as it was = full, and at every level masked = structural = extracted, with one gradient."""
    if preserves:
        with torch.no_grad():
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
        if is_mask:
            check_masked(nested, level, inputs, structural, gradients)
            nested.load_state_dict(start)
        check_extracted(nested, level, inputs, structural, gradients)


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
        # A Hugging Face model that its class cannot load refuses to be saved.
        own = {name: value for name, value in vars(module).items() if name not in ("save_pretrained", "push_to_hub")}
        assert not any("partialsgd" in type(value).__module__ for value in own.values())
