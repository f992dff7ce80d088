"""The values inside nested containers: what pytrees open, and other mappings and dataclasses as well."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_map

Args = tuple[Any, ...]  # of a call
Keywords = dict[str, Any]
Change = Callable[[Any], Any]


def leaves(value: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Every value that is no container, in a fixed order; containers for which ``is_leaf`` holds are not opened."""
    if is_leaf is None:  # most values of a step are tensors in tuples, and opening these is all there is to do
        if isinstance(value, Tensor):
            return [value]
        if type(value) in (tuple, list):
            return [leaf for part in value for leaf in leaves(part)]
        if type(value) is dict:
            return [leaf for part in value.values() for leaf in leaves(part)]
    found: list[Any] = []
    for leaf in tree_flatten(value, is_leaf)[0]:
        inside = None if is_leaf and is_leaf(leaf) else children(leaf)
        found += [leaf] if inside is None else leaves(list(inside.values()), is_leaf)
    return found


def map_leaves(change: Change, value: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """The same containers with ``change`` applied to every value that :func:`leaves` finds."""

    def changed(leaf: Any) -> Any:
        inside = None if is_leaf and is_leaf(leaf) else children(leaf)
        if inside is None:
            return change(leaf)
        return _with_children(leaf, {key: map_leaves(change, child, is_leaf) for key, child in inside.items()})

    return tree_map(changed, value, is_leaf=is_leaf)


def with_leaves(value: Any, replacements: Sequence[Any]) -> Any:
    """The same containers with these values, in the order of :func:`leaves`."""
    following = iter(replacements)
    return map_leaves(lambda _: next(following), value)


def tensors(value: object) -> list[Tensor]:
    """Every tensor inside."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, Tensor)]


def children(value: Any) -> dict[Any, Any] | None:
    """What a container holds that pytrees do not open; ``None`` for a value that is no such container."""
    if isinstance(value, PackedSequence):
        return {"data": value.data}
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return None


def _with_children(value: Any, children: dict[Any, Any]) -> Any:
    """A copy of the container with other values; a mapping that cannot be written becomes a ``dict``."""
    if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
        return children
    if isinstance(value, PackedSequence):
        return PackedSequence(children["data"], *value[1:])
    changed = copy.copy(value)
    for key, child in children.items():
        if isinstance(changed, MutableMapping):
            changed[key] = child
        else:
            object.__setattr__(changed, key, child)  # also in a frozen dataclass
    return changed
