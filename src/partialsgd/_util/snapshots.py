"""Snapshots of random generators, buffers and modes: two passes of a step see the same noise (ξ_t)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn


def generator_states(model: nn.Module) -> dict[torch.device, Tensor]:
    """Copy the state of each global torch generator that the model may draw from: the CPU's and its devices'."""
    devices = {torch.device("cpu"), *(p.device for p in model.parameters() if _has_generator(p.device))}
    return {device: _generator_state(device) for device in devices}


def _has_generator(device: torch.device) -> bool:
    """False for the meta device, and for a backend from outside torch without functions for its generator."""
    return device.type != "meta" and hasattr(torch.get_device_module(device), "get_rng_state")


def set_generator_states(states: Mapping[torch.device, Tensor]) -> None:
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        elif device.type == "mps":
            torch.mps.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


@final
class RandomState:
    """A copy of the global torch generators: the CPU's, and those of the devices that the model uses."""

    def __init__(self, model: nn.Module) -> None:
        self._states = generator_states(model)

    @property
    def is_now(self) -> bool:
        """True if nothing was drawn since the copy."""
        return all(torch.equal(state, _generator_state(device)) for device, state in self._states.items())

    def has_drawn_like(self, other: RandomState, begin: RandomState) -> bool:
        """True if both passes advanced the generator by the same amount since `begin`. On a GPU this can only be told
        when neither drew anything: its generator advances alike for tensors of different sizes."""
        return all(
            torch.equal(state, other._states[device])
            and (device.type == "cpu" or torch.equal(state, begin._states[device]))
            for device, state in self._states.items()
        )

    def restore(self) -> None:
        set_generator_states(self._states)


def _generator_state(device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    module = torch.get_device_module(device)  # of mps there is one device, and its functions take no other
    state: Tensor = module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
    return state


@final
class Modes:
    """A copy of the training mode of each module."""

    def __init__(self, model: nn.Module) -> None:
        self._saved = [(module, module.training) for module in model.modules()]

    def restore(self) -> None:
        for module, mode in self._saved:
            module.training = mode


@final
class Buffers:
    """A copy of the model's buffers, BatchNorm statistics among them."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._saved: dict[str, Tensor] = {name: b.detach().clone() for name, b in model.named_buffers()}

    @torch.no_grad()
    def restore(self) -> None:
        for name, buffer in self._model.named_buffers():
            if name in self._saved:
                buffer.copy_(self._saved[name])


@final
class Snapshot:
    """Generators and buffers, to begin again from."""

    def __init__(self, model: nn.Module) -> None:
        self.noise = RandomState(model)
        self.buffers = Buffers(model)

    def restore(self) -> None:
        self.noise.restore()
        self.buffers.restore()


def draws(model: nn.Module) -> bool:
    """True if a dropout module of the model is on. Other noise is noticed after it was drawn."""
    return any(isinstance(m, nn.modules.dropout._DropoutNd) and m.training and m.p > 0 for m in model.modules())


@contextmanager
def dropout_off(model: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode inside, except those that keep statistics of batches, and RNNs."""
    modes = Modes(model)
    try:
        for module in model.modules():
            # cuDNN's recurrent networks have no backward pass in evaluation.
            if not hasattr(module, "running_mean") and not isinstance(module, nn.RNNBase):
                module.training = False
        yield
    finally:
        modes.restore()
