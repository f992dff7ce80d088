"""Faults planted in the library on purpose, and the tests of the suite that must see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from noisette.errors import PrivacyError

TESTS = Path(__file__).parent.parent
Patch = Callable[[pytest.MonkeyPatch], None]

# How a test fails that has seen a fault; any other error would only say that the patch itself is broken.
_SEEN = (AssertionError, PrivacyError, pytest.fail.Exception)


@dataclass(frozen=True)
class Mutant:
    """A fault of the kind that such libraries have had.

    Args:
        name: what is wrong, in a few words.
        harm: what that would do.
        patch: plants it.
        caught_by: tests by their names below ``tests/``; each of them must fail.
        seen_as: errors that show the fault beside a failed assertion.
    """

    name: str
    harm: str
    patch: Patch
    caught_by: tuple[str, ...]
    seen_as: tuple[type[BaseException], ...] = ()


@dataclass(eq=False)  # pytest needs plugins that have a hash
class _Watch:
    """Plants a fault inside each test, after everything is imported, and keeps what became of the tests.

    Of a test that has failed, the cases that are left are skipped.
    """

    patch: Patch
    errors: dict[str, BaseException | None] = field(default_factory=dict)  # by test, without its case

    @pytest.fixture(autouse=True)
    def _planted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch(monkeypatch)

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


def outcome(tests: Sequence[str], patch: Patch = lambda monkeypatch: None) -> dict[str, BaseException | None]:
    """The first error of each of these tests, ``None`` for one that passes, with a fault planted in all of them.

    A name without brackets stands for all cases of a test, and all cases that are named go by its name.
    """
    watch = _Watch(patch)
    files = [str(TESTS / test) for test in tests]
    # Nothing is printed, kept or run in parallel, and the garbage of the session around is not collected five times.
    without = ("cacheprovider", "terminal", "xdist", "unraisableexception")
    plugins = [argument for name in without for argument in ("-p", f"no:{name}")]
    pytest.main([*plugins, "--rootdir", str(TESTS.parent), *files], plugins=[watch])
    return {_test_of(test): watch.errors.get(_test_of(test), LookupError("no such test")) for test in tests}


def missed_by(mutant: Mutant) -> dict[str, str]:
    """The tests that were to catch a mutant and did not, with what they ended in."""
    errors = outcome(mutant.caught_by, mutant.patch)
    return {test: repr(error) for test, error in errors.items() if not isinstance(error, _SEEN + mutant.seen_as)}
