"""The noise on a device by torch alone: for sums in double precision, and where there is no Triton.

Many small operations, one after the other, so for a GPU: on a processor a library's cipher takes a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from noisette.core.keys import SecretKey
from noisette.mechanisms.box_muller import noised_quotient
from noisette.mechanisms.noise_tiles import PAIRS, WORDS, Part, Stream, TileBuffers

_TILES_AT_ONCE = 2**14  # 4 million values: their operations take longer than it takes to start them
_BLOCKS = WORDS // 8  # of the cipher in a tile
_CONSTANTS = b"expand 32-byte k"


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
            words = self._words(group.streams, step).view(-1, 3 * PAIRS)
            radii, angles = words[:, : 2 * PAIRS].contiguous().view(torch.int64), words[:, 2 * PAIRS :]
            sums = self._buffers.sums[: group.tiles]
            pieces = group.pieces_of(flat)
            group.gather(pieces)
            noised_quotient(radii, angles, sums[:, 0], sums[:, 1], *numbers)
            group.scatter(pieces)

    def _words(self, streams: Sequence[Stream], step: int) -> Tensor:
        """The words of the tiles of these streams, 32 bits each, shape (blocks, 16); the host sends once for all."""
        nonce = bytes(4) + step.to_bytes(12, "little")
        ends = [(stream.tile + stream.tiles) * WORDS for stream in streams]
        secrets = [
            self._key.stream_key(purpose="noise", name=stream.name, end=end)
            for stream, end in zip(streams, ends, strict=True)
        ]
        states = [np.frombuffer(_CONSTANTS + secret + nonce, np.int32) for secret in secrets]
        # Of each stream: its state, its number of blocks, and by how much their counters lie above their places.
        numbers = [
            [*state, s.tiles * _BLOCKS, (s.tile - s.place) * _BLOCKS] for state, s in zip(states, streams, strict=True)
        ]
        sent = torch.tensor(np.array(numbers, dtype=np.int64), device=self._device)
        blocks = sum(stream.tiles for stream in streams) * _BLOCKS
        each = sent.repeat_interleave(sent[:, 16], 0, output_size=blocks).t()
        counters = torch.arange(blocks, device=self._device) + each[17]
        return chacha20_blocks(each[:16].to(torch.int32), counters)


def chacha20_blocks(states: Tensor, counters: Tensor) -> Tensor:
    """The blocks of ChaCha20 keystreams (RFC 8439).

    Args:
        states: the words of constants, key and nonce, as signed integers of 32 bits, shape (16, blocks); the counter is
            filled in.
        counters: below 2^32, shape (blocks,).

    Returns:
        Words as signed integers of 32 bits, shape (blocks, 16).
    """
    first = states.contiguous()
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
