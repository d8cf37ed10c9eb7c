"""Files for a nested model: `save` and `load` for all levels in one checkpoint, `export` for one level.

`save_pretrained`, `from_pretrained` and `push_to_hub` are the same with a model card, for the Hugging Face Hub.

`export` writes a level as a plain network in safetensors, ONNX or Hugging Face format.
"""

from __future__ import annotations

from partialsgd.export.checkpoints import load as load
from partialsgd.export.checkpoints import save as save
from partialsgd.export.formats import export as export
from partialsgd.export.hub import from_pretrained as from_pretrained
from partialsgd.export.hub import push_to_hub as push_to_hub
from partialsgd.export.hub import save_pretrained as save_pretrained

__all__ = ["export", "from_pretrained", "load", "push_to_hub", "save", "save_pretrained"]
