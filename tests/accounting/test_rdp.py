import logging
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from noisette.accounting import PoissonGaussian, RdpAccountant
from noisette.accounting.rdp import ORDERS


def improved_conversion(divergence, delta):
    """Epsilon from divergences at many orders, written anew."""
    return min(
        divergence(a) + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1)
        for a in np.arange(1.2, 200, 0.05)
    )


@pytest.mark.parametrize(("noise", "steps"), [(16.0, 1), (7.0, 1), (4.0, 1), (10.0, 100), (5.0, 10)])
def test_full_batch_against_the_closed_form(noise, steps):
    ours = RdpAccountant().price({PoissonGaussian(1.0, noise): steps}).epsilon(delta=1e-5)
    assert ours == pytest.approx(improved_conversion(lambda a: steps * a / (2 * noise**2), 1e-5), rel=1e-3)


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.1, 10_000), (0.02, 0.8, 500), (0.08, 6.0, 1250)])
def test_fractional_orders_err_upwards_and_little(rate, noise, steps):
    """Against the least over the same orders, each divergence by quadrature."""

    def converted(a):
        def integrand(y):
            return norm.pdf(y, scale=noise) * (1 - rate + rate * math.exp((2 * y - 1) / (2 * noise**2))) ** a

        moment, _ = quad(integrand, -20 * noise, 20 * noise + 12, points=[0, a], epsabs=1e-13, epsrel=1e-11, limit=200)
        divergence = steps * math.log(moment) / (a - 1)
        return divergence + math.log((a - 1) / a) - (math.log(1e-5) + math.log(a)) / (a - 1)

    ours = RdpAccountant().price({PoissonGaussian(rate, noise): steps}).epsilon(delta=1e-5)
    truth = min(converted(a) for a in ORDERS if 2 < a < 12)
    assert truth * (1 - 1e-7) <= ours <= truth * (1 + 5e-4)


def test_delta_of_the_oracle_table():
    run = RdpAccountant().price({PoissonGaussian(0.01, 4.0): 10_000})
    assert run.delta(epsilon=1.0) == pytest.approx(1.764e-5, rel=2e-3)
    assert run.delta(epsilon=1.26) == pytest.approx(1.836e-7, rel=2e-3)


def test_a_tiny_price_is_not_rounded_to_zero():
    """At so small a delta, one release at so small a rate does cost something; the library alone says 0."""
    assert RdpAccountant().price({PoissonGaussian(1e-9, 1e4): 1}).epsilon(delta=1e-12) > 0


def test_the_library_is_silenced_and_only_for_the_moment(caplog, capfd, monkeypatch):
    monkeypatch.setattr(logging.getLogger("absl"), "level", logging.INFO)
    RdpAccountant().price({PoissonGaussian(0.5, 10.0): 10}).epsilon(delta=1e-5)
    assert caplog.text == ""
    assert capfd.readouterr().err == ""
    assert logging.getLogger("absl").level == logging.INFO
