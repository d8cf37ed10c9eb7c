"""Wx + b: the three classes of layers that can be nested, and how each holds its weight."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kind = Literal["linear", "conv2d", "conv1d_hf"]


@final
@dataclass(frozen=True)
class Form:
    """A layer without its numbers. Weights are (outputs, inputs, *kernel), whatever the class stores."""

    kind: Kind
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

    def pointwise(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer as a product with a matrix in each place, whatever its kernel."""
        if self.kind == "conv2d":
            return F.conv2d(x, weight[:, :, None, None], bias)
        return F.linear(x, weight, bias)

    def has_many_places(self, x: Tensor) -> bool:
        """Whether one weight for all places of x is worth making: places · (in + out) > in · out."""
        places = x.numel() // (x.shape[1] if self.kind == "conv2d" else x.shape[-1])
        inputs = self.inputs * math.prod(self.kernel)
        return places * (inputs + self.outputs) > inputs * self.outputs

    def as_stored(self, weight: Tensor) -> Tensor:
        """The weight as the class holds it."""
        return weight.t() if self.kind == "conv1d_hf" else weight

    def plain(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """A layer of the class with these numbers; a parameter keeps whether it is trained."""
        layer = self._empty(weight.shape[0], weight.shape[1], bias is not None)
        is_linear = isinstance(layer, nn.Linear)  # Hugging Face's Conv1D always has a bias
        layer.register_parameter("weight", _parameter(weight if is_linear else self.as_stored(weight)))
        layer.register_parameter("bias", None if bias is None else _parameter(bias))
        return layer

    def plain_pointwise(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        layer: nn.Module
        if self.kind == "conv2d":
            layer = nn.Conv2d(weight.shape[1], weight.shape[0], 1, bias=bias is not None, device="meta")
            weight = weight[:, :, None, None]
        else:
            layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        layer.register_parameter("weight", _parameter(weight))
        layer.register_parameter("bias", None if bias is None else _parameter(bias))
        return layer

    def _empty(self, outputs: int, inputs: int, bias: bool) -> nn.Module:
        if self.kind == "linear" or (self.kind == "conv1d_hf" and not bias):
            return nn.Linear(inputs, outputs, bias=bias, device="meta")
        if self.kind == "conv2d":
            given = {key: value for key, value in self.options.items() if key != "pads"}
            return nn.Conv2d(inputs, outputs, self.kernel or 1, bias=bias, device="meta", **given)
        with torch.device("meta"):
            layer: nn.Module = _conv1d_of_transformers()(outputs, inputs)
        return layer


def form_of(layer: nn.Module) -> Form | str:
    """The form of a layer that can be nested, or why it cannot."""
    if type(layer) is nn.Linear:
        return Form("linear", layer.out_features, layer.in_features)
    if type(layer) is nn.Conv2d:
        if layer.groups != 1:
            return f"it is a grouped convolution (groups={layer.groups})"
        keys = ("stride", "padding", "dilation", "padding_mode")
        options: dict[str, Any] = {key: getattr(layer, key) for key in keys}
        options["pads"] = layer._reversed_padding_repeated_twice
        height, width = layer.kernel_size
        return Form("conv2d", layer.out_channels, layer.in_channels, (height, width), options)
    conv1d = _conv1d_of_transformers()
    if conv1d is not None and type(layer) is conv1d:
        inputs, outputs = layer.get_parameter("weight").shape
        return Form("conv1d_hf", outputs, inputs)
    if isinstance(layer, (nn.Linear, nn.Conv2d)):
        return f"it is a {type(layer).__name__}, which may compute more than the layer that it extends"
    return f"it is a {type(layer).__name__}; only Linear, Conv2d and Hugging Face's Conv1D are understood"


def weight_of(layer: nn.Module, form: Form) -> Tensor:
    """The layer's weight as (outputs, inputs, *kernel)."""
    weight = layer.get_parameter("weight").detach()
    return weight.t() if form.kind == "conv1d_hf" else weight


def like(parameter: nn.Parameter, values: Tensor) -> nn.Parameter:
    """A parameter of its own with these values, trained if `parameter` is."""
    return nn.Parameter(
        values.to(parameter.dtype).clone(memory_format=torch.contiguous_format), parameter.requires_grad
    )


def _parameter(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.detach().clone(memory_format=torch.contiguous_format), values.requires_grad)


def _conv1d_of_transformers() -> Any:
    # A model that has one has imported it: nobody else should wait for transformers.
    module = sys.modules.get("transformers.pytorch_utils")
    return getattr(module, "Conv1D", None)
