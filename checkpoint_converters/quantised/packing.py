"""Small integers unpacked from the words that checkpoints store them in."""

from __future__ import annotations

import torch
from torch import Tensor

WORD_BITS = 32


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """``[A, B] i32`` -> ``[A, B * 32 / bits] u8``: the numbers in each word, lowest bits first.
    ``bits`` divide 8."""
    octets = words.reshape(-1).view(torch.uint8).view(len(words), -1)
    if bits == 8:
        return octets
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return ((octets[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2)


def centred(numbers: Tensor, bits: int) -> Tensor:
    """Numbers ``0 .. 2^bits - 1`` as u8, minus the midpoint: int8."""
    return (numbers.to(torch.int16) - (1 << (bits - 1))).to(torch.int8)
