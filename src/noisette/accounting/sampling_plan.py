"""The public parameters of a run: all of them are declared, and none is computed from the records."""

from __future__ import annotations

from noisette import errors as checks


def check_numbers(
    *,
    expected_batch_size: float,
    sampling_rate: float | None,
    steps: int | None,
    public_size: int | None,
    epochs: float | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float | None,
) -> None:
    """Check that every parameter is in its range, and that alternatives are not given together.

    Raises:
        ValueError: all problems at once.
    """
    checks.all_of(
        lambda: _check_has_delta(epsilon, delta),
        lambda: checks.positive(expected_batch_size=expected_batch_size),
        lambda: checks.exactly_one(sampling_rate=sampling_rate, public_size=public_size),
        lambda: checks.exactly_one(steps=steps, epochs=epochs),
        lambda: _check_has_budget(epsilon, noise_multiplier),
        lambda: sampling_rate is None or checks.probability(sampling_rate=sampling_rate),
        lambda: public_size is None or checks.count(public_size=public_size),
        lambda: steps is None or checks.count(steps=steps),
        lambda: epochs is None or checks.positive(epochs=epochs),
        lambda: epsilon is None or checks.positive(epsilon=epsilon),
        lambda: noise_multiplier is None or checks.positive(noise_multiplier=noise_multiplier),
        lambda: delta is None or checks.open_fraction(delta=delta),
    )


def _check_has_delta(epsilon: float | None, delta: float | None) -> None:
    if epsilon is not None and delta is None:
        raise ValueError("epsilon needs delta: the probability with which the bound may fail")


def _check_has_budget(epsilon: float | None, noise_multiplier: float | None) -> None:
    if epsilon is None and noise_multiplier is None:
        raise ValueError("expected epsilon, noise_multiplier or both, got neither")


def schedule(
    expected_batch_size: float,
    sampling_rate: float | None,
    steps: int | None,
    public_size: int | None,
    epochs: float | None,
) -> tuple[float, int]:
    """Sampling rate and steps: as declared, or computed from the declared size and epochs."""
    if sampling_rate is None:
        assert public_size is not None
        sampling_rate = expected_batch_size / public_size
        if sampling_rate > 1:
            raise ValueError(
                f"expected sampling_rate <= 1, got an expected batch of {expected_batch_size} of {public_size} "
                "declared records; give a smaller batch size"
            )
    if steps is None:
        assert epochs is not None
        steps = max(1, round(epochs / sampling_rate))
    return float(sampling_rate), steps


def check_delta(delta: float | None, one_over_size: float, allow_large_delta: bool) -> None:
    """Check that delta is below one over the declared size, unless a larger one is allowed.

    Raises:
        ValueError: it is larger, and that is not allowed.
    """
    if delta is not None and delta >= one_over_size and not allow_large_delta:
        raise ValueError(
            f"delta={delta:g} is not below one over the declared size ({one_over_size:.2g}): releasing one record "
            "in the clear would satisfy it. Choose a smaller delta, or allow it with allow_large_delta=True "
            "(on the command line --allow-large-delta)"
        )
