"""Numbers of NumPy are numbers, and truth values are none."""

import json

import numpy as np
import pytest
import torch

from noisette import errors as checks


@pytest.mark.parametrize("two", [2, np.int64(2), np.uint8(2)])
def test_whole_numbers(two: object) -> None:
    checks.count(steps=two)
    checks.whole(steps=two)
    checks.positive(epsilon=two)
    json.dumps(checks.plain(two))


@pytest.mark.parametrize("half", [0.5, np.float32(0.5), np.float64(0.5), np.float16(0.5)])
def test_fractions(half: object) -> None:
    checks.positive(epsilon=half)
    checks.probability(rate=half)
    checks.open_fraction(delta=half)
    with pytest.raises(TypeError, match="whole number"):
        checks.count(steps=half)
    json.dumps(checks.plain(half))


@pytest.mark.parametrize("no_number", [True, np.bool_(True), "2", 2j, None, torch.tensor(2.0)])
def test_what_is_no_number(no_number: object) -> None:
    for check in (checks.positive, checks.count, checks.whole):
        with pytest.raises(TypeError, match="to be a"):
            check(given=no_number)
