"""Faults planted in the library on purpose, as the tables of ``planted/`` say, and the tests that must see them.

A table has one entry per fault: the harm, the changes, the tests that catch it (``::test`` in the same file), and
``seen_as``, errors that show it beside a failed assertion. ``on_ranks`` plants it in the processes that a test starts.
A change is named by what it changes, without ``noisette.``:

- a string for a function: statements that run before all others, in which ``whole`` is the unchanged function;
- two strings for a function: a part of its source, which stands there once, and what replaces it;
- a string for anything else, and for methods that ``dataclass`` has written: the expression that replaces it.
"""

import ast
import builtins
import functools
import importlib
import inspect
import re
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Self

import pytest

import process_group
from noisette.errors import PrivacyError

TESTS = Path(__file__).parent.parent
# How a test fails that has seen a fault; any other error would only say that the patch itself is broken.
_SEEN = (AssertionError, PrivacyError, pytest.fail.Exception)
# The areas, in the order of one training step, by the names of their tables.
AREAS = {
    "batches": "Batches, and public numbers",
    "records": "Drawing and loading of records",
    "loops": "Loops, optimizers and collation",
    "trainers": "Trainers of other libraries",
    "clipping": "Bounds by clipping",
    "rounding": "Rounding",
    "capture": "Captured steps",
    "repeated": "Passes that are repeated",
    "memory": "Memory",
    "separate": "Examples kept apart",
    "lipschitz": "Bounds without clipping",
    "published": "State that is published with the weights",
    "random": "Random numbers within a batch",
    "noise": "Noise",
    "banded": "Noise that is correlated over steps",
    "costs": "Prices",
    "ledger": "Ledger and resumed runs",
    "ranks": "Several ranks",
    "ingredients": "Views, averages, and small runs",
    "search": "Searches and closed form",
}


@dataclass(frozen=True)
class Change:
    """A change of one function, constant or class attribute of the library."""

    target: str
    change: str | tuple[str, str]

    def _place(self) -> tuple[ModuleType, Any, str]:
        *path, name = f"noisette.{self.target}".split(".")
        module = importlib.import_module(path[0])
        while len(path) > 1 and hasattr(module, "__path__"):
            module = importlib.import_module(f"{module.__name__}.{path.pop(1)}")
        return module, functools.reduce(getattr, path[1:], module), name

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        module, owner, name = self._place()
        function = _function_in(inspect.getattr_static(owner, name))
        if function is None or not Path(function.__code__.co_filename).is_file():  # made by a decorator
            assert isinstance(self.change, str), self.target
            patch.setattr(owner, name, eval(self.change, dict(vars(module))))
        else:
            patch.setattr(function, "__code__", self._code(function, patch))
        self.clear_caches()

    def clear_caches(self) -> None:
        for value in vars(self._place()[0]).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()

    def _code(self, function: FunctionType, patch: pytest.MonkeyPatch) -> CodeType:
        file, first = function.__code__.co_filename, function.__code__.co_firstlineno
        source = Path(file).read_text(encoding="utf-8")
        nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
        node = next(node for node in nodes if min(part.lineno for part in (node, *node.decorator_list)) == first)
        lines = source.splitlines(keepends=True)
        if isinstance(self.change, str):
            whole = f"whole_{self.target.replace('.', '_')}"
            patch.setitem(function.__globals__, whole, _copy(function))
            statements = re.sub(r"\bwhole\b", whole, self.change).rstrip() + "\n"
            lines.insert(node.body[0].lineno - 1, textwrap.indent(statements, " " * node.body[0].col_offset))
        else:
            old, new = self.change
            own = "".join(lines[first - 1 : node.end_lineno])
            assert own.count(old) == 1, f"{old!r} stands {own.count(old)} times in {self.target}"
            lines[first - 1 : node.end_lineno] = [own.replace(old, new)]
        codes = _codes(compile("".join(lines), file, "exec", dont_inherit=True))
        return next(code for code in codes if (code.co_firstlineno, code.co_name) == (first, node.name))


def _function_in(value: Any) -> FunctionType | None:
    """The function that a decorator has left in a method, property, cache or context manager."""
    while not isinstance(value, FunctionType) or hasattr(value, "__wrapped__"):
        within = (getattr(value, name, None) for name in ("__func__", "fget", "func", "__wrapped__"))
        value = next((inner for inner in within if inner is not None), None)
        if value is None:
            return None
    return value


def _copy(function: FunctionType) -> FunctionType:
    names = function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    copy = FunctionType(*names)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


@dataclass(frozen=True)
class Mutant:
    """A fault of the kind that such libraries have had."""

    name: str  # what is wrong, in a few words
    harm: str  # what that would do
    changes: tuple[Change, ...]
    caught_by: tuple[str, ...]  # tests by their names below ``tests/``; each of them must fail
    seen_as: tuple[type[BaseException], ...] = ()  # errors that show the fault beside a failed assertion
    on_ranks: bool = False  # it is planted in the processes that a test starts, not in the test's own

    @classmethod
    def of(cls, name: str, entry: dict[str, Any]) -> Self:
        harm, tests, on_ranks = entry.pop("harm"), _whole_names(entry.pop("tests")), entry.pop("on_ranks", False)
        seen_as = tuple(getattr(builtins, error) for error in entry.pop("seen_as", ()))
        changes = [Change(key, value if isinstance(value, str) else tuple(value)) for key, value in entry.items()]
        return cls(name, harm, tuple(changes), tests, seen_as, on_ranks)

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        if self.on_ranks:
            patch.setattr(process_group, "PLANTED", self.changes)
            return
        for change in self.changes:
            change(patch)


@dataclass(frozen=True)
class Fault:
    """A fault around a run, its outcome, and the tests that try it, by their names below ``tests/``."""

    name: str
    outcome: str
    tried_by: tuple[str, ...]


def _whole_names(tests: Sequence[str]) -> tuple[str, ...]:
    """The names of tests, of which one without a file is in that of the one before it."""
    found: list[str] = []
    for test in tests:
        found.append(found[-1].partition("::")[0] + test if test.startswith("::") else test)
    return tuple(found)


def _read(table: str) -> list[tuple[str, dict[str, Any]]]:
    text = (TESTS / "assurance" / "planted" / f"{table}.toml").read_text(encoding="utf-8")
    return list(tomllib.loads(text).items())


GROUPS = {area: [Mutant.of(*each) for each in _read(table)] for table, area in AREAS.items()}
MUTANTS = [mutant for group in GROUPS.values() for mutant in group]
FAULTS = [Fault(name, entry["outcome"], _whole_names(entry["tests"])) for name, entry in _read("around_a_run")]


@dataclass(eq=False)  # pytest needs plugins that have a hash
class _Watch:
    """Plants a fault inside each test, after everything is imported, and keeps what became of the tests.

    Of a test that has failed, the cases that are left are skipped.
    """

    mutant: Mutant | None
    errors: dict[str, BaseException | None] = field(default_factory=dict)  # by test, without its case

    @pytest.fixture(autouse=True)
    def _planted(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            if self.mutant is not None:
                self.mutant.patch(patch)
            yield
        for change in self.mutant.changes if self.mutant is not None else ():
            change.clear_caches()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self.errors.get(_test_of(item)):
            pytest.skip("seen already")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        error = call.excinfo.value if call.excinfo else None
        if not isinstance(error, pytest.skip.Exception):
            self.errors[_test_of(item)] = self.errors.get(_test_of(item)) or error
        return (yield)


def _test_of(item: pytest.Item | str) -> str:
    name = item if isinstance(item, str) else item.nodeid.removeprefix("tests/")
    return name.partition("[")[0]


def outcome(tests: Sequence[str], mutant: Mutant | None = None) -> dict[str, BaseException | None]:
    """The first error of each of these tests, ``None`` for one that passes, with a fault planted in all of them.

    A name without brackets stands for all cases of a test, and all cases that are named go by its name.
    """
    watch = _Watch(mutant)
    files = [str(TESTS / test) for test in tests]
    # Nothing is printed, kept or run in parallel, and the garbage of the session around is not collected five times.
    without = ("cacheprovider", "terminal", "xdist", "unraisableexception")
    plugins = [argument for name in without for argument in ("-p", f"no:{name}")]
    pytest.main([*plugins, "--rootdir", str(TESTS.parent), *files], plugins=[watch])
    return {_test_of(test): watch.errors.get(_test_of(test), LookupError("no such test")) for test in tests}


def missed_by(mutant: Mutant) -> dict[str, str]:
    """The tests that were to catch a mutant and did not, with what they ended in."""
    errors = outcome(mutant.caught_by, mutant)
    return {test: repr(error) for test, error in errors.items() if not isinstance(error, _SEEN + mutant.seen_as)}
