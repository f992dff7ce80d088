"""What a call of the loss may read in Python: a graph is used only while all of it is as it was when it was traced.

A graph has fixed what Python code decided: a branch on ``model.training``, a temperature in an attribute, the weight of
a term in a global name. This module takes down these values, so that a change of one of them needs another graph.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from noisette.capture.python_walk import WIDEST, Walk

_MOST_ROUNDS = 4  # walks until no new name is found in the code

_HOOKS_OF_ALL = [
    table for name, table in vars(module_hooks).items() if name.startswith("_global_") and isinstance(table, dict)
]


class PythonState:
    """The plain values, and the identities of all else, that a model and functions can reach.

    Followed are all attributes of modules; closures, defaults and global names of functions; containers; and those
    attributes of objects, classes and modules of the user's whose names occur in the code of these functions, but for
    names that are only counted up. Not followed are objects of Python's own library, of torch and of noisette,
    containers of more than a thousand entries, and modules that say ``refreshed_from_public_data``.

    What a module holds is walked again only where something in it is another object than in the last call.

    Args:
        model: given to the functions.
        widest: containers of more entries are not looked into.

    Attributes:
        meets_generator: whether the last call of :meth:`of` has met a generator that is not at its end.
        generators: those of random numbers that it has met.
    """

    def __init__(self, model: nn.Module, widest: int = WIDEST) -> None:
        self._model = model
        self._widest = widest
        self._names: set[str] = {"forward"}  # that the code met so far reads
        self._counted: set[str] = set()
        self._walks: dict[int, Walk] = {}  # of modules
        self.meets_generator = False
        self.generators: list[object] = []

    def of(self, *reached: Any) -> Hashable:
        """What stands there now, given the functions that are called and the other values that they get."""
        walks: list[Walk] = []
        for _ in range(_MOST_ROUNDS):
            known = len(self._names)
            walks = self._all_walks(reached)
            if len(self._names) == known:
                break
            self._walks.clear()  # they have looked for fewer names
        self.meets_generator = any(walk.meets_generator for walk in walks)
        self.generators = [generator for walk in walks for generator in walk.generators]
        return tuple([part for walk in walks for part in (walk.found, _of_tensors(walk), _of_arrays(walk))])

    def _all_walks(self, reached: tuple[Any, ...]) -> list[Walk]:
        """The walk of these values, and those of the modules found on them."""
        first = Walk(self._names, self._counted, self._widest)
        for value in (*_HOOKS_OF_ALL, *reached):
            first.visit(value)
        first.finish()
        walks, met, following = [first], {id(self._model)}, [self._model]
        while following:
            following += [module for module in walks[-1].modules if id(module) not in met]
            met |= {id(module) for module in following}
            walks.append(self._of_module(following.pop(0)))
        return walks

    def _of_module(self, module: nn.Module) -> Walk:
        walk = self._walks.get(id(module))
        if walk is None or not walk.is_unchanged():
            walk = Walk(self._names, self._counted, self._widest)
            walk.visit_parts(module)
            walk.finish()
            self._walks[id(module)] = walk
        return walk


def _of_tensors(walk: Walk) -> Hashable:
    """Which tensors there are and of what kind; their values are looked up by the graph."""
    return tuple([(id(t), t.requires_grad, t.dtype, t.device, _shape(t)) for t in walk.tensors])


def _shape(tensor: Tensor) -> Hashable:
    return (tensor.shape, tensor.stride()) if tensor.layout is torch.strided else tensor.layout


def _of_arrays(walk: Walk) -> Hashable:
    """The values of NumPy's arrays, which a graph holds as constants."""
    return tuple([(array.shape, array.dtype.str, hash(np.ascontiguousarray(array).tobytes())) for array in walk.arrays])
