"""The noise of all tensors on a GPU in one launch: ChaCha20, Box-Muller, division and addition in registers.

A lane computes three blocks of the cipher: blocks 2c, 2c + 1 and 16 + c of a tile (c = 0..7) hold the 16 radii and the
16 angles of pairs 16 c to 16 c + 15. So it makes 32 values, and needs no word of another lane.
The values are those of the processor to the bit: the same operations in the same order, each rounded correctly. So
``enable_fp_fusion`` is off, and division and root are those of IEEE 754; Triton's ``/`` and ``sqrt`` are not.
"""

import numpy as np
import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from noisette.core import noise as formula
from noisette.core.noise import SINGLE, Named, Part, SecretKey
from noisette.noise import device as device_noise

# Functions of the kernel are in Triton's language, which only looks like Python: tuples grow while a loop is unrolled.
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false


_TILES = 16  # of one program: 128 lanes of 32 values, one for each thread of four warps

_L0, _L1, _L2, _L3, _L4 = [tl.constexpr(c) for c in SINGLE.logarithm]
_S0, _S1, _S2, _S3, _S4 = [tl.constexpr(c) for c in SINGLE.sine]
_MASK, _TOP, _QUARTER = tl.constexpr(formula.MASK), tl.constexpr(SINGLE.top), tl.constexpr(formula.QUARTER_TURN)
_RARE, _RARE_BITS = tl.constexpr(formula.RARE), tl.constexpr(formula.RARE_BITS)
_LEVELS, _LN = tl.constexpr(formula.LEVELS), tl.constexpr(formula.TWO_LN_2)
_LEFT_OUT, _TO_TURNS = tl.constexpr(2.0**-29), tl.constexpr(2.0**-30)


@triton.jit
def _quarter_round(a, b, c, d):
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _key(words):
    key = ()
    for word in tl.static_range(8):
        key = key + (tl.load(words + word).to(tl.uint32, bitcast=True),)  # noqa: RUF005
    return key


@triton.jit
def _block(key, counter, nonce):
    """The 16 words of a block of ChaCha20 (RFC 8439) for each lane, under one key of 8 words and a nonce of 3."""
    zero = counter ^ counter
    x0, x1, x2, x3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    x4, x5, x6, x7 = zero + key[0], zero + key[1], zero + key[2], zero + key[3]
    x8, x9, x10, x11 = zero + key[4], zero + key[5], zero + key[6], zero + key[7]
    x12, x13, x14, x15 = counter, zero + nonce[0], zero + nonce[1], zero + nonce[2]
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    constants = (x0 + 0x61707865, x1 + 0x3320646E, x2 + 0x79622D32, x3 + 0x6B206574)
    first_half = (x4 + key[0], x5 + key[1], x6 + key[2], x7 + key[3])
    second_half = (x8 + key[4], x9 + key[5], x10 + key[6], x11 + key[7])
    return constants + first_half + second_half + (x12 + counter, x13 + nonce[0], x14 + nonce[1], x15 + nonce[2])


@triton.jit
def _bits(low, high):
    return (high.to(tl.int64) << 32 | low.to(tl.int64)) & _MASK


@triton.jit
def _radius(bits, level):
    """The radius of k - 1 and a level, by the formula of ``core.noise``."""
    k = bits + 1
    r = k.to(tl.float32)
    below = -r.to(tl.int32, bitcast=True) + _TOP
    left_out = (k - r.to(tl.int64)).to(tl.float32) * _LEFT_OUT
    from_one = (below & 0x7FFFFF).to(tl.float32) - left_out
    s = tl.div_rn(from_one, 33554432.0 - from_one)
    z = s * s
    series = (((z * _L4 + _L3) * z + _L2) * z + _L1) * z + _L0
    exponent = (below >> 23) + level * _RARE_BITS
    return tl.sqrt_rn(exponent.to(tl.float32) * _LN + s * series)


@triton.jit
def _sine(turned):
    t = (-tl.abs(turned) + _QUARTER).to(tl.float32) * _TO_TURNS
    y = t * t
    return ((((y * _S4 + _S3) * y + _S2) * y + _S1) * y + _S0) * t


@triton.jit
def _rare(radii):
    """Which of the eight pairs of a block of radii are rare, a bit for each."""
    rare = (radii[0] ^ radii[0]).to(tl.int32)
    for pair in tl.static_range(8):
        rare |= (_bits(radii[2 * pair], radii[2 * pair + 1]) < _RARE).to(tl.int32) << pair
    return rare


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _values(radii, level, first, angles, std):
    """The cosines and the sines of the eight pairs of a block of radii, from these angles on, in a row of both."""
    values = ()
    for pair in tl.static_range(8):
        radius = _radius(_bits(radii[2 * pair], radii[2 * pair + 1]), level) * std
        odd = angles[first + pair].to(tl.int32, bitcast=True) | 1
        values = values + (_sine(odd) * radius, _sine(odd - _QUARTER) * radius)  # noqa: RUF005
    return values


@triton.jit
def _rows(x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15, lanes: tl.constexpr):
    """One tensor of 16 columns, so that neighbours in memory are written together."""
    a0, a1, a2, a3 = tl.join(x0, x8), tl.join(x1, x9), tl.join(x2, x10), tl.join(x3, x11)
    a4, a5, a6, a7 = tl.join(x4, x12), tl.join(x5, x13), tl.join(x6, x14), tl.join(x7, x15)
    b0, b1, b2, b3 = tl.join(a0, a4), tl.join(a1, a5), tl.join(a2, a6), tl.join(a3, a7)
    return tl.reshape(tl.join(tl.join(b0, b2), tl.join(b1, b3)), [lanes, 16])


@triton.jit
def _add(sums, values, wanted, within, run, begin, size, divisor):
    """Divide elements of a run by ``divisor`` and add those values (lanes, 16) to them whose bit is in ``wanted``.

    The first value of a lane is for element ``within`` of its run, which has ``run`` from ``begin`` of the tensor on.
    """
    place = within[:, None] + tl.arange(0, 16)[None, :]
    element = begin[:, None] + place
    is_wanted = (wanted[:, None] >> tl.arange(0, 16)[None, :]) & 1 != 0
    is_there = is_wanted & (place >= 0) & (place < run) & (element < size)
    total = tl.load(sums + element, mask=is_there, other=0.0)
    tl.store(sums + element, tl.div_rn(total, divisor) + values, mask=is_there)


@triton.jit
def _add_pairs(sums, lower, upper, angles, level, wanted, within, run, begin, size, std, divisor, lanes: tl.constexpr):
    """Add the noise of the wanted ones of the 16 pairs of each lane, whose radii are two blocks of a level."""
    v = _values(lower, level, 0, angles, std)
    w = _values(upper, level, 8, angles, std)
    cosines = _rows(
        v[0], v[2], v[4], v[6], v[8], v[10], v[12], v[14], w[0], w[2], w[4], w[6], w[8], w[10], w[12], w[14], lanes
    )
    sines = _rows(
        v[1], v[3], v[5], v[7], v[9], v[11], v[13], v[15], w[1], w[3], w[5], w[7], w[9], w[11], w[13], w[15], lanes
    )
    _add(sums, cosines, wanted, within, run, begin, size, divisor)
    _add(sums, sines, wanted, within + 128, run, begin, size, divisor)


@triton.jit(do_not_specialize=["step0", "step1", "step2"])
def _noise(pointers, table, keys, owners, step0, step1, step2, std, divisor, tiles: tl.constexpr, lanes: tl.constexpr):
    """A program takes as many tiles of one tensor as it has lanes for: one in eight."""
    program = tl.program_id(0)
    row = tl.load(owners + program)
    sums = tl.load(pointers + row).to(tl.pointer_type(tl.float32))
    size, start = tl.load(table + 6 * row), tl.load(table + 6 * row + 1)
    run, stride = tl.load(table + 6 * row + 2), tl.load(table + 6 * row + 3)
    tiles_of_run, first = tl.load(table + 6 * row + 4).to(tl.int32), tl.load(table + 6 * row + 5).to(tl.int32)
    key = _key(keys + 16 * row)
    nonce = (step0.to(tl.uint32), step1.to(tl.uint32), step2.to(tl.uint32))

    lane = tl.arange(0, lanes)
    number = (program - first) * tiles + lane // 8  # of the tile among those of the tensor
    number_of_run = (number // tiles_of_run).to(tl.int64)
    start_of_run = start + number_of_run * stride
    tile = (start_of_run >> 8) + number % tiles_of_run
    column = lane % 8
    within = tile * 256 + 16 * column - start_of_run
    begin = number_of_run * run

    counter = (tile * 24).to(tl.uint32)
    lower = _block(key, counter + (2 * column).to(tl.uint32), nonce)
    upper = _block(key, counter + (2 * column + 1).to(tl.uint32), nonce)
    angles = _block(key, counter + (16 + column).to(tl.uint32), nonce)
    rare = _rare(lower) | _rare(upper) << 8
    _add_pairs(sums, lower, upper, angles, 0, ~rare, within, run, begin, size, std, divisor, lanes)

    # One program in ten thousand has a rare radius. Its words are those of the next level, until none is rare.
    counter_of_rare = (tile * 16 + 2 * column).to(tl.uint32)
    level = 1
    while tl.reduce(rare, 0, _either) != 0:
        key_of_rare = _key(keys + 16 * row + 8)
        nonce_of_rare = (step0.to(tl.uint32), step1.to(tl.uint32), (step2 + level).to(tl.uint32))
        next_lower = _block(key_of_rare, counter_of_rare, nonce_of_rare)
        next_upper = _block(key_of_rare, counter_of_rare + 1, nonce_of_rare)
        still = rare & (_rare(next_lower) | _rare(next_upper) << 8)
        still = tl.where(level < _LEVELS, still, 0)
        wanted = rare & ~still
        _add_pairs(sums, next_lower, next_upper, angles, level, wanted, within, run, begin, size, std, divisor, lanes)
        rare = still
        level += 1


class TritonNoise:
    """Noise of one key on one device (a GPU, or a processor for Triton's interpreter), for sums in single precision.

    The keys of the streams lie in its memory as long as this object. A program computes ``tiles``, a power of two.
    """

    def __init__(self, key: SecretKey, device: torch.device, tiles: int = _TILES) -> None:
        self._key = key
        self._device = device
        self._tiles = tiles
        self._tables: dict[tuple[Part, ...], tuple[Tensor, Tensor, Tensor]] = {}

    def add_(self, sums: Named, parts: tuple[Part, ...], *, step: int, std: float, divisor: float) -> None:
        """Divide the sums of these parts by a number and add noise to them, as ``GaussianNoise.add_``."""
        table, keys, owners = self._tables_for(parts)
        pointers = self._sent(np.array([sums[part.name].data_ptr() for part in parts], dtype=np.int64))
        nonce = np.frombuffer(step.to_bytes(12, "little"), dtype=np.int32)
        with torch.cuda.device(self._device if self._device.type == "cuda" else -1):
            given = (pointers, table, keys, owners, *nonce.tolist(), std, divisor)
            _noise[(len(owners),)](
                *given, tiles=self._tiles, lanes=8 * self._tiles, num_warps=4, enable_fp_fusion=False
            )

    def _tables_for(self, parts: tuple[Part, ...]) -> tuple[Tensor, Tensor, Tensor]:
        # In every call, so that a forked process gets none.
        secrets = [
            self._key.stream_key(purpose=purpose, name=p.name, end=device_noise.end_of(p) * formula.WORDS)
            for p in parts
            for purpose in ("noise", formula.RARE_PURPOSE)
        ]
        if parts not in self._tables:
            rows, owners = device_noise.table_of(parts, self._tiles)
            keys = np.frombuffer(b"".join(secrets), dtype=np.int32)
            self._tables[parts] = self._sent(rows), self._sent(keys), self._sent(owners)
        return self._tables[parts]

    def _sent(self, numbers: np.ndarray) -> Tensor:
        here = torch.from_numpy(numbers.copy())
        return here.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else here
