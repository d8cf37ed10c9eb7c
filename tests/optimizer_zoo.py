"""Every optimizer of torch.optim but SparseAdam, with the options that change its arithmetic or its kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import optim

Make = Callable[[Iterable[torch.nn.Parameter]], optim.Optimizer]

COORDINATE_WISE: dict[str, Make] = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "SGD momentum wd": lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "SGD nesterov foreach": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=True),
    "SGD dampening": lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.3, maximize=True),
    "SGD fused": lambda p: optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "Adam": lambda p: optim.Adam(p, 0.01, weight_decay=0.1),
    "Adam amsgrad foreach": lambda p: optim.Adam(p, 0.01, amsgrad=True, foreach=True),
    "Adam fused": lambda p: optim.Adam(p, 0.01, amsgrad=True, fused=True),
    "Adam maximize": lambda p: optim.Adam(p, 0.01, maximize=True, foreach=False),
    "AdamW": lambda p: optim.AdamW(p, 0.01, weight_decay=0.5),
    "AdamW fused": lambda p: optim.AdamW(p, 0.01, weight_decay=0.5, fused=True),
    "NAdam": lambda p: optim.NAdam(p, 0.01, decoupled_weight_decay=True, weight_decay=0.1),
    "RAdam": lambda p: optim.RAdam(p, 0.01, weight_decay=0.1, foreach=True),
    "Adamax": lambda p: optim.Adamax(p, 0.01, weight_decay=0.1),
    "Adadelta": lambda p: optim.Adadelta(p, 1.0, weight_decay=0.1),
    "Adagrad": lambda p: optim.Adagrad(p, 0.1, lr_decay=0.1, initial_accumulator_value=0.5),
    "Adagrad fused": lambda p: optim.Adagrad(p, 0.1, fused=True),
    "ASGD": lambda p: optim.ASGD(p, 0.1, t0=2, weight_decay=0.1),
    "RMSprop": lambda p: optim.RMSprop(p, 0.01, weight_decay=0.1),
    "RMSprop centered": lambda p: optim.RMSprop(p, 0.01, centered=True, momentum=0.9, foreach=True),
    "Rprop": lambda p: optim.Rprop(p, 0.01),
}
COUPLED: dict[str, Make] = {
    "Adafactor": lambda p: optim.Adafactor(p, 0.01),
    "Muon": lambda p: optim.Muon(p, 0.01, weight_decay=0.1),
}
ALL = COORDINATE_WISE | COUPLED
