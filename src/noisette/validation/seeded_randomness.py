"""Random sources in one known state while a model is examined, also those that its modules hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from noisette._internal.random_state import seed_torch

_SEED = 20160721 % 2**32


@contextmanager
def randomness_seeded(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Every source of randomness keeps its state: torch's, Python's and NumPy's, and generators held by modules.

    Within it modules draw from the global generators of Python and NumPy instead of their own, as far as these are
    their attributes: :class:`~noisette.validation.deterministic.DisableRandomness` reaches the global ones alone.

    Yields:
        A function that puts all of them into one state, to be called before each call of the model.
    """
    held = [source for part in model.modules() for source in vars(part).values() if isinstance(source, torch.Generator)]
    states = [(source, source.get_state()) for source in held]
    before = random.getstate(), np.random.get_state()

    def seed() -> None:
        seed_torch(_SEED)
        random.seed(_SEED)
        np.random.seed(_SEED)
        for source, state in states:
            source.set_state(state)

    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices), _global_generators_instead(model):
        try:
            yield seed
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            for source, state in states:
                source.set_state(state)


@contextmanager
def _global_generators_instead(model: nn.Module) -> Iterator[None]:
    with ExitStack() as originals:
        for table in map(vars, model.modules()):
            for name, source in table.items():
                if (instead := _instead_of(source)) is not None:
                    originals.callback(table.__setitem__, name, source)
                    table[name] = instead
        yield


def _instead_of(source: object) -> Any:
    """What draws from a global generator as this source draws; ``None`` if it is no such source."""
    if isinstance(source, random.Random) and not isinstance(source, random.SystemRandom):
        return random
    if isinstance(source, np.random.RandomState):
        return np.random
    return _AsGenerator(source) if isinstance(source, np.random.Generator) else None


class _AsGenerator:
    """NumPy's global functions by the names of a ``Generator``'s methods; those that it alone has, it keeps."""

    def __init__(self, source: np.random.Generator) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        if name == "integers":
            return self._integers
        drawn = getattr(np.random, name, None)
        if drawn is None or not hasattr(np.random.RandomState, name):
            return getattr(self._source, name)

        def draw(*args: Any, dtype: Any = None, **kwargs: Any) -> Any:
            found = drawn(*args, **kwargs)
            return found if dtype is None else np.asarray(found, dtype)[()]

        return draw

    def _integers(
        self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64, endpoint: bool = False
    ) -> Any:
        low, high = (0, low) if high is None else (low, high)
        return np.asarray(np.random.randint(low, high + endpoint, size), dtype)[()]
