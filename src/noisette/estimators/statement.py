"""What a fitted estimator states about its privacy, in words."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from noisette.estimators.fitting import Fitted

_WIDTH = 88


def statement(fitted: Fitted, size: int, from_rows: Sequence[str]) -> str:
    """The guarantee of one fit, how it is kept, and what it does not cover.

    Args:
        fitted: the fit.
        size: the declared number of rows.
        from_rows: names of the declarations that were read from the rows instead.
    """
    guarantee = (
        f"The fitted weights are (epsilon, delta)-differentially private with epsilon = {fitted.epsilon:.4g} and delta "
        f"= {fitted.delta:.2g}. Relation: {fitted.neighbouring}; one record is one row. Epsilon covers everything in "
        "the ledger of the fit."
    )
    mechanism = (
        f"{fitted.steps} steps of DP-SGD: each row enters the batch of a step with probability "
        f"{fitted.sampling_rate:.4g}, its gradient is clipped to norm 1, the sum gets Gaussian noise of standard "
        f"deviation {fitted.noise_multiplier:.4g} and is divided by {fitted.expected_batch_size:,}, a constant. "
        f"Accountant: {fitted.accountant}. Declared size: {size:,} rows."
    )
    excepted = (
        "Not covered: transformers that were fitted to the same rows, such as a scaler in the same pipeline; other "
        "fits that do not share this ledger; choosing among several fits by a score on private rows; people with "
        "several rows; running time; and what predict returns about the rows that it is given."
    )
    paragraphs = [guarantee, mechanism, excepted]
    if from_rows:
        paragraphs.insert(
            0,
            f"Read from the rows and NOT covered by epsilon: {', '.join(from_rows)} (undeclared_from_rows=True). For "
            "the guarantee below to hold for private rows, these must be public; declare them.",
        )
    return "\n\n".join(textwrap.fill(paragraph, _WIDTH) for paragraph in paragraphs) + "\n"
