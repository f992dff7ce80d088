"""What is refused: the errors that noisette raises where a guarantee would not hold, and the checks of arguments."""

import linecache
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

import numpy as np

_FEW = 5


class PrivacyError(RuntimeError):
    """The request cannot have a privacy guarantee; the message names the cause and the way out."""


class MissingRuleError(PrivacyError):
    """A trainable parameter is used by an operation whose per-example gradient is not known."""


class UnsupportedEventError(ValueError):
    """An accountant cannot bound the cost of an event. The message names the event and an accountant that can."""


def first_few(names: Sequence[str]) -> str:
    """The first five names, and how many more there are, for a message that does not fill the screen.

    >>> first_few("abcdefg")
    'a, b, c, d, e and 2 more'
    """
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def _is_ours(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").startswith(("noisette.", "torch.", "contextlib"))


def warn(said: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warn, at the innermost line of neither noisette nor torch that has led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(said, category, stacklevel=level)


def line_of(error: BaseException) -> str:
    """The innermost line of neither noisette nor torch in which an error began: file, number and text, or nothing."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [(f.f_code.co_filename, number) for f, number in traceback.walk_tb(error.__traceback__) if not _is_ours(f)]
    return "".join(f"{file}:{number}: {linecache.getline(file, number).strip()}" for file, number in lines[-1:])


def raised_by(error: BaseException) -> str:
    """What a function of the user's raised, with its file and line where the call got that far."""
    inside = traceback.extract_tb(error.__traceback__)[1:2]
    where = "".join(f"{Path(line.filename).name}, line {line.lineno}: " for line in inside)
    return f"{where}{type(error).__name__}: {error}"


def brief(value: object) -> str:
    """A value as code, in one line of at most 80 characters."""
    shown = " ".join(repr(value).split())
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


# Argument checks. Pass the argument by its name, and the message will contain it: ``positive(lr=lr)``.

Value = TypeVar("Value")


def plain(value: Value) -> Value:
    """A number of NumPy as one of Python, which JSON can hold; everything else as it is.

    >>> plain(np.int64(2)), plain("2")
    (2, '2')
    """
    return cast(Value, value.item()) if isinstance(value, np.generic) else value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"expected {name} to be a number, got {name}={value!r}")
    if math.isnan(value):
        raise ValueError(f"expected {name} to be a number, got {name}=nan")
    return float(value)


def _in_domain(arguments: dict[str, object], domain: str, holds: Callable[[float], bool]) -> None:
    for name, value in arguments.items():
        if not holds(_number(name, value)):
            raise ValueError(f"expected {domain.format(name)}, got {name}={value}")


def positive(**arguments: object) -> None:
    """Each argument is a finite number above zero, or a ``ValueError`` names it."""
    _in_domain(arguments, "a finite {} > 0", lambda value: 0 < value < math.inf)


def not_negative(**arguments: object) -> None:
    """Each argument is a finite number of at least zero, or a ``ValueError`` names it."""
    _in_domain(arguments, "a finite {} >= 0", lambda value: 0 <= value < math.inf)


def probability(**arguments: object) -> None:
    """Each argument lies in (0, 1], or a ``ValueError`` names it."""
    _in_domain(arguments, "0 < {} <= 1", lambda value: 0 < value <= 1)


def open_fraction(**arguments: object) -> None:
    """Each argument lies in (0, 1), both ends excluded, or a ``ValueError`` names it."""
    _in_domain(arguments, "0 < {} < 1", lambda value: 0 < value < 1)


def below_one(**arguments: object) -> None:
    """Each argument lies in [0, 1), or a ``ValueError`` names it."""
    _in_domain(arguments, "0 <= {} < 1", lambda value: 0 <= value < 1)


def count(**arguments: object) -> None:
    """Each argument is a whole number of at least one, or an error names it."""
    _whole_from(1, arguments)


def whole(**arguments: object) -> None:
    """Each argument is a whole number of at least zero, or an error names it."""
    _whole_from(0, arguments)


def _whole_from(least: int, arguments: dict[str, object]) -> None:
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"expected {name} to be a whole number, got {name}={value!r}")
        if value < least:
            raise ValueError(f"expected {name} >= {least}, got {name}={value}")


def said_by(error: Exception) -> str:
    """The message of an error; of one of the system, its file and what is wrong with it."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


class Mistakes:
    """What is wrong with a request, found by several checks and raised at once."""

    def __init__(self) -> None:
        self._found: dict[str, Exception] = {}  # by its message, as two checks may find the same

    def add(self, *messages: str) -> None:
        self._found |= {message: ValueError(message) for message in messages}

    def check(self, check: Callable[[], Value]) -> Value | None:
        """What the check returns, or ``None`` where it raises a mistake, which is kept."""
        try:
            return check()
        except (ValueError, TypeError, OSError, PrivacyError) as error:
            self._found[said_by(error)] = error
            return None

    def refuse(self, kind: type[ValueError] | None = None, between: str = "\n") -> None:
        """Raise what was found: one mistake as it is, several as a ``PrivacyError`` or ``ValueError``, or ``kind``."""
        errors = list(self._found.values())
        if len(errors) == 1 and kind is None:
            raise errors[0]
        if errors:
            of_privacy = any(isinstance(error, PrivacyError) for error in errors)
            raise (PrivacyError if of_privacy else kind or ValueError)(between.join(self._found))


def all_of(*checks: Callable[[], Any]) -> list[Any]:
    """Run every check, then report all problems at once, in one line, or return what the checks returned."""
    mistakes = Mistakes()
    found = [mistakes.check(check) for check in checks]
    mistakes.refuse(ValueError, "; ")
    return found


def offers(method: str, such_as: str, **arguments: object) -> None:
    """Each argument that is given is an object with this method, or a ``TypeError`` names it and one to give."""
    for name, value in arguments.items():
        if value is not None and (isinstance(value, type) or not hasattr(value, method)):
            raise TypeError(f"expected {name} as an object such as {such_as}, got {name}={brief(value)}")


def has_rows(tensors: Sequence[Any]) -> None:
    """Check that torch takes rows out of these tensors."""
    if odd := {str(tensor.layout) for tensor in tensors} - {"torch.strided", "torch.sparse_coo"}:
        raise TypeError(f"no rows are taken out of a tensor in the layout {odd.pop()}: give tensor.to_dense()")


def exactly_one(**arguments: object) -> None:
    """One of the arguments is given and the others are ``None``, or a ``ValueError`` names them."""
    given = [name for name, value in arguments.items() if value is not None]
    if len(given) != 1:
        *first, last = arguments
        none = "neither" if len(arguments) == 2 else "none"
        raise ValueError(f"give exactly one of {', '.join(first)} and {last}, got {' and '.join(given) or none}")
