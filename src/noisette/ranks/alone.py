"""One process by itself: nothing is exchanged, and what it decides is decided."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from noisette.core.noise import SecretKey


class Alone:
    """A run of this process alone, also where others were started beside it.

    Such processes are separate runs: on the same records each needs a ledger of its own data, or one after another the
    same one, and their costs add up.

    >>> Alone().share(np.arange(3))
    array([0, 1, 2])
    """

    rank = 0
    size = 1

    def key(self) -> SecretKey:
        """A fresh secret key."""
        return SecretKey()

    def share(self, indices: np.ndarray) -> np.ndarray:
        """All of the batch."""
        return indices

    def from_first(self, what: str, compute: Callable[[], Any]) -> Any:
        """What the function returns, as it would arrive at other ranks: as JSON."""
        return json.loads(json.dumps(compute()))

    @contextmanager
    def unanimous(self, phase: str) -> Iterator[dict[str, float]]:
        """A context without effect."""
        yield {}

    def largest(self, phase: str, numbers: Mapping[str, float]) -> dict[str, float]:
        """The numbers themselves."""
        return dict(numbers)

    def of_all(self, phase: str, numbers: Mapping[str, float]) -> list[Mapping[str, float]]:
        """The numbers of this process."""
        return [numbers]

    def check_equal(self, phase: str, facts: Callable[[], Mapping[str, object]]) -> None:
        """Nothing to compare with."""

    def add_up(self, sums: Sequence[Tensor]) -> None:
        """The sums are complete."""

    def gather_into(self, whole: Tensor, part: Tensor) -> None:
        """The part is the whole."""

    def is_known_to_all(self, error: BaseException) -> bool:
        """Whether all ranks raise this error."""
        return True

    def all_close(self) -> bool:
        """Nobody else can still release a step."""
        return True

    def close(self) -> None:
        """Nothing is open."""
