"""The layers Wx + b that can be nested: Linear, Conv2d and Hugging Face's Conv1D."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@final
@dataclass(frozen=True)
class LinearMap:
    """The class, sizes and options of a layer, without its numbers. Weights here are (outputs, inputs, *kernel)."""

    kind: Literal["linear", "conv2d", "conv1d_hf"]
    outputs: int
    inputs: int
    kernel: tuple[int, int] | tuple[()] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.kind != "conv2d":
            return F.linear(x, weight, bias)
        stride, dilation, padding = self.options["stride"], self.options["dilation"], self.options["padding"]
        if self.options["padding_mode"] != "zeros":
            x, padding = F.pad(x, self.options["pads"], mode=self.options["padding_mode"]), 0
        return F.conv2d(x, weight, bias, stride, padding, dilation)

    def apply_pointwise(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply by a matrix at each position, whatever the kernel of the layer."""
        return F.conv2d(x, weight[:, :, None, None], bias) if self.kind == "conv2d" else F.linear(x, weight, bias)

    @property
    def full_rank(self) -> int:
        return min(self.outputs, self.inputs * math.prod(self.kernel))

    def is_worth_merging(self, x: Tensor) -> bool:
        """True if x has so many positions n that one joined weight is cheaper: n · (in + out) > in · out."""
        positions = x.numel() // (x.shape[1] if self.kind == "conv2d" else x.shape[-1])
        inputs = self.inputs * math.prod(self.kernel)
        return positions * (inputs + self.outputs) > inputs * self.outputs

    def stored(self, weight: Tensor) -> Tensor:
        """Return the weight in the layout that the class stores, or from that layout; Conv1D stores the transpose."""
        return weight.t() if self.kind == "conv1d_hf" else weight

    def weight_of(self, layer: nn.Module) -> Tensor:
        """Return the weight of a layer as (outputs, inputs, *kernel)."""
        return self.stored(layer.get_parameter("weight").detach())

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of a layer of the class that other code may read, besides its parameters and sizes."""
        if self.kind != "conv2d":
            return {}
        options = {key: value for key, value in self.options.items() if key != "pads"}
        return {**options, "kernel_size": self.kernel, "groups": 1, "transposed": False}

    def build(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """Return a plain layer of the class with these values; it is trained if they require gradients."""
        outputs, inputs, has_bias = weight.shape[0], weight.shape[1], bias is not None
        if self.kind == "conv2d":
            options = {key: value for key, value in self.options.items() if key != "pads"}
            conv = nn.Conv2d(inputs, outputs, self.kernel or 1, bias=has_bias, device="meta", **options)
            return _filled(conv, weight, bias)
        if self.kind == "conv1d_hf" and has_bias:  # a Conv1D always has a bias
            with torch.device("meta"):
                return _filled(_hf_conv1d()(outputs, inputs), weight.t(), bias)
        return _filled(nn.Linear(inputs, outputs, bias=has_bias, device="meta"), weight, bias)

    def build_pointwise(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """Return a plain layer that multiplies by a matrix at each position."""
        outputs, inputs = weight.shape
        if self.kind == "conv2d":
            conv = nn.Conv2d(inputs, outputs, 1, bias=bias is not None, device="meta")
            return _filled(conv, weight[:, :, None, None], bias)
        return _filled(nn.Linear(inputs, outputs, bias=bias is not None, device="meta"), weight, bias)


def linear_map_of(layer: nn.Module) -> LinearMap | str:
    """Return the linear map of a layer that can be nested, or the reason why it cannot."""
    if isinstance(layer, (nn.Linear, nn.Conv2d)) and layer._parameters.get("weight") is None:
        return "its weight is computed from other parameters, as by weight_norm"
    if type(layer) is nn.Linear:
        return LinearMap("linear", layer.out_features, layer.in_features)
    if type(layer) is nn.Conv2d:
        if layer.groups != 1:
            return f"it is a grouped convolution (groups={layer.groups})"
        keys = ("stride", "padding", "dilation", "padding_mode")
        options: dict[str, Any] = {key: getattr(layer, key) for key in keys}
        options["pads"] = layer._reversed_padding_repeated_twice
        height, width = layer.kernel_size
        return LinearMap("conv2d", layer.out_channels, layer.in_channels, (height, width), options)
    conv1d = _hf_conv1d()
    if conv1d is not None and type(layer) is conv1d:
        inputs, outputs = layer.get_parameter("weight").shape
        return LinearMap("conv1d_hf", outputs, inputs)
    if isinstance(layer, (nn.Linear, nn.Conv2d)):
        return f"it is a {type(layer).__name__}, a subclass that may compute more than the layer that it extends"
    return f"it is a {type(layer).__name__}; only Linear, Conv2d and Hugging Face's Conv1D can be nested"


def parameter_like(original: Tensor, values: Tensor) -> nn.Parameter:
    """Return a parameter with a copy of the values, in the dtype and with the `requires_grad` of the original."""
    copied = values.detach().to(original.dtype).clone(memory_format=torch.contiguous_format)
    return nn.Parameter(copied, original.requires_grad)


def _filled(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    layer.register_parameter("weight", parameter_like(weight, weight))
    layer.register_parameter("bias", None if bias is None else parameter_like(bias, bias))
    return layer


def _hf_conv1d() -> Any:
    # A model with a Conv1D has imported transformers already; nobody else should wait for that import.
    return getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
