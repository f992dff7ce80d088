"""The public names: few, sorted, the same for people, type checkers and ``dir``."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import noisette

TREE = ast.parse(Path(noisette.__file__).read_text())


def typed_names() -> dict[str, str]:
    """Name and room of each import under TYPE_CHECKING."""
    [block] = [node for node in TREE.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def test_all_is_sorted_and_as_typed() -> None:
    assert list(noisette.__all__) == sorted(noisette.__all__)
    assert set(noisette.__all__) == set(typed_names())


@pytest.mark.parametrize(("name", "room"), typed_names().items())
def test_name_is_that_of_its_room(name: str, room: str) -> None:
    from importlib import import_module

    assert getattr(noisette, name) is getattr(import_module(room), name)
    assert name in dir(noisette)


@pytest.mark.parametrize("name", noisette.__all__)
def test_name_says_what_it_is(name: str) -> None:
    thing = getattr(noisette, name)
    assert inspect.getdoc(thing)
    if inspect.isfunction(thing):
        kinds = {p.kind for p in inspect.signature(thing).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Opacus'"):
        noisette.Opacus  # noqa: B018


def test_refusals_are_errors_of_their_own() -> None:
    assert issubclass(noisette.MissingRule, noisette.PrivacyRefusal)
    assert issubclass(noisette.PrivacyRefusal, RuntimeError)
    assert not issubclass(noisette.PrivacyRefusal, Warning)


def test_version() -> None:
    assert noisette.__version__.count(".") == 2
