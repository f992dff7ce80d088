"""The random states that user code advances: torch's, NumPy's and Python's global generators, and single generators."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_BITS = 2**63 - 1


def reseed_later(generators: Iterable[object]) -> Callable[[], None]:
    """Draw a seed from each global generator and from each of these now; the function that is returned sets them.

    Whatever is drawn in between, the states that it sets are functions of the states at the time of this call.
    Torch's generators on accelerators get the seed of the one on the processor.
    """
    seeded = _all(generators)
    seeds = [draw() for draw, _ in seeded]

    def reseed() -> None:
        for (_, seed), value in zip(seeded, seeds, strict=True):
            seed(value)

    return reseed


def seed_secretly(generators: Iterable[object]) -> Callable[[], None]:
    """Give each global generator and each of these a seed from the operating system, which nobody knows.

    The function that is returned is that of :func:`reseed_later`.
    """
    generators = list(generators)
    reseed = reseed_later(generators)
    for _, seed in _all(generators):
        seed(secrets.randbits(63))
    return reseed


_Seeded = tuple[Callable[[], int], Callable[[int], Any]]  # draws a seed, and sets one

_default: _Seeded = (lambda: _drawn(torch.default_generator), torch.manual_seed)
_numpy: _Seeded = (lambda: int(np.random.randint(2**32, dtype=np.uint32)), lambda seed: np.random.seed(_words(seed)))
_python: _Seeded = (lambda: random.getrandbits(63), lambda seed: random.seed(seed))


def _all(generators: Iterable[object]) -> list[_Seeded]:
    return [_default, _numpy, _python, *(_of(generator) for generator in generators)]


def _words(seed: int) -> list[int]:
    """A seed of 64 bits as NumPy's older generators take it."""
    return [seed % 2**32, seed >> 32]


def _of(generator: Any) -> _Seeded:
    if isinstance(generator, torch.Generator):
        return lambda: _drawn(generator), generator.manual_seed
    if isinstance(generator, random.Random):
        return lambda: generator.getrandbits(63), lambda seed: generator.seed(seed)
    if isinstance(generator, np.random.RandomState):
        return lambda: int(generator.randint(2**32, dtype=np.uint32)), lambda seed: generator.seed(_words(seed))
    bits = generator.bit_generator

    def seed(value: int) -> None:
        bits.state = type(bits)(value).state

    return lambda: int(generator.integers(_BITS)), seed


def _drawn(generator: torch.Generator) -> int:
    drawn = torch.empty((), dtype=torch.int64, device=generator.device).random_(0, _BITS, generator=generator)
    return int(drawn)


def generator_apart() -> torch.Generator:
    """A generator with a secret seed, which leaves torch's global one alone."""
    return torch.Generator().manual_seed(secrets.randbits(63))
