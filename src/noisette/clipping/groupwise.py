"""Groupwise clipping: a norm and a bound of its own for each group of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from noisette import errors as checks
from noisette.core.clip import Group


@dataclass(frozen=True)
class GroupwiseClipping:
    """A norm and a bound of its own for each group of parameters.

    Args:
        bounds: the bound of each group by the name of a module (or of a parameter); the group holds all parameters
            under that name. Every trainable parameter belongs to exactly one group.

    Guarantee: one example moves the sum of each group by at most its bound.
    Source: Abadi et al. 2016, section 4 (a norm for each layer).

    >>> rule = GroupwiseClipping({"body": 1.0, "head": 0.1})
    >>> [(group.names, group.bound) for group in rule.groups(["body.0.weight", "body.1.weight", "head.bias"])]
    [(('body.0.weight', 'body.1.weight'), 1.0), (('head.bias',), 0.1)]
    """

    bounds: Mapping[str, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", dict(self.bounds))
        checks.all_of(
            *(lambda name=name, bound=bound: checks.positive(**{name: bound}) for name, bound in self.bounds.items())
        )

    def groups(self, names: Sequence[str]) -> list[Group]:
        held = {prefix: tuple(name for name in names if _lies_under(name, prefix)) for prefix in self.bounds}
        problems = [f"{prefix!r} names no trainable parameter" for prefix, group in held.items() if not group]
        for name in names:
            prefixes = [repr(prefix) for prefix, group in held.items() if name in group]
            if len(prefixes) != 1:
                problems.append(f"{name} is in {' and '.join(prefixes) or 'no group'}")
        if problems:
            raise ValueError(
                "GroupwiseClipping needs every trainable parameter in exactly one group:\n  " + "\n  ".join(problems)
            )
        return [Group(held[prefix], float(bound)) for prefix, bound in self.bounds.items()]


def _lies_under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")
