"""The check that a run which goes on from a checkpoint is declared as it was when it began."""

from __future__ import annotations

from collections.abc import Mapping

Value = float | str | None


def check_declared_again(before: Mapping[str, Value], now: Mapping[str, Value]) -> None:
    """Check that what is declared now is what the run of a checkpoint began with.

    Args:
        before: declared numbers, or words, by name, as the checkpoint has them; ``None`` for what was not declared.
        now: those of the caller. A name that only one of the two knows is not compared.

    Raises:
        ValueError: they differ; every difference is listed.

    >>> check_declared_again({"epsilon": 3.0, "delta": 1e-5}, {"epsilon": 1, "delta": 1e-5})
    Traceback (most recent call last):
    ValueError: the run of the checkpoint was declared otherwise, and goes on as it was declared:
      epsilon: 3.0 in the checkpoint, 1 now
    Declare the same again, or begin another run, without the checkpoint but with the same ledger for the same records
    """
    differences = [
        f"{name}: {_said(value)} in the checkpoint, {_said(now[name])} now"
        for name, value in before.items()
        if name in now and now[name] != value
    ]
    if differences:
        raise ValueError(
            "the run of the checkpoint was declared otherwise, and goes on as it was declared:\n  "
            + "\n  ".join(differences)
            + "\nDeclare the same again, or begin another run, without the checkpoint but with the same ledger for the "
            "same records"
        )


def _said(value: Value) -> str:
    return "not declared" if value is None else str(value)
