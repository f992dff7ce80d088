"""The public names are sorted and the same at run time, for type checkers and in ``dir``."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import noisette

STUB = ast.parse(Path(noisette.__file__).with_suffix(".pyi").read_text())


def typed_names() -> dict[str, str]:
    """Return the name and the module of each import in the stub."""
    imports = [node for node in STUB.body if isinstance(node, ast.ImportFrom) and node.module != "noisette"]
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def test_all_is_sorted_and_as_typed() -> None:
    assert list(noisette.__all__) == sorted(noisette.__all__)
    assert set(noisette.__all__) == set(typed_names())


@pytest.mark.parametrize(("name", "module"), typed_names().items())
def test_name_is_the_object_of_its_module_with_a_docstring_and_no_keyword_dictionary(name: str, module: str) -> None:
    thing = getattr(noisette, name)
    assert thing is getattr(import_module(module), name)
    assert name in dir(noisette)
    assert inspect.getdoc(thing)
    if inspect.isfunction(thing):
        kinds = {p.kind for p in inspect.signature(thing).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_folders_with_public_names_need_no_import_of_their_own() -> None:
    code = "import noisette; print(noisette.data.__name__, noisette.nn.__name__, noisette.audit.__name__)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.split() == ["noisette.data", "noisette.nn", "noisette.audit"]


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Opacus'"):
        noisette.Opacus  # noqa: B018
