"""What leaves a run: all levels in one checkpoint, or one level as a plain network in a file that others read.

`save` and `load` keep a whole family; `export` takes one level out, as safetensors, ONNX or a Hugging Face model.
"""

from __future__ import annotations

from partialsgd.export.checkpoints import load as load
from partialsgd.export.checkpoints import save as save
from partialsgd.export.formats import export as export

__all__ = ["export", "load", "save"]
