"""Where the quicker noise of a run comes from: compiled code on a processor, a kernel on a GPU.

Code for a processor is compiled once that saves more time than it takes, or at once where that is asked for. There is
one compiled pass for all models with sums of one type, so the next run on the same machine finds it on disk.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from noisette.capture.graph import CaptureError, trace
from noisette.capture.schedule import Schedule
from noisette.core.noise import (
    LEVELS,
    MASK,
    PAIRS,
    RADIUS_BITS,
    TILE,
    TILES_AT_ONCE,
    Noise,
    Piece,
    PlainNoise,
    PlainPass,
    SecretKey,
    Words,
)
from noisette.mechanisms.device_noise import device_noise, noise_of_words

# Measured on two cores: what the compiled pass saves for each value, and what compiling costs, for which a run waits.
_SAVED, _TO_COMPILE = 4e-9, 5.0
# The compiled pass always computes all tiles. Up to this number the plain one takes less time.
_FEWEST_TILES = TILES_AT_ONCE // 8

Compiled = Callable[..., Any]
"""The compiled :func:`~noisette.mechanisms.device_noise.noise_of_words`."""


def example_inputs(dtype: torch.dtype) -> list[Tensor]:
    """Inputs of the shapes with which :func:`noise_of_words` is compiled for sums of this type, in every model."""
    words, values = Words(), torch.zeros(TILES_AT_ONCE, 2, PAIRS, dtype=dtype)
    return [words.radii, words.angles, torch.ones((), dtype=torch.float64), values[:, 0], values[:, 1]]


class CompiledPass:
    """The compiled pass for sums of one type, on a processor. It computes all ``TILES_AT_ONCE`` tiles."""

    def __init__(self, compiled: Compiled, dtype: torch.dtype) -> None:
        self._compiled = compiled
        self._std = torch.ones((), dtype=torch.float64)
        self._values = torch.zeros(TILES_AT_ONCE, 2, PAIRS, dtype=dtype)

    def __call__(self, words: Words, tiles: int, std: float) -> Tensor:
        self._std.fill_(std)
        self._compiled(words.radii, words.angles, self._std, self._values[:, 0], self._values[:, 1])
        return self._values[:tiles]


def is_faithful(compiled: Compiled, dtype: torch.dtype) -> bool:
    """Whether the compiled pass gives the values of the plain one, for words that are known and words at the extremes.

    To the bit: otherwise the noise of an element would depend on how much is drawn with it.
    """
    # The third is close to u = 1; the others are of the first, the second and the last level.
    extremes = torch.tensor(
        [0, MASK, MASK - 2**24, 1 << RADIUS_BITS, LEVELS << RADIUS_BITS, LEVELS << RADIUS_BITS | 12]
    )
    words = Words()
    words.fill(SecretKey(bytes(32)), [Piece("a test", 0, TILES_AT_ONCE * TILE, 0, TILES_AT_ONCE, 0, 0)], step=0)
    words.radii[: len(extremes)], words.angles[:4] = extremes[:, None], torch.tensor([[0], [0], [-1], [-1]])
    words.has_rare = True
    values = CompiledPass(compiled, dtype)(words, TILES_AT_ONCE, 1.5)  # first: the plain pass overwrites the words
    return torch.equal(values, PlainPass(dtype)(words, TILES_AT_ONCE, 1.5))


class CompiledNoise:
    """A source of noise for a run.

    For sums on a GPU it gives the kernel. For sums on a processor it gives the compiled pass, as soon as that is worth
    it, if it gives what the plain one gives: an error in compiled code would leave sums without noise.

    Args:
        schedule: whether anything is compiled for a processor, and whether it is waited for; ``None``: nothing is.
        still_to_come: how many times the work so far is still to come.
    """

    def __init__(self, schedule: Schedule | None, still_to_come: Callable[[], float]) -> None:
        self._schedule = schedule
        self._still_to_come = still_to_come
        self._drawn = 0
        self._compiled: dict[torch.dtype, Compiled | None] = {}
        self._found: dict[tuple[SecretKey, torch.dtype, torch.device], Noise] = {}
        self._is_unfaithful = False

    def __call__(self, key: SecretKey, dtype: torch.dtype, device: torch.device, values: int) -> Noise | None:
        """The quicker noise of this key, if it is there, before so many values are drawn."""
        if device.type == "cpu" and (values < _FEWEST_TILES * TILE or self._is_unfaithful):
            return None
        place = key, dtype, device
        if place not in self._found:
            if device.type != "cpu":
                self._found[place] = device_noise(key, dtype, device)
            elif (compiled := self.compiled(dtype, values)) is not None:
                if is_faithful(compiled, dtype):
                    self._found[place] = PlainNoise(key, dtype, CompiledPass(compiled, dtype), _FEWEST_TILES)
                else:
                    self._is_unfaithful = True
                    warnings.warn("the compiled noise differs from the plain one, so it is not used", stacklevel=2)
        return self._found.get(place)

    def compiled(self, dtype: torch.dtype, values: int) -> Compiled | None:
        """The compiled pass for sums of this type, if it is there, before so many values are drawn."""
        schedule = self._schedule
        if schedule is None or not schedule.compiles:
            return None
        self._drawn += values
        if not schedule.at_once and self._drawn * self._still_to_come() * _SAVED < _TO_COMPILE:
            return None
        if dtype not in self._compiled:
            inputs = example_inputs(dtype)
            try:
                graph = trace(noise_of_words, inputs).compiled(inputs)
                self._compiled[dtype] = lambda *given: graph(given)
            except CaptureError:  # without a compiler noise is drawn as before, and the result is the same
                self._compiled[dtype] = None
        return self._compiled[dtype]
