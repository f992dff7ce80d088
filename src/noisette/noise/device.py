"""Quicker noise than the plain one, to the bit the same: compiled for a processor, by a Triton kernel on a GPU."""

import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noisette.core import noise as formula
from noisette.core.noise import Noise, Part, Piece, PlainNoise, PlainPass, SecretKey, Words, digits_of


def noise_of_words(radii: Tensor, angles: Tensor, std: Tensor, cosines: Tensor, sines: Tensor) -> list[Tensor]:
    """The formula of ``core.noise`` in operations that a compiler can do in one pass over memory.

    It is right only if it is compiled: ``torch.sqrt`` is not rounded correctly on a processor. Of each pair, in shape
    (tiles, PAIRS), ``radii`` are k - 1 and from bit 53 on the level, and ``angles`` 32 bits; ``std`` is a tensor in
    double precision, so that nothing is compiled anew when it changes. ``cosines`` and ``sines``, apart because putting
    two results into one tensor takes a second pass, get the noise R cos(a) and R sin(a); the cosines are returned, as
    torch compiles no graph without a result.
    """
    dtype, digits = cosines.dtype, digits_of(cosines.dtype)
    k = (radii & formula.MASK) + 1
    r = k.to(dtype)
    below = digits.top - r.view(digits.integers)
    left_out = (k - r.to(torch.int64)).to(dtype) * 2.0 ** (digits.mantissa - 52)
    from_one = (below & (2**digits.mantissa - 1)).to(dtype) - left_out
    s = from_one / (2.0 ** (digits.mantissa + 2) - from_one)
    exponents = (below >> digits.mantissa) + (radii >> formula.RADIUS_BITS).to(digits.integers) * formula.RARE_BITS
    squared = exponents.to(dtype) * formula.TWO_LN_2 + s * _polynomial(digits.logarithm, s * s)
    radius, odd = square_root(squared) * std.to(dtype), angles | 1
    for values, turned in ((cosines, odd), (sines, odd - formula.QUARTER_TURN)):
        t = (formula.QUARTER_TURN - turned.abs()).to(dtype) * (1 / formula.QUARTER_TURN)
        values.copy_(t * _polynomial(digits.sine, t * t) * radius)
    return [cosines]


def square_root(squared: Tensor) -> Tensor:
    """The root, rounded correctly in compiled code."""
    return squared.sqrt()


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    *others, value = coefficients
    result = x * value + others.pop()
    while others:
        result = result * x + others.pop()
    return result


def table_of(parts: Sequence[Part], tiles_of_program: int) -> tuple[np.ndarray, np.ndarray]:
    """How the tiles of several tensors are divided among the programs of one launch of the kernel.

    The tiles of a run are numbered from that in which it begins. Where there are several runs, each of them counts as
    many tiles as it may touch, so that the kernel finds run and tile by one division. There is a row for each part:
    elements, first element in the parameter, elements of a run, elements between the beginnings of runs, tiles of a
    run, first program; and the number of the row of each program.
    """
    rows, owners = [], []
    for number, part in enumerate(parts):
        start, run, stride = part.window.start, part.window.run or part.size, part.window.stride or 0
        tiles = -(-(run - 1) // formula.TILE) + 1 if stride else end_of(part) - start // formula.TILE
        rows.append((part.size, start, run, stride, tiles, len(owners)))
        owners += [number] * -(-(-(-part.size // run) * tiles) // tiles_of_program)
    return np.array(rows, dtype=np.int64), np.array(owners, dtype=np.int32)


def end_of(part: Part) -> int:
    """The tile after the last one of a part, counted from the start of the parameter."""
    size, window = part.size, part.window
    run, stride = window.run or size, window.stride or size
    return (window.start + (size - 1) // run * stride + (size - 1) % run) // formula.TILE + 1


# Measured on two cores: what the compiled pass saves for each value, and what compiling costs, for which a run waits.
_SAVED, _TO_COMPILE = 4e-9, 5.0
# Compiled code always computes all of its tiles: there is code for many, and for what is left of a release.
COMPILED_TILES = formula.TILES_AT_ONCE // 8, formula.TILES_AT_ONCE

Compiled = Callable[..., Any]  # the compiled noise_of_words, of one of these sizes


def example_inputs(dtype: torch.dtype, tiles: int) -> list[Tensor]:
    """Inputs of the shapes with which :func:`noise_of_words` is compiled for sums of this type, in every model."""
    words, values = Words(), torch.zeros(tiles, 2, formula.PAIRS, dtype=dtype)
    radii, angles = torch.from_numpy(words.radii[:tiles]), torch.from_numpy(words.angles[:tiles])
    return [radii, angles, torch.ones((), dtype=torch.float64), values[:, 0], values[:, 1]]


class CompiledPass:
    """The compiled pass for sums of one type, on a processor: it computes as many tiles as its code is for."""

    def __init__(self, compiled: Compiled, dtype: torch.dtype) -> None:
        self._compiled = compiled
        self._std = torch.ones((), dtype=torch.float64)
        self._values = torch.zeros(formula.TILES_AT_ONCE, 2, formula.PAIRS, dtype=dtype)

    def __call__(self, words: Words, tiles: int, std: float) -> np.ndarray:
        self._std.fill_(std)
        size = next(size for size in COMPILED_TILES if size >= tiles)
        radii, angles = torch.from_numpy(words.radii[:size]), torch.from_numpy(words.angles[:size])
        values = self._values[:size]
        self._compiled(radii, angles, self._std, values[:, 0], values[:, 1])
        return values[:tiles].numpy()


def is_faithful(compiled: Compiled, dtype: torch.dtype) -> bool:
    """Whether the compiled pass gives the values of the plain one, for words that are known and words at the extremes.

    To the bit: otherwise the noise of an element would depend on how much is drawn with it.
    """
    # The third is close to u = 1; the others are of the first, the second and the last level.
    tiles, last = formula.TILES_AT_ONCE, formula.LEVELS << formula.RADIUS_BITS
    extremes = [0, formula.MASK, formula.MASK - 2**24, 1 << formula.RADIUS_BITS, last, last | 12]
    words = Words()
    words.fill(SecretKey(bytes(32)), [Piece("a test", 0, tiles * formula.TILE, 0, tiles, 0, 0)], step=0)
    words.radii[: len(extremes)], words.angles[:4] = np.array(extremes)[:, None], np.array([[0], [0], [-1], [-1]])
    words.has_rare = True
    compiled_pass, plain = CompiledPass(compiled, dtype), PlainPass(dtype)
    return all(np.array_equal(compiled_pass(words, size, 1.5), plain(words, size, 1.5)) for size in COMPILED_TILES)


class CompiledNoise:
    """A source of noise for a run.

    For sums in single precision on a GPU it gives the kernel, where Triton is installed; for sums on a processor the
    compiled pass, once that is worth it, if it gives what the plain one gives: an error would leave sums without noise.
    """

    def __init__(self, compiler: Any, still_to_come: Callable[[], float]) -> None:
        self._compiler = compiler  # a schedule of ``capture``, which this folder does not import
        self._still_to_come = still_to_come
        self._drawn = 0
        self._compiled: dict[torch.dtype, Compiled | None] = {}
        self._found: dict[tuple[SecretKey, torch.dtype, torch.device], Noise] = {}
        self._is_unfaithful = False

    def __call__(self, key: SecretKey, dtype: torch.dtype, device: torch.device, values: int) -> Noise | None:
        """The quicker noise of this key, if it is there, before so many values are drawn."""
        if device.type == "cpu" and (values < COMPILED_TILES[0] * formula.TILE or self._is_unfaithful):
            return None
        place = key, dtype, device
        if place not in self._found:
            if device.type != "cpu":
                if device.type != "cuda" or dtype != torch.float32 or find_spec("triton") is None:
                    return None
                from noisette.noise.triton_noise import TritonNoise

                self._found[place] = TritonNoise(key, device)
            elif (compiled := self.compiled(dtype, values)) is not None:
                if is_faithful(compiled, dtype):
                    self._found[place] = PlainNoise(key, dtype, CompiledPass(compiled, dtype))
                else:
                    self._is_unfaithful = True
                    warnings.warn("the compiled noise differs from the plain one, so it is not used", stacklevel=2)
        return self._found.get(place)

    def compiled(self, dtype: torch.dtype, values: int) -> Compiled | None:
        compiler = self._compiler
        if compiler is None or not compiler.compiles:
            return None
        self._drawn += values
        if not compiler.at_once and self._drawn * self._still_to_come() * _SAVED < _TO_COMPILE:
            return None
        if dtype not in self._compiled:
            of_size = {n: compiler.compiled(noise_of_words, example_inputs(dtype, n)) for n in COMPILED_TILES}
            self._compiled[dtype] = None if None in of_size.values() else lambda k, *others: of_size[len(k)](k, *others)
        return self._compiled[dtype]
