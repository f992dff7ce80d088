"""Gaussian noise as a pure function of (secret key, parameter name, step, element), by the Box-Muller transform.

Random bits. Elements are computed in tiles of 256: the cosines of 128 pairs, then their sines. The words of tile i of a
parameter are the words 192 i, 192 i + 1, ... of the keystream of (key, "noise", name, step): 64 bits for each radius,
then 32 bits for each angle. So any part of a parameter can be computed from its own tiles, by whoever has the key.

The pair is R cos(a), R sin(a) with R^2 = -2 ln(u), where u is uniform on (0, 1] and a on [-pi, pi). With k - 1 the low
53 bits of the radius' word, u = k 2^-53, unless the first 24 of these bits are zero. Then another word, the one of this
pair in the keystream of (key, "rare radii", name, step), gives k, and u = k 2^-77; and so on, up to ``LEVELS`` times.
The angle is pi times an odd integer of 32 bits over 2^31, so no sine and no cosine is 0.

How far this is from a Gaussian. The u of a pair is an exactly uniform U on (0, 1], rounded up: to a multiple of 2^-53,
and where it is below 2^-24, 2^-48, ..., of 2^-77, 2^-101, ... So the radius has an end, at 46.9, but it is drawn as
finely there as anywhere else, unless U < 2^-1560 = 1e-470.

- Elsewhere rounding moves U by 2^-29 of itself at most, and R by less than 6e-11 of itself where U < 1/2; where U > 1/2
  it moves R^2 by less than 2^-51. A pass computes R and the sines to 2.5e-7 of themselves in single precision, to 5e-16
  in double. So a value is one of an exact Gaussian that is rounded, as any number is.
- That one of N pairs has such a U happens with probability N 2^-1560 at most, whatever the data. So where the mechanism
  with all pairs exact but for rounding is (epsilon, delta)-private, this one is (epsilon, delta + (1 + e^epsilon) N
  2^-1560)-private. For all pairs of all runs together, N < 1e40, and any epsilon < 900, the addition is below 1e-30
  (``accounting.calibrate.NOISE_TAIL``).

Attacks on the last digits of released numbers are left out, as everywhere in this library.

Arithmetic. Only +, -, *, / and square roots are used, each rounded correctly and none fused with another. So
processors and GPUs, eager and compiled code give the same values. Library functions differ in the last digit, also
``torch.sqrt`` on processors. For the logarithm, k is rounded to a floating-point r, and u = v 2^-e with v in (1/2, 1]:

    -2 ln u = e * 2 ln 2 + 4 atanh(s), s = (1 - v) / (1 + v).

1 - v is read from the bits of r, and what the rounding left out, r - k, is added to it. So for u close to one, where
e = 0, the radius keeps all digits: with v alone it would be zero for all u that round to one. For the angle, cos(a) =
sin(pi/2 - |a|), pi/2 - |a| is an integer multiple of pi/2^31, and sin(a) = cos(a - pi/2): one polynomial gives both.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

KEY_BYTES = 32
WORDS_PER_BLOCK = 8  # a block of the cipher holds 64 bytes
_MAX_BLOCK = 2**32  # its counter has 32 bits
_ZEROS = memoryview(bytes(2**16))  # the keystream is the encryption of zeros; as many as stay in the cache


class SecretKey:
    """Thirty-two secret bytes, fresh from the operating system unless given. Never printed, pickled or copied to disk.

    >>> SecretKey()
    SecretKey(hidden)
    """

    def __init__(self, secret: bytes | None = None) -> None:
        secret = os.urandom(KEY_BYTES) if secret is None else secret
        if len(secret) != KEY_BYTES:
            raise ValueError(f"expected a key of {KEY_BYTES} bytes, got {len(secret)}")
        self._secret = secret
        self._process = os.getpid()
        self._stream_key = lru_cache(maxsize=None)(self._derive)
        self._cipher = lru_cache(maxsize=None)(self._cipher_of)
        self._lock = Lock()  # a cipher is at one place at a time

    def __repr__(self) -> str:
        return "SecretKey(hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is never pickled or copied; each process makes its own")

    def _derive(self, purpose: str, name: str) -> bytes:
        """A key of its own for each stream, so that no two streams can ever share a counter."""
        label = f"{len(purpose)}:{purpose}{name}".encode()
        return hashlib.blake2b(label, key=self._secret, digest_size=KEY_BYTES, person=b"noisette").digest()

    def _cipher_of(self, purpose: str, name: str) -> CipherContext:
        """The cipher of a stream, which each use puts to its own place."""
        return Cipher(ChaCha20(self._stream_key(purpose, name), bytes(16)), mode=None).encryptor()

    def stream_key(self, *, purpose: str, name: str, end: int) -> bytes:
        """The key of one stream, for a device that computes its words up to this one itself, with the step as nonce;
        refused in a forked process, and where the stream's counter is exhausted.
        """
        if os.getpid() != self._process:
            raise RuntimeError("this key belongs to the process that made it: a forked copy would repeat its noise")
        if -(-end // WORDS_PER_BLOCK) > _MAX_BLOCK:
            raise RuntimeError(f"stream {purpose!r} of {name!r} is exhausted: over {_MAX_BLOCK} blocks in one step")
        return self._stream_key(purpose, name)

    def fill(self, words: np.ndarray, *, purpose: str, name: str, step: int, start: int = 0) -> None:
        """Write the words ``start, start + 1, ...`` of this stream's step into a contiguous uint64 array."""
        first, skipped = divmod(start, WORDS_PER_BLOCK)
        self.stream_key(purpose=purpose, name=name, end=start + words.size)  # checks the end
        stream = words.data.cast("B")
        with self._lock:
            cipher = self._cipher(purpose, name)
            cipher.reset_nonce(first.to_bytes(4, "little") + step.to_bytes(12, "little"))
            if skipped:
                cipher.update(bytes(8 * skipped))
            for at in range(0, len(stream), len(_ZEROS)):
                part = stream[at : at + len(_ZEROS)]
                cipher.update_into(_ZEROS[: len(part)], part)


TILE = 256  # elements whose noise is computed together


@dataclass(frozen=True)
class Window:
    """Element ``i`` of a flat tensor is element ``start + (i // run) * stride + i % run`` of the flat parameter.

    A shard of rows is one run, where both are ``None``. A shard of columns has a run in each row, the ``stride``.

    >>> [first for _, first, _ in Window(start=2, run=3, stride=10).segments(9)]
    [2, 12, 22]
    """

    start: int = 0
    run: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"a window starts at 0 or later, got {self.start}")
        if (self.run is None) != (self.stride is None):
            raise ValueError(f"run and stride belong together, got {self.run} and {self.stride}")
        # Runs that overlap would give several elements the same noise.
        if self.run is not None and self.stride is not None and not 0 < self.run <= self.stride:
            raise ValueError(f"expected runs of at least 1 element, not longer than the stride, got {self}")

    def segments(self, size: int) -> Iterator[tuple[int, int, int]]:
        """The runs of a tensor of so many elements: first element in the tensor, in the parameter, and length."""
        run, stride = (self.run or size), (self.stride or size)
        for k, at in enumerate(range(0, size, run or 1)):
            yield at, self.start + k * stride, min(run, size - at)


WHOLE = Window()
Named = Mapping[str, Tensor]  # tensors by name
Windows = Mapping[str, Window]  # by the names of tensors
ALL_WHOLE: Windows = MappingProxyType({})


class Part(NamedTuple):
    """A named tensor, as the noise sees it: its number of elements, and which ones of the parameter they are."""

    name: str
    size: int
    window: Window


@dataclass(frozen=True)
class Piece:
    """Elements that follow each other in a tensor and in its parameter, and which tiles of a group have their noise."""

    name: str
    at: int  # the first element, in the tensor
    numel: int
    tile: int  # the first tile, counted from the start of the parameter
    tiles: int
    place: int  # of the first tile in the group
    skipped: int  # values of the first tile that are not used

    @cached_property
    def values(self) -> slice:
        """Their noise among the values of the group."""
        start = self.place * TILE + self.skipped
        return slice(start, start + self.numel)


@lru_cache(maxsize=64)
def groups_of(parts: Sequence[Part], most: int) -> list[list[Piece]]:
    """Divide the elements of all tensors into groups of pieces, each with at most so many tiles.

    A piece that begins or ends inside a tile takes the whole tile. The next one may go on in the same tile.
    """
    groups: list[list[Piece]] = [[]]
    taken = 0
    for part in parts:
        for at, first, length in part.window.segments(part.size):
            done = 0
            while done < length:
                tile, skipped = divmod(first + done, TILE)
                last = groups[-1][-1] if groups[-1] else None
                goes_on = last is not None and last.name == part.name and last.tile + last.tiles - 1 == tile
                place = taken - 1 if goes_on else taken
                if place == most:
                    groups.append([])
                    taken = 0
                    continue
                numel = min(length - done, (most - place) * TILE - skipped)
                tiles = -(-(skipped + numel) // TILE)
                groups[-1].append(Piece(part.name, at + done, numel, tile, tiles, place, skipped))
                done, taken = done + numel, place + tiles
    return groups


PAIRS = TILE // 2
WORDS = PAIRS + PAIRS // 2  # 64-bit words of a tile
TILES_AT_ONCE = 512
RADIUS_BITS = 53
RARE_BITS = 24
RARE = 2 ** (RADIUS_BITS - RARE_BITS)  # below it a word begins with so many zeros, and another one is drawn
LEVELS = 64
RARE_PURPOSE = "rare radii"
MASK = 2**RADIUS_BITS - 1
QUARTER_TURN = 2**30
TWO_LN_2 = 1.3862943611198906
_IN_CACHE = 128  # tiles for which the plain pass's arrays fit into the processor's cache


@dataclass(frozen=True)
class Digits:
    """The constants of the formula in one precision; coefficients of powers of a square, the lowest first."""

    mantissa: int  # its explicit bits
    top: int  # the bits of 2^53; less the bits of r they are e 2^mantissa + (1 - v) 2^(mantissa + 1)
    integers: torch.dtype  # of the size of a floating-point number
    logarithm: tuple[float, ...]  # of 4 atanh(s) / s, for s in [0, 1/3]
    sine: tuple[float, ...]  # of sin(pi/2 t) / t, for t in [-1, 1]


# Minimax polynomials for single precision, Chebyshev's for double. Largest relative errors: 4.5e-9 and 5.3e-9 for the
# first, 1.4e-18 and 3e-19 for the second, before their coefficients are rounded.
SINGLE = Digits(
    mantissa=23,
    top=(127 + 53) << 23,
    integers=torch.int32,
    logarithm=(4.0, 1.333328366279602, 0.8004305362701416, 0.5600361227989197, 0.5602397322654724),
    sine=(1.5707963705062866, -0.645963728427887, 0.07968968152999878, -0.004673766437917948, 0.00015148513193707913),
)
DOUBLE = Digits(
    mantissa=52,
    top=(1023 + 53) << 52,
    integers=torch.int64,
    logarithm=(
        *(4.0, 1.333333333333323, 0.800000000003715, 0.5714285709090823, 0.4444444816149535, 0.3636348166500961),
        *(0.3077322808460802, 0.2660074806534925, 0.24220337456138435, 0.1664901302372164, 0.34088327125562795),
    ),
    sine=(
        *(1.5707963267948966, -0.6459640975062462, 0.07969262624616565, -0.004681754135304255),
        *(0.0001604411847130916, -3.5988430204672576e-06, 5.6921364280986254e-08, -6.684416831856085e-10),
        5.87297574479995e-12,
    ),
)


def digits_of(dtype: torch.dtype) -> Digits:
    """The constants for sums of this type."""
    return DOUBLE if dtype == torch.float64 else SINGLE


class Words:
    """The random words of ``TILES_AT_ONCE`` tiles."""

    def __init__(self) -> None:
        self._words = torch.zeros(TILES_AT_ONCE, WORDS, dtype=torch.int64).numpy().view(np.uint64)
        self.radii = self._words.view(np.int64)[:, :PAIRS]  # k - 1, and from bit 53 on the level
        self.angles = self._words.view(np.int32)[:, 2 * PAIRS :]
        self.has_rare = False  # whether a level is not 0

    def fill(self, key: SecretKey, pieces: Sequence[Piece], *, step: int) -> None:
        """Draw the words of these pieces."""
        for piece in pieces:
            rows = self._words[piece.place : piece.place + piece.tiles]
            key.fill(rows.reshape(-1), purpose="noise", name=piece.name, step=step, start=piece.tile * WORDS)
        radii = self.radii[: pieces[-1].place + pieces[-1].tiles]
        radii &= MASK
        self.has_rare = bool(radii.min() < RARE)
        for piece in pieces if self.has_rare else ():
            rows = radii[piece.place : piece.place + piece.tiles]
            for row, pair in np.argwhere(rows < RARE).tolist():
                rows[row, pair] = rare_radius(key, piece.name, step, (piece.tile + row) * PAIRS + pair)


def rare_radius(key: SecretKey, name: str, step: int, pair: int) -> int:
    """k - 1 and from bit 53 on the level, for a pair of a parameter, counted from its start, whose first k is rare."""
    drawn, level = np.zeros(1, dtype=np.uint64), 0
    while level < LEVELS and drawn[0] < RARE:
        level += 1
        key.fill(drawn, purpose=RARE_PURPOSE, name=name, step=step + (level << 64), start=pair)
        drawn &= np.uint64(MASK)
    return level << RADIUS_BITS | int(drawn[0])


# (words, number of tiles, standard deviation) -> the noise of the first tiles, shape (tiles, 2, PAIRS); at most
# ``TILES_AT_ONCE`` tiles. The noise may be overwritten by the next call.
Pass = Callable[[Words, int, float], np.ndarray]


class PlainPass:
    """The formula in memory of its own. NumPy fuses no operations, and its roots are those of IEEE 754."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._digits = digits_of(dtype)  # arrays of torch are aligned
        kinds = [torch.int64] * 2 + [self._digits.integers] * 2 + [dtype] * 3
        self._of_radii = [torch.empty(_IN_CACHE, PAIRS, dtype=kind).numpy() for kind in kinds]
        kinds = [torch.int32] + [dtype] * 3
        self._of_angles = [torch.empty(2, _IN_CACHE, PAIRS, dtype=kind).numpy() for kind in kinds]
        self._values = torch.empty(TILES_AT_ONCE, 2, PAIRS, dtype=dtype).numpy()

    def __call__(self, words: Words, tiles: int, std: float) -> np.ndarray:
        for start in range(0, tiles, _IN_CACHE):
            some = slice(start, min(start + _IN_CACHE, tiles))
            radius = self.radius(words.radii[some], words.has_rare)
            radius *= std
            np.multiply(self.sines(words.angles[some]), radius, out=self._values[some].swapaxes(0, 1))
        return self._values[:tiles]

    def radius(self, radii: np.ndarray, has_rare: bool) -> np.ndarray:
        """The radius of each pair of at most ``_IN_CACHE`` tiles."""
        digits, mantissa = self._digits, self._digits.mantissa
        k, rounded, below, exponents, r, s, result = (buffer[: len(radii)] for buffer in self._of_radii)
        np.bitwise_and(radii, MASK, out=k)
        k += 1
        r[:] = k
        rounded[:] = r
        k -= rounded
        np.subtract(digits.top, r.view(below.dtype), out=below)
        np.right_shift(below, mantissa, out=exponents)
        below &= 2**mantissa - 1
        s[:] = below
        r[:] = k  # what the rounding left out
        r *= 2.0 ** (mantissa - 52)
        s -= r
        np.subtract(2.0 ** (mantissa + 2), s, out=r)
        s /= r
        _polynomial(digits.logarithm, np.multiply(s, s, out=r), result)
        result *= s
        if has_rare:
            exponents += (radii >> RADIUS_BITS) * RARE_BITS
        r[:] = exponents
        r *= TWO_LN_2
        result += r
        return np.sqrt(result, out=result)

    def sines(self, angles: np.ndarray) -> np.ndarray:
        """Cosines and sines of at most ``_IN_CACHE`` tiles, shape (2, tiles, PAIRS)."""
        turned, t, squared, result = (buffer[:, : len(angles)] for buffer in self._of_angles)
        np.bitwise_or(angles, 1, out=turned[0])
        np.subtract(turned[0], QUARTER_TURN, out=turned[1])
        np.abs(turned, out=turned)
        t[:] = np.subtract(QUARTER_TURN, turned, out=turned)
        t *= 1 / QUARTER_TURN
        _polynomial(self._digits.sine, np.multiply(t, t, out=squared), result)
        result *= t
        return result


def _polynomial(coefficients: Sequence[float], x: np.ndarray, result: np.ndarray) -> None:
    """Its value by Horner's rule, in the memory of ``result``."""
    *others, value = coefficients
    np.multiply(x, value, out=result)
    result += others.pop()
    while others:
        result *= x
        result += others.pop()


class Noise(Protocol):
    """Noise of one key, for sums of one type on one device."""

    def add_(self, sums: Named, parts: tuple[Part, ...], *, step: int, std: float, divisor: float) -> None:
        """Divide the sums of these parts by a number and add noise to them, as :meth:`GaussianNoise.add_`."""


# (key, type, device, number of values) -> a quicker noise than the plain one if it is there, as compiled code or a
# kernel of a GPU, with the same values to the bit; asked in every step, before so many values are drawn.
Source = Callable[[SecretKey, torch.dtype, torch.device, int], Noise | None]


class PlainNoise:
    """Noise that a processor computes, also for sums on another device; by another pass than the plain one if given."""

    def __init__(self, key: SecretKey, dtype: torch.dtype, by: Pass | None = None) -> None:
        self._key = key
        self._words = Words()
        self._pass = by or PlainPass(dtype)

    def add_(self, sums: Named, parts: tuple[Part, ...], *, step: int, std: float, divisor: float) -> None:
        device = sums[parts[0].name].device
        on_host = {p.name: sums[p.name].detach().numpy().reshape(-1) for p in parts} if device.type == "cpu" else {}
        # A GPU would multiply by the reciprocal of a number of the host.
        by: Any = divisor if on_host else torch.tensor(divisor, dtype=torch.float64, device=device)
        for pieces in groups_of(parts, TILES_AT_ONCE):
            self._words.fill(self._key, pieces, step=step)
            tiles = pieces[-1].place + pieces[-1].tiles
            values = self._pass(self._words, tiles, std).reshape(-1)
            for piece in pieces:
                noise, at = values[piece.values], slice(piece.at, piece.at + piece.numel)
                if on_host:
                    elements = on_host[piece.name][at]
                    elements /= by
                    elements += noise
                else:
                    sums[piece.name].detach().view(-1)[at].div_(by).add_(torch.from_numpy(noise).to(device))


class GaussianNoise:
    """A generator of Gaussian noise with a secret key; ``source`` is asked in every call for a quicker one.

    Guarantee: values are independent across names, steps and elements, as far as the cipher is secure. The same key,
    step, name and element give the same value to the bit: whether a tensor is filled at once or in parts, whoever
    computes it, and on every processor and GPU. How far they are from a Gaussian stands at the top of this file.

    >>> noise = GaussianNoise(SecretKey(bytes(32)))
    >>> whole, part = torch.zeros(1000), torch.zeros(100)
    >>> noise.add_({"weight": whole}, step=1)
    >>> noise.add_({"weight": part}, step=1, windows={"weight": Window(start=700)})
    >>> bool((whole[700:800] == part).all())
    True
    """

    def __init__(self, key: SecretKey, source: Source | None = None) -> None:
        self._key = key
        self._source = source
        self._plain: dict[torch.dtype, PlainNoise] = {}

    def add_(
        self, tensors: Named, *, step: int, std: float = 1.0, divisor: float = 1.0, windows: Windows = ALL_WHOLE
    ) -> None:
        """Divide each tensor by a number and add noise of mean zero and this standard deviation to it, in place.

        ``tensors`` are by name, contiguous, all float32 or all float64, on one device, no two in the same memory. The
        noise of a ``step``, below 2^64, must be used only once. ``windows`` say which elements of the named parameter a
        tensor holds, flat; without an entry all, from the first.

        Raises:
            ValueError: a window has the name of no tensor, whose noise would be another one, or the step is too large.
            RuntimeError: the keystream of a step is exhausted, or the process was forked after the key was made.
        """
        if not windows.keys() <= tensors.keys():
            raise ValueError(f"windows of no tensor: {sorted(windows.keys() - tensors.keys())}")
        if not 0 <= step < 2**64:  # beyond are the nonces of rare radii
            raise ValueError(f"expected a step from 0 to 2^64 - 1, got {step}")
        parts = tuple([Part(name, n, windows.get(name, WHOLE)) for name, sum in tensors.items() if (n := sum.numel())])
        if not parts:
            return
        first = tensors[parts[0].name]
        values = sum(part.size for part in parts)
        noise = self._source(self._key, first.dtype, first.device, values) if self._source else None
        if noise is None:
            if first.dtype not in self._plain:
                self._plain[first.dtype] = PlainNoise(self._key, first.dtype)
            noise = self._plain[first.dtype]
        noise.add_(tensors, parts, step=step, std=std, divisor=divisor)
