"""Random bits as a function of (seed, t, branch, name), equal on every rank, every device and after a resume."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from operator import index

import torch
from torch import Tensor

_CHUNK = 1 << 16  # 64-bit words at a time: the dozen integer passes below stay in a CPU's cache


def key(*parts: int | str) -> int:
    """A stable 64-bit number from the parts, without a call count or a global generator."""
    text = "\0".join(f"str:{part}" if isinstance(part, str) else f"int:{index(part)}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def bernoulli(seed: int, shape: torch.Size, keep: float, device: torch.device, start: int = 0) -> Tensor:
    """True with probability `keep`, rounded to 2⁻¹⁶ (2⁻³² where `keep` is within 1 % of 0 or 1).

    With `start`, the numbers from this index on of a larger tensor.
    """
    lane = torch.int16 if 0.01 <= keep <= 0.99 else torch.int32
    bits = torch.iinfo(lane).bits
    below = round(keep * 2**bits) - 2 ** (bits - 1)
    drawn = torch.ones(shape, dtype=torch.bool, device=device)
    if below == 2 ** (bits - 1):
        return drawn
    flat, lanes_a_word = drawn.view(-1), 64 // bits
    first, skipped = divmod(start, lanes_a_word)
    if skipped:  # begin with the whole word, and leave out what comes before the part
        flat = torch.ones(skipped + len(flat), dtype=torch.bool, device=device)
    for begin, chunk in words(seed, -(-len(flat) // lanes_a_word), device, first):
        part = flat[begin * lanes_a_word :][: len(chunk) * lanes_a_word]
        torch.lt(chunk.view(lane)[: len(part)], below, out=part.view(torch.uint8))  # into bool it is slower
    return flat[skipped:].view(shape)


def words(seed: int, count: int, device: torch.device, first: int = 0) -> Iterator[tuple[int, Tensor]]:
    """`count` independent 64-bit words, chunk by chunk in one buffer: SplitMix64 of a counter, on any device.

    The counter begins at `first`.
    """
    chunk = min(count, _CHUNK) if device.type == "cpu" else count
    steps = torch.arange(chunk, dtype=torch.int64, device=device).mul_(_GOLDEN)
    buffer, scratch = torch.empty_like(steps), torch.empty_like(steps)
    for start in range(0, count, max(chunk, 1)):
        length = min(chunk, count - start)
        z = torch.add(steps[:length], _signed(seed + (first + start) * _GOLDEN), out=buffer[:length])
        _mix(z, scratch[:length])
        yield start, z


def _mix(z: Tensor, scratch: Tensor) -> None:
    for shift, factor in _ROUNDS:
        torch.bitwise_right_shift(z, shift, out=scratch)
        scratch.bitwise_and_((1 << (64 - shift)) - 1)  # torch shifts keep the sign; SplitMix64's do not
        z.bitwise_xor_(scratch)
        if factor is not None:
            z.mul_(factor)


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_ROUNDS = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)), (31, None))
