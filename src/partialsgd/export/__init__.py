"""Files for a nested model: `save` and `load` for all levels in one checkpoint, `export` for one level.

`export` writes a level as a plain network in safetensors, ONNX or Hugging Face format.
"""

from __future__ import annotations

from partialsgd.export.checkpoints import load as load
from partialsgd.export.checkpoints import save as save
from partialsgd.export.formats import export as export

__all__ = ["export", "load", "save"]
