"""The structure of the package and of the tests: order of imports, single writers and sources, what is never loaded."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import noisette

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SOURCE = Path(noisette.__file__).parent
# A folder imports only from folders above it in this list; folders on one line do not import each other.
ORDER = [
    ["errors"],
    ["accounting", "data"],
    ["core"],
    ["ranks", "rules", "clipping", "capture", "noise", "lipschitz"],
    ["run", "nn"],
    ["training"],
    ["integrations", "audit"],
    ["cli"],
]
LEVEL = {folder: level for level, folders in enumerate(ORDER) for folder in folders}
# The one import against this order, made when it is called: a run writes its statement and report, which know of runs.
LATE = {Path("run/private.py"): {"training"}}
MOST_ENTRIES, MOST_EDGES = 19, 70
MOST_FILES, MOST_LINES, MOST_OTHER_LINES = 132, 32_000, 300  # installed; what is added is paid for
MOST_LINES_OF_CORE, MOST_LINES_OF_A_FILE = 4_340, 693
MOST_LINES_OF_TESTS, MOST_WORDS_OF_PAGES = 40_000, 25_000
MOST_MODULES_OF_A_STEP, MOST_LINES_OF_A_STEP = 53, 14_950  # that are loaded for a private step
# Folders of tests without counterpart in the package: helpers, planted faults, attacks, GPUs, pages, what is not
# installed.
OTHER_TESTS = {"support", "assurance", "redteam", "gpu", "docs", "papers", "zoo", "browser", "benchmarks"}
NOT_INSTALLED = {"papers", "experiments", "examples", "benchmarks", "tests"}
CATCH_ALL = {"utils", "util", "helpers", "helper", "common", "misc", "base_utils"}
UNPICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "yaml"}
UNSAFE_CALLS = {("torch", "load"), ("torch", "save"), ("pickle", "load"), ("pickle", "loads"), ("np", "save")}
RUNNERS = {"eval", "exec", "compile"}
GENERATORS = ("torch.randn", "torch.rand(", "torch.normal", "np.random", "manual_seed", "torch.Generator", ".normal_(")


@dataclass(frozen=True)
class File:
    """A module: its path inside the package, and its text."""

    place: Path
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text)))

    @property
    def folder(self) -> str:
        """The top-level folder, or the name of a module at the top; ``python -m noisette`` is the command line."""
        name = self.place.parts[0].removesuffix(".py")
        return "cli" if name == "__main__" else name

    @cached_property
    def imported(self) -> set[str]:
        """Full dotted names of all modules imported anywhere in the file."""
        names: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.place} has a relative import"
                names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        return names

    @property
    def packages(self) -> set[str]:
        """Top-level names of the packages imported."""
        return {name.split(".")[0] for name in self.imported}

    @property
    def folders(self) -> set[str]:
        """Other top-level folders of noisette that the file imports."""
        parts = [name.split(".") for name in self.imported]
        others = {part[1] for part in parts if part[0] == "noisette" and part[1:]} & set(LEVEL)
        return others - {self.folder} - LATE.get(self.place, set())


FILES = [File(path.relative_to(SOURCE), path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))]
TOP = Path("__init__.py")  # imports every public name when it is first used


# Imports


def imports_against_the_order(file: File) -> list[str]:
    level = LEVEL.get(file.folder, 0)
    return [f"imports {other}" for other in sorted(file.folders) if file.place != TOP and LEVEL[other] >= level]


def edges(files: Iterable[File]) -> set[tuple[str, str]]:
    """Pairs of an importing and an imported top-level folder."""
    return {(file.folder, other) for file in files if file.place != TOP for other in file.folders}


def circles(pairs: Iterable[tuple[str, str]]) -> bool:
    graph = TopologicalSorter[str]()
    for importer, imported in pairs:
        graph.add(importer, imported)
    try:
        graph.prepare()
    except ValueError:
        return True
    return False


def imports_of_what_is_not_installed(file: File) -> list[str]:
    return [f"imports {package}" for package in sorted(file.packages & NOT_INSTALLED)]


def imports_of_torch(file: File) -> list[str]:
    without = file.folder in ("accounting", "data", "errors") or file.place == Path("training/recipe.py")
    return ["imports torch"] if without and "torch" in file.packages else []


def imports_of_core(file: File) -> list[str]:
    """The core imports errors, itself, and the events of accounting alone; everything else is handed in."""
    allowed = ("noisette.core", "noisette.errors", "noisette.accounting.events")
    others = [name for name in file.imported if name.startswith("noisette") and not name.startswith(allowed)]
    return [f"imports {name}" for name in sorted(others) if file.folder == "core" and name != "noisette"]


def test_the_core_can_be_read_in_an_afternoon():
    lines = {str(file.place): file.text.count("\n") for file in FILES if file.folder == "core"}
    assert sum(lines.values()) <= MOST_LINES_OF_CORE, lines
    assert max(lines.values()) <= MOST_LINES_OF_A_FILE, lines


def test_every_folder_has_its_place_in_the_order():
    assert {file.folder for file in FILES if file.place != TOP} == set(LEVEL)


def test_no_circle_between_folders_and_few_edges():
    pairs = edges(FILES)
    assert not circles(pairs)
    assert len(pairs) <= MOST_EDGES


def test_accounting_data_and_names_of_models_run_without_torch():
    code = (
        "import sys, noisette, noisette.data; noisette.PldAccountant, noisette.Ledger\n"
        "from noisette.nn.models import names; sys.exit(not names() or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_private_step_loads_few_modules():
    code = (
        "import sys; from noisette import privatize, PerExampleClip\n"
        "files = [m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'noisette' and m.__file__]\n"
        "print(len(files), sum(open(file, encoding='utf-8').read().count('\\n') for file in files))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules, lines = map(int, done.stdout.split())
    assert modules <= MOST_MODULES_OF_A_STEP
    assert lines <= MOST_LINES_OF_A_STEP


# Folders


def entries(folder: Path) -> list[str]:
    """What a reader finds at the top of the package. The stub repeats ``__init__.py`` and is not counted."""
    return sorted(path.name for path in folder.iterdir() if path.name not in ("__pycache__", "__init__.pyi"))


def folders_without_counterpart(tests: Path, source: Path) -> list[str]:
    """Folders of tests that mirror no folder of the package."""
    folders = {path.parent.relative_to(tests) for path in tests.rglob("*.py")} - {Path()}
    mirrors = [folder for folder in folders if folder.parts[0] not in OTHER_TESTS]
    return sorted(str(folder) for folder in mirrors if not (source / folder).is_dir())


def test_few_entries_at_the_top_of_the_package():
    assert len(entries(SOURCE)) <= MOST_ENTRIES, entries(SOURCE)


def installed(folder: Path) -> list[Path]:
    """The files that the wheel holds."""
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def test_the_package_stays_small():
    files = installed(SOURCE)
    assert len(files) <= MOST_FILES
    lines = {path: path.read_bytes().count(b"\n") for path in files}
    of_python = sum(count for path, count in lines.items() if path.suffix == ".py")
    assert of_python <= MOST_LINES
    assert sum(lines.values()) - of_python <= MOST_OTHER_LINES


def test_tests_and_pages_stay_small():
    assert sum(path.read_bytes().count(b"\n") for path in TESTS.rglob("*.py")) <= MOST_LINES_OF_TESTS
    pages = (ROOT / "docs").rglob("*.md")
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= MOST_WORDS_OF_PAGES


def test_no_file_or_folder_has_a_catch_all_name():
    assert [str(file.place) for file in FILES if catch_all_names(file)] == []


def catch_all_names(file: File) -> set[str]:
    return {part.removesuffix(".py").strip("_") for part in file.place.parts} & CATCH_ALL


def test_tests_mirror_the_package():
    assert sorted(path.name for path in TESTS.glob("*.py")) == ["conftest.py", "test_architecture.py"]
    assert folders_without_counterpart(TESTS, SOURCE) == []


def test_every_module_of_rules_has_its_tests():
    modules = {path.stem for path in (SOURCE / "rules").glob("*.py")} - {"__init__"}
    assert modules <= {path.stem.removeprefix("test_") for path in (TESTS / "rules").glob("test_*.py")}


def test_the_wheel_holds_the_package_alone():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"] == {"packages": ["src/noisette"]}
    assert not [name for name in NOT_INSTALLED if (SOURCE / name).exists()]


# Contents


def attribute_writes(file: File, name: str) -> list[int]:
    """Lines on which an attribute of this name is set."""
    lines = []
    for node in file.nodes:
        if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store):
            lines.append(node.lineno)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            lines += [node.lineno for arg in node.args if isinstance(arg, ast.Constant) and arg.value == name]
    return sorted(lines)


def writes_of_gradients(file: File) -> list[str]:
    lines = attribute_writes(file, "grad")
    # The released gradient; and what a model's own backward pass writes there is taken away.
    expected = {Path("core/release.py"): 1, Path("core/backward.py"): 2}.get(file.place, 0)
    return [] if len(lines) == expected else [f"writes .grad in lines {lines}, expected {expected} of them"]


def unsafe_loads(file: File) -> Iterator[str]:
    """Uses of pickles, of ``eval``, ``exec`` and ``compile``, and of arrays that may hold pickles."""
    yield from (f"imports {package}" for package in sorted(file.packages & UNPICKLERS))
    for node in file.nodes:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) in UNSAFE_CALLS
        ):
            yield f"line {node.lineno} uses {node.value.id}.{node.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RUNNERS:
            yield f"line {node.lineno} calls {node.func.id}"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            refused = isinstance(node.value, ast.Constant) and node.value.value is False
            yield from () if refused else [f"line {node.value.lineno} may allow pickles"]


def generators(file: File) -> Iterator[str]:
    """Sources of randomness beside the keystream, in files that draw noise or batches.

    The first guess of a principal component is public, not secret.
    """
    private = {"core", "noise", "clipping", "run"}
    if (file.folder in private and file.place.stem not in ("pca", "steps", "vmap")) or file.place == Path(
        "core/noise.py"
    ):
        yield from (f"imports {package}" for package in sorted(file.packages & {"random", "secrets"}))
        yield from (f"uses {generator}" for generator in GENERATORS if generator in file.text)


CHECKS = [imports_against_the_order, imports_of_what_is_not_installed, imports_of_torch, imports_of_core]
CHECKS += [writes_of_gradients, unsafe_loads, generators]


@pytest.mark.parametrize("check", CHECKS)
def test_no_file_offends(check):
    assert [f"{file.place}: {offence}" for file in FILES for offence in check(file)] == []
    assert Path("core/release.py") in {file.place for file in FILES}


# Each check reports a planted offence


def file(place: str, text: str) -> File:
    return File(Path(place), text)


def test_planted_imports_are_reported():
    rules = "rules/linear.py"
    for text, other in [
        ("from noisette.clipping import per_example", "clipping"),
        ("def f():\n    from noisette import run", "run"),
        ("import noisette.clipping.engines", "clipping"),
        ("from noisette.nn import views", "nn"),
    ]:
        assert imports_against_the_order(file(rules, text)) == [f"imports {other}"]
    assert imports_against_the_order(file("data/load.py", "from noisette.nn.models import x")) == ["imports nn"]
    assert imports_against_the_order(file("run/pca.py", "from noisette.errors import positive")) == []
    assert imports_against_the_order(file("run/pca.py", "from noisette.training import x")) == ["imports training"]
    assert imports_against_the_order(file("run/private.py", "from noisette.nn import x")) == ["imports nn"]

    two = [file("run/private.py", "import noisette.nn"), file("nn/scattering.py", "from noisette import run, nn")]
    assert edges(two) == {("run", "nn"), ("nn", "run")}
    assert circles(edges(two))
    assert not circles(edges(two[:1]))

    assert imports_of_what_is_not_installed(file("cli/train.py", "from papers.abadi_2016 import runs"))
    assert imports_of_torch(file("data/idx.py", "def f():\n    import torch.nn"))
    assert imports_of_torch(file("training/recipe.py", "from torch import nn"))
    assert not imports_of_torch(file("training/loop.py", "import torch"))


def test_planted_files_are_reported(tmp_path):
    for path in ("source/run/x.py", "source/__pycache__/x.pyc", "source/__init__.pyi", "tests/run/test_x.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert entries(tmp_path / "source") == ["run"]
    tests = tmp_path / "tests"
    assert folders_without_counterpart(tests, tmp_path / "source") == []
    for path in ("docs", "support", "run/parts", "price"):
        (tests / path).mkdir()
        (tests / path / "test_y.py").touch()
    assert folders_without_counterpart(tests, tmp_path / "source") == ["price", "run/parts"]
    assert catch_all_names(file("run/_utils.py", "")) == {"utils"}
    assert catch_all_names(file("common/run.py", "")) == {"common"}


def test_planted_contents_are_reported():
    text = "p.grad = 1\np.grad += 1\nsetattr(p, 'grad', 1)\nq.grad_fn = p.grad"
    assert attribute_writes(file("nn/x.py", text), "grad") == [1, 2, 3]
    assert attribute_writes(file("nn/x.py", "a, p.grad = 1, 2"), "grad") == [1]
    assert writes_of_gradients(file("nn/x.py", "p.grad = 1"))
    assert writes_of_gradients(file("core/release.py", ""))

    for text in (
        "import pickle",
        "from yaml import safe_load",
        "torch.load(path)",
        "load = np.save",
        "eval(text)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=allowed)",
    ):
        assert len(list(unsafe_loads(file("data/npz.py", text)))) == 1, text
    assert not list(unsafe_loads(file("data/npz.py", "np.load(path, allow_pickle=False)")))

    for text in ("import random", "from secrets import token_bytes", "x = torch.randn(3)", "x.normal_()"):
        assert len(list(generators(file("core/noise.py", text)))) == 1, text
        assert list(generators(file("core/noise.py", text)))
        assert not list(generators(file("run/pca.py", text)))
        assert not list(generators(file("nn/batch_norm.py", text)))
