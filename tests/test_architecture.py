"""The house stays as it was drawn: imports point one way, one room releases, no room loads pickles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import noisette

TESTS = Path(__file__).parent
SOURCE = Path(noisette.__file__).parent
# A folder imports only from folders above it in this list; folders on one line do not import each other.
ORDER = [
    ["errors", "_internal"],
    ["accounting"],
    ["sampling", "mechanisms", "gradients"],
    ["clipping"],
    ["lipschitz"],
    ["validation"],
    ["run"],
    ["nn"],
    ["models", "data"],
    ["training"],
    ["audit", "bench"],
    ["cli"],
    ["__main__"],
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
every_file = pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))


def room_of(path: Path, source: Path = SOURCE) -> str:
    return path.relative_to(source).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """Full dotted names of all modules imported anywhere in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows_up(text: str, room: str) -> list[str]:
    """Rooms that a file of this room may not import, but does."""
    rooms = {name.split(".")[1] for name in imported(ast.parse(text)) if name.startswith("noisette.")}
    known = {other for other in rooms if other in LEVEL} - {room}
    return sorted(other for other in known if LEVEL[other] >= LEVEL[room])


def outside(text: str) -> set[str]:
    return {name.split(".")[0] for name in imported(ast.parse(text))}


def attribute_writes(text: str, name: str) -> list[int]:
    """Lines on which an attribute of this name is set."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AugAssign | ast.AnnAssign)
            else []
        )
        leaves = [leaf for target in targets for leaf in ast.walk(target)]
        lines += [
            leaf.lineno
            for leaf in leaves
            if isinstance(leaf, ast.Attribute) and leaf.attr == name and isinstance(leaf.ctx, ast.Store)
        ]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            lines += [node.lineno for arg in node.args if isinstance(arg, ast.Constant) and arg.value == name]
    return lines


@every_file
def test_imports_point_one_way(path: Path) -> None:
    assert arrows_up(path.read_text(), room_of(path)) == []


def test_every_room_has_its_place() -> None:
    assert {room_of(path) for path in FILES} == set(LEVEL)


def test_no_room_of_leftovers() -> None:
    names = {part.removesuffix(".py").strip("_") for path in FILES for part in path.relative_to(SOURCE).parts}
    assert not names & {"utils", "util", "helpers", "helper", "common", "misc", "core", "base_utils"}


@every_file
def test_accounting_and_data_never_import_torch(path: Path) -> None:
    place = path.relative_to(SOURCE)
    if place.parts[0] in ("accounting", "data", "errors.py") or place.parts[:2] == ("training", "recipe"):
        assert "torch" not in outside(path.read_text())


def test_accounting_never_waits_for_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, noisette, noisette.data; noisette.PldAccountant, noisette.Ledger; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_family_of_rules_has_its_tests() -> None:
    families = {path.stem for path in (SOURCE / "gradients" / "rules").glob("*.py")} - {"__init__"}
    assert families <= {path.stem.removeprefix("test_") for path in (TESTS / "gradients" / "rules").glob("test_*.py")}


@every_file
def test_only_the_release_writes_gradients(path: Path) -> None:
    """What a user's hook returns for a released gradient is written back by the joiner; nothing else is."""
    lines = attribute_writes(path.read_text(), "grad")
    if path == SOURCE / "mechanisms" / "gaussian.py":
        assert len(lines) == 1
    elif path == SOURCE / "run" / "dp_sgd.py":
        assert len(lines) <= 1
    else:
        assert lines == []


@every_file
def test_nothing_loads_pickles_or_runs_what_it_reads(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not outside(path.read_text()) & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "yaml"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {
                ("torch", "load"),
                ("torch", "save"),
                ("pickle", "load"),
                ("pickle", "loads"),
                ("np", "save"),
            }
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec", "compile"}
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False


@every_file
def test_noise_and_sampling_have_one_source(path: Path) -> None:
    """No generator but the keystream; the preflight's public inputs and weights at random are not secret."""
    private = {"sampling", "mechanisms", "gradients", "clipping", "run"}
    if (room_of(path) in private and path.stem != "pca") or path.stem == "keystream":
        text = path.read_text()
        assert not outside(text) & {"random", "secrets"}
        for generator in (
            "torch.randn",
            "torch.rand(",
            "torch.normal",
            "np.random",
            "manual_seed",
            "torch.Generator",
            ".normal_(",
        ):
            assert generator not in text


def test_the_checks_see_what_they_are_for() -> None:
    assert arrows_up("from noisette.clipping import per_example", "gradients") == ["clipping"]
    assert arrows_up("def f():\n    from noisette import run", "gradients") == ["run"]
    assert arrows_up("import noisette.clipping.norms", "gradients") == ["clipping"]
    assert arrows_up("from noisette.models import x", "data") == ["models"]
    assert arrows_up("from noisette._internal import checks", "mechanisms") == []
    assert "torch" in outside("def f():\n    import torch.nn")
    assert attribute_writes("p.grad = 1\np.grad += 1\nsetattr(p, 'grad', 1)\nq.grad_fn = p.grad", "grad") == [1, 2, 3]
    assert attribute_writes("a, p.grad = 1, 2", "grad") == [1]
