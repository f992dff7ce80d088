"""Ledgers that several tests write to."""

import pytest

from noisette.accounting import Gaussian, Ledger, PoissonGaussian


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def small(path):
    """A ledger with one line of each kind."""
    with Ledger(path) as ledger:
        ledger.reserve(PoissonGaussian(0.01, 1.1), 2)
        ledger.commit()
        ledger.release()
        ledger.charge(Gaussian(7.0))
    return path
