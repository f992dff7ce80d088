"""The names of attributes and globals that a function's code reads."""

from __future__ import annotations

import dis
import types
from functools import cache


@cache
def names_read(code: types.CodeType) -> frozenset[str]:
    """The names that code reads, also in the functions that it defines, and the texts in it that may be names.

    A name that is only counted up, as in ``self.calls += 1``, is not read: its value goes nowhere.

    >>> def loss(self): self.calls += 1; return self.weight * getattr(self, "scale")
    >>> sorted(names_read(loss.__code__))
    ['getattr', 'scale', 'weight']
    """
    texts = [text for text in _texts(code.co_consts) if text.isidentifier()]
    inner = [names_read(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return (frozenset(code.co_names) - names_counted(code)).union(texts, *inner)


@cache
def names_counted(code: types.CodeType) -> frozenset[str]:
    """The names that occur in code as ``name += constant`` alone."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "COPY", "SWAP")]
    counted: set[str] = set()
    in_count: set[int] = set()  # instructions of such statements
    for k in range(len(steps) - 3):
        load, constant, add, store = steps[k : k + 4]
        if (
            load.opname in ("LOAD_ATTR", "LOAD_GLOBAL")
            and constant.opname == "LOAD_CONST"
            and add.argrepr == "+="
            and store.opname in ("STORE_ATTR", "STORE_GLOBAL")
            and store.argval == load.argval
        ):
            counted.add(load.argval)
            in_count |= {load.offset, store.offset}
    names = set(code.co_names)
    read = {step.argval for step in steps if step.offset not in in_count and step.argval in names}
    return frozenset(counted - read)


def _texts(constants: tuple[object, ...]) -> list[str]:
    """The texts among the constants of code, also in tuples of them."""
    found: list[str] = []
    for constant in constants:
        if isinstance(constant, str):
            found.append(constant)
        elif isinstance(constant, tuple):
            found += _texts(constant)
    return found
