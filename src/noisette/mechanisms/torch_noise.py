"""The noise on a device by torch alone: for sums in double precision, and where there is no Triton.

Many small operations, one after the other, so for a GPU: on a processor a library's cipher takes a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from noisette._internal.keystream import SecretKey
from noisette.mechanisms.box_muller import noised_quotient
from noisette.mechanisms.noise_tiles import PAIRS, WORDS, Part, Stream, TileBuffers

_TILES_AT_ONCE = 2**14  # 4 million values: their operations take longer than it takes to start them
_BLOCKS = WORDS // 8  # of the cipher in a tile
_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype=np.int32)


class TorchNoise:
    """Noise of one key, for sums of one type on one device."""

    def __init__(
        self, key: SecretKey, dtype: torch.dtype, device: torch.device, tiles_at_once: int = _TILES_AT_ONCE
    ) -> None:
        self._key = key
        self._device = device
        self._buffers = TileBuffers(dtype, device, tiles_at_once)

    def add_(
        self, flat: Mapping[str, Tensor], parts: tuple[Part, ...], *, step: int, std: float, divisor: float
    ) -> None:
        """Divide each tensor by a number and add noise to it, as ``GaussianNoise.add_``, for these parts."""
        # In the memory of the device: a GPU multiplies by the reciprocal of a number that the host divides by.
        numbers = [torch.tensor(number, dtype=torch.float64, device=self._device) for number in (std, divisor)]
        for group in self._buffers.groups(parts):
            words = torch.cat([self._words(stream, step) for stream in group.streams]).view(-1, 3 * PAIRS)
            radii, angles = words[:, : 2 * PAIRS].contiguous().view(torch.int64), words[:, 2 * PAIRS :]
            sums = self._buffers.sums[: group.tiles]
            pieces = group.pieces_of(flat)
            group.gather(pieces)
            noised_quotient(radii, angles, sums[:, 0], sums[:, 1], *numbers)
            group.scatter(pieces)

    def _words(self, stream: Stream, step: int) -> Tensor:
        """The words of a stream's tiles, 32 bits each, shape (blocks, 16)."""
        end = stream.tile + stream.tiles
        secret = self._key.stream_key(purpose="noise", name=stream.name, end=end * WORDS)
        counters = torch.arange(stream.tile * _BLOCKS, end * _BLOCKS, device=self._device)
        return chacha20_blocks(secret, counters, step)


def chacha20_blocks(secret: bytes, counters: Tensor, step: int) -> Tensor:
    """The blocks of a ChaCha20 keystream (RFC 8439) with these counters.

    Args:
        secret: the key, 32 bytes.
        counters: below 2^32, shape (blocks,).
        step: the nonce.

    Returns:
        Words as signed integers of 32 bits, shape (blocks, 16).
    """
    words = np.concatenate([_CONSTANTS, np.frombuffer(secret + bytes(4) + step.to_bytes(12, "little"), np.int32)])
    first = torch.tensor(words, device=counters.device)[:, None].repeat(1, len(counters))
    first[12] = (counters - ((counters >> 31) << 32)).to(torch.int32)  # the same bits, with a sign
    a, b, c, d = (row.clone() for row in first.view(4, 4, -1))
    for _ in range(10):
        a, b, c, d = _quarter_rounds(a, b, c, d)
        a, b, c, d = _quarter_rounds(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat([a, b, c, d]).add_(first).t().contiguous()


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four at once, one for each column."""
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    return a, _rotated(b ^ c, 7), c, d


def _rotated(x: Tensor, by: int) -> Tensor:
    """To the left. A shift to the right repeats the sign, which is masked away."""
    return (x << by) | ((x >> (32 - by)) & (2**by - 1))
