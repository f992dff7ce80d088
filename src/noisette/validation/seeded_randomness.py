"""Random sources in one known state while a model is examined, also those that its modules hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from noisette.core.randomness import GENERATORS, OF_PYTHON_AND_NUMPY, bits_of, seed_torch

_SEED = 20160721 % 2**32


@contextmanager
def randomness_seeded(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Every source of randomness keeps its state: torch's, Python's and NumPy's, and generators held by modules.

    Yields:
        A function that puts all of them into one state, to be called before each call of the model.
    """
    held = [source for part in model.modules() for source in vars(part).values() if _has_state(source)]
    states = [(source, _state(source)) for source in held]
    before = random.getstate(), np.random.get_state()

    def seed() -> None:
        seed_torch(_SEED)
        random.seed(_SEED)
        np.random.seed(_SEED)
        for source, state in states:
            _restore(source, state)

    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices):
        try:
            yield seed
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            for source, state in states:
                _restore(source, state)


def own_generators(model: nn.Module) -> list[str]:
    """Names of the attributes of modules that are generators of NumPy or Python, which no check can make constant."""
    return [
        f"{name}.{key}" if name else key
        for name, part in model.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, OF_PYTHON_AND_NUMPY)
    ]


def _has_state(source: object) -> bool:
    if isinstance(source, np.random.Generator | np.random.BitGenerator):
        return bits_of(source) is not None
    return isinstance(source, GENERATORS) and not isinstance(source, random.SystemRandom)


def _state(source: Any) -> Any:
    if isinstance(source, random.Random):
        return source.getstate()
    return source.get_state() if (bits := bits_of(source)) is None else bits.state


def _restore(source: Any, state: Any) -> None:
    if isinstance(source, random.Random):
        source.setstate(state)
    elif (bits := bits_of(source)) is not None:
        bits.state = state
    else:
        source.set_state(state)
