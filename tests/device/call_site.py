"""The line of code that made the host wait, found on the stack."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import FrameType

import torch

import partialsgd

_PACKAGE = str(Path(partialsgd.__file__).parent)
_TORCH = str(Path(torch.__file__).parent)


def line_of_code() -> str:
    """The innermost line of partialsgd or torch.optim on the stack; without one, the innermost outside torch."""
    hidden = {sys._getframe(1).f_code.co_filename, warnings.__file__}
    outside = "backward"
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_PACKAGE):
            return f"{path[len(_PACKAGE) + 1 :]}:{frame.f_lineno}"
        if path.startswith(f"{_TORCH}/optim/"):
            return f"torch/optim/{Path(path).name}:{frame.f_lineno}"
        if outside == "backward" and path not in hidden and not path.startswith((_TORCH, "<")):
            outside = f"{Path(path).name}:{frame.f_lineno}"
        frame = frame.f_back
    return outside
