"""Texts as tensors of characters: the lines of a folder, or generated phrases."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from partialsgd.lab.recipes.translation import phrases
from partialsgd.lab.training.errors import WrongCall

_UNKNOWN = "\x00"
_LANGUAGE = "en"


@final
@dataclass(frozen=True)
class Text:
    """The splits of a text; characters that are not in the training split are all the same one."""

    name: str
    splits: Mapping[str, str]

    @cached_property
    def characters(self) -> dict[str, int]:
        return {character: k for k, character in enumerate([_UNKNOWN, *sorted(set(self.splits["train"]))])}

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256("\x01".join(self.splits[name] for name in sorted(self.splits)).encode()).hexdigest()[:12]

    def tensor(self, split: str) -> Tensor:
        return torch.tensor([self.characters.get(character, 0) for character in self.splits[split]])

    def windows(self, split: str, length: int, most: int) -> Tensor:
        """The first windows of `length` characters and the one that follows, which do not overlap but for that one."""
        every = self.tensor(split).unfold(0, length + 1, length)
        return every[:most]


@cache
def generated() -> Text:
    """Phrases of the embedded corpus."""
    splits = phrases.generate(_LANGUAGE, "de", size=4000, valid=400, test=400, seed=0).splits
    return Text(
        "generated phrases", {name: "\n".join(english for english, _ in pairs) for name, pairs in splits.items()}
    )


def read(folder: Path) -> Text:
    """The English side of a folder of translations."""
    return Text(folder.name, {split: _read(folder, split) for split in ("train", "valid", "test")})


def _read(folder: Path, split: str) -> str:
    plain, packed = folder / f"{split}.{_LANGUAGE}", folder / f"{split}.{_LANGUAGE}.gz"
    if plain.exists():
        return plain.read_text(encoding="utf-8")
    if packed.exists():
        return gzip.decompress(packed.read_bytes()).decode("utf-8")
    raise WrongCall(f"{folder} has neither {plain.name} nor {packed.name}; give a folder with three such files")
