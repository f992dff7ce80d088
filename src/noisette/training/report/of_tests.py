"""The figures on the test examples, each beside what needs no model, in words."""

from __future__ import annotations

from noisette.training.predictions import ClassFigures
from noisette.training.report.facts import Facts
from noisette.training.report.numbers import percent

_LARGEST_TABLE = 12  # classes; a larger confusion matrix is in run.json alone


def rows_of_tests(facts: Facts) -> list[tuple[str, str]]:
    """The name and the value of each figure on the test examples; none if there are no such examples."""
    found = facts.test
    if found is None:
        return [] if facts.test_accuracy is None else [("test accuracy", percent(facts.test_accuracy))]
    if isinstance(found, ClassFigures):
        return [
            ("test accuracy", percent(found.accuracy)),
            ("base rate", f"{percent(found.base_rate)} (always the most frequent class)"),
            ("macro accuracy", f"{percent(found.macro_accuracy)} (mean over the classes)"),
            *([] if found.auc is None else [("AUC", f"{found.auc:.3f}")]),
        ]
    unit = f" {found.unit}" if found.unit else ""
    return [
        ("test RMSE", f"{found.rmse:.4g}{unit} (best constant: {found.base_rmse:.4g}{unit})"),
        ("test MAE", f"{found.mae:.4g}{unit} (best constant: {found.base_mae:.4g}{unit})"),
        *([] if facts.recipe.data.target is None else [("test targets", f"clipped to {_bounds(facts)}")]),
    ]


def _bounds(facts: Facts) -> str:
    """Between which bounds the targets are."""
    assert facts.recipe.data.target is not None, "a number is predicted"
    low, high = facts.recipe.data.target
    return f"{low:g}..{high:g} {facts.recipe.data.unit}".rstrip()


def set_of_tests(facts: Facts) -> str:
    """Of which examples the figures are."""
    share, clipped = facts.recipe.data.holdout, ""
    if facts.recipe.data.target is not None:
        clipped = f" Errors are of targets clipped to {_bounds(facts)}: how far a number lies outside does not count."
    if share is None:
        return f"Computed on the public test examples, exactly.{clipped}"
    return (
        f"Computed exactly, without noise, on the records held out: about {percent(share)} of all, drawn at random and "
        f"not trained on. These figures are not covered by the guarantee.{clipped}"
    )


def confusion(facts: Facts) -> list[tuple[str, tuple[int, ...]]]:
    """The rows of the confusion matrix, each with the name of its class; none for many classes or a number."""
    if not isinstance(facts.test, ClassFigures) or len(facts.test.confusion) > _LARGEST_TABLE:
        return []
    declared = facts.recipe.data.classes
    names = declared if isinstance(declared, tuple) else map(str, range(facts.classes))
    return list(zip(names, facts.test.confusion, strict=True))
