"""Random sources in one known state while a model is examined, also those that its modules hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from noisette._internal.random_state import GENERATORS, seed_torch

_SEED = 20160721 % 2**32


@contextmanager
def randomness_seeded(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Every source of randomness keeps its state: torch's, Python's and NumPy's, and generators held by modules.

    Within it modules draw from the global generators of Python and NumPy instead of their own, as far as these are
    their attributes: :class:`~noisette.validation.deterministic.DisableRandomness` reaches the global ones alone.

    Yields:
        A function that puts all of them into one state, to be called before each call of the model.
    """
    held = [_behind(value) for part in model.modules() for value in vars(part).values()]
    states = [(source, _state(source)) for source in held if _has_state(source)]
    before = random.getstate(), np.random.get_state()

    def seed() -> None:
        seed_torch(_SEED)
        random.seed(_SEED)
        np.random.seed(_SEED)
        for source, state in states:
            _restore(source, state)

    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices), _global_generators_instead(model):
        try:
            yield seed
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            for source, state in states:
                _restore(source, state)


def _has_state(source: object) -> bool:
    return isinstance(source, GENERATORS) and not isinstance(source, random.SystemRandom)


def _state(source: Any) -> Any:
    if isinstance(source, random.Random):
        return source.getstate()
    if isinstance(source, np.random.Generator):
        return source.bit_generator.state
    return source.get_state()


def _restore(source: Any, state: Any) -> None:
    if isinstance(source, random.Random):
        source.setstate(state)
    elif isinstance(source, np.random.Generator):
        source.bit_generator.state = state
    else:
        source.set_state(state)


@contextmanager
def _global_generators_instead(model: nn.Module) -> Iterator[None]:
    with ExitStack() as originals:
        for table in map(vars, model.modules()):
            for name, value in table.items():
                if _has_state(value) and not isinstance(value, torch.Generator):
                    originals.callback(table.__setitem__, name, value)
                    table[name] = _StandIn(value)
        yield


def _behind(value: object) -> object:
    """The generator that a stand-in has taken the place of; any other value is itself."""
    return value.source if isinstance(value, _StandIn) else value


class _StandIn:
    """Draws from the global generator of Python or NumPy what a generator draws; what the global one lacks, that does.

    Args:
        source: the generator.
    """

    def __init__(self, source: Any) -> None:
        self.source = source

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "source" not in vars(self):  # as a copy is asked that is being made
            raise AttributeError(name)
        if isinstance(self.source, random.Random):
            return getattr(random, name)
        if isinstance(self.source, np.random.RandomState):
            return getattr(np.random, name)
        if name == "integers":
            return _integers
        drawn = getattr(np.random, name, None) if hasattr(np.random.RandomState, name) else None
        return getattr(self.source, name) if drawn is None else partial(_in_precision, drawn)


def _in_precision(draw: Callable[..., Any], *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """Of a function of NumPy's older generators, which have no ``dtype``."""
    found = draw(*args, **kwargs)
    return found if dtype is None else np.asarray(found, dtype)[()]


def _integers(low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64, endpoint: bool = False) -> Any:
    low, high = (0, low) if high is None else (low, high)
    return np.asarray(np.random.randint(low, high + endpoint, size), dtype)[()]
