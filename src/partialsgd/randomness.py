"""(seed, t, branch, name) ↦ bits: the same draw on every rank, every device and after every resume."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

_CHUNK = 1 << 16  # 64-bit words at a time: the dozen integer passes below stay in the cache of a CPU


def key(*parts: int | str) -> int:
    """A stable 64-bit number for a place in a run; no call count, no global generator."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def words(seed: int, count: int, device: torch.device) -> Tensor:
    """`count` independent 64-bit words: SplitMix64 of a counter, so any device gives the same."""
    out = torch.empty(count, dtype=torch.int64, device=device)
    chunk = _CHUNK if device.type == "cpu" else max(count, 1)
    scratch = torch.empty(min(chunk, count), dtype=torch.int64, device=device)
    steps = torch.arange(min(chunk, count), dtype=torch.int64, device=device).mul_(_signed(0x9E3779B97F4A7C15))
    for start in range(0, count, chunk):
        z = out[start : start + chunk]
        torch.add(steps[: len(z)], _signed(seed + start * 0x9E3779B97F4A7C15), out=z)
        _mix(z, scratch[: len(z)])
    return out


def bernoulli(seed: int, shape: torch.Size, keep: float, device: torch.device) -> Tensor:
    """True with probability `keep`, rounded to 2⁻¹⁶ (2⁻³² where `keep` is within 1 % of 0 or 1)."""
    lane = torch.int16 if 0.01 <= keep <= 0.99 else torch.int32
    bits = torch.iinfo(lane).bits
    count = shape.numel()
    lanes = words(seed, -(-count * bits // 64), device).view(lane)[:count]
    below = round(keep * 2**bits) - 2 ** (bits - 1)
    return lanes.lt(below).view(shape) if below < 2 ** (bits - 1) else lanes.new_ones(shape, dtype=torch.bool)


def _mix(z: Tensor, scratch: Tensor) -> None:
    for shift, factor in _ROUNDS:
        torch.bitwise_right_shift(z, shift, out=scratch)
        scratch.bitwise_and_((1 << (64 - shift)) - 1)  # torch shifts keep the sign; SplitMix64's do not
        z.bitwise_xor_(scratch)
        if factor != 1:
            z.mul_(factor)


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _rounds() -> Iterator[tuple[int, int]]:
    yield 30, _signed(0xBF58476D1CE4E5B9)
    yield 27, _signed(0x94D049BB133111EB)
    yield 31, 1


_ROUNDS = tuple(_rounds())
