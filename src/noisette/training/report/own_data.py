"""What the privacy statement says about data of the user's own: how it becomes numbers, and what is held out."""

from __future__ import annotations

from collections.abc import Iterator

from noisette.data.columns import Columns
from noisette.training.report.facts import Facts


def held_out(facts: Facts) -> str:
    """What is guaranteed, and what is not, where records are held out to test with."""
    return (
        f"Records held out: before the first step each {facts.unit} was held out with probability "
        f"{facts.recipe.data.holdout:g}, drawn by a secret key that is independent of what records say and was "
        "forgotten when the run ended. What was held out was not trained on. The guarantee above is for the training; "
        "the figures on the records held out are exact and have none: they may reveal the number of these records, and "
        "something about each of them. If they must not, publish the weights without report.html and run.json."
    )


def of_test_examples(facts: Facts) -> str:
    """What the figures on test examples are computed from."""
    if facts.recipe.data.holdout is None:
        measured = "Test accuracy" if facts.recipe.data.target is None else "The test error"
        return f"{measured} is exact: the test examples are taken to be public and have no guarantee."
    return "Test figures are exact: they are of the records held out, and have no guarantee."


def except_held_out(facts: Facts) -> str:
    """The end of the sentence on what was computed from the actual number of records."""
    return ", which stays private" if facts.recipe.data.holdout is None else ", except the figures on records held out"


def inputs(facts: Facts) -> Iterator[str]:
    """How the values of declared columns, texts and targets become numbers, each record by itself."""
    data = facts.recipe.data
    if data.columns:
        columns = Columns.of(data.columns)
        yield (
            f"Inputs: {columns.width}, made from {len(columns.names)} columns by a declaration (names, bounds, "
            "categories and what a missing or another value counts as), which is in run.json. Numbers are clipped to "
            "their bounds. The declaration is taken to be public, and nothing was learned from the records: if it was "
            "written by looking at them, that has no guarantee."
        )
    if data.image_size is not None:
        width, height = data.image_size
        yield (
            f"Images: each was scaled and cut to {width} x {height} pixels in {'grey' if data.grey else 'colour'} by "
            "itself."
        )
    if data.skip_unlabelled:
        yield (
            f"Records: the rows with a value in the column {data.label!r}. Rows without one were left out, each for "
            "itself, and nothing was computed from them."
        )
    if facts.words:
        tokenized = facts.public_weights and facts.recipe.model.weights is None
        hashed = f"by a fixed hash of the word to one of {facts.words:,} numbers"
        yield (
            f"Words: the first {data.tokens} words of a text are numbered "
            f"{'by the tokenizer of a public model' if tokenized else hashed}; no vocabulary was learned from the "
            "records. One record is one whole text: a single word of it has no guarantee of its own, and neither have "
            "all texts of one author together."
        )
    if data.target is not None:
        low, high = data.target
        bounds = f"{low:g} to {high:g} {data.unit}".rstrip()
        yield (
            f"Target: the number in the column {data.label!r}, clipped to its declared bounds, {bounds}. The loss is "
            "the squared error on a scale on which the bounds are -1 and 1."
        )
