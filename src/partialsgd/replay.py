"""ξ_t: two passes of one step see the same noise, and the second leaves no trace in the buffers."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn


@final
class RandomState:
    """The global torch generators as they are now: the CPU's, and those of the GPUs that the model uses."""

    def __init__(self, model: nn.Module) -> None:
        self._cpu = torch.get_rng_state()
        devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
        self._cuda = {device: torch.cuda.get_rng_state(device) for device in devices}

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        for device, state in self._cuda.items():
            torch.cuda.set_rng_state(state, device)


@final
class Modes:
    """Whether each module of the model is in training, as it is now."""

    def __init__(self, model: nn.Module) -> None:
        self._saved = [(module, module.training) for module in model.modules()]

    def restore(self) -> None:
        for module, mode in self._saved:
            module.training = mode


@final
class Buffers:
    """The model's buffers (BatchNorm statistics among them) as they are now."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._saved: dict[str, Tensor] = {name: b.detach().clone() for name, b in model.named_buffers()}

    @torch.no_grad()
    def restore(self) -> None:
        for name, buffer in self._model.named_buffers():
            if name in self._saved:
                buffer.copy_(self._saved[name])


@final
class Moment:
    """Noise and buffers as they are now, to begin again from."""

    def __init__(self, model: nn.Module) -> None:
        self.noise = RandomState(model)
        self.buffers = Buffers(model)
