import math

import mpmath
import numpy as np
import pytest
from support.exact_privacy import loss_of

from noisette.accounting import Gaussian, MomentsAccountant, PoissonGaussian
from noisette.accounting.privacy_loss import Mixture
from noisette.accounting.rdp import log_moments

PAPER = MomentsAccountant(orders=range(1, 33))


def log_moment(event, order):
    return log_moments(event, np.array([order], dtype=float))[0]


def log_e1(event, order):
    """The smaller of the two moments of the paper, which the accountant does not need."""
    return Mixture.of(event).log_mean_powers(np.array([-float(order)]))[0]


def binomial_sum(rate, noise, order):
    """ln E2 as printed, at 50 digits and more where the moment is tiny."""
    with mpmath.workdps(80):
        q, sigma, n = mpmath.mpf(rate), mpmath.mpf(noise), order + 1
        chances = [mpmath.binomial(n, k) * (1 - q) ** (n - k) * q**k for k in range(n + 1)]
        ratios = [mpmath.exp(mpmath.mpf(k * (k - 1)) / (2 * sigma**2)) for k in range(n + 1)]
        return float(mpmath.log(mpmath.fdot(chances, ratios)))


@pytest.mark.parametrize("order", [1, 2, 17, 63, 256, 1024])
@pytest.mark.parametrize(
    ("rate", "noise"), [(0.01, 4.0), (0.5, 0.3), (1.0, 7.0), (1e-9, 1.0), (1e-6, 1000.0), (0.999, 2.0)]
)
def test_closed_form_against_the_printed_sum_at_80_digits(rate, noise, order):
    assert log_moment(PoissonGaussian(rate, noise), order) == pytest.approx(
        binomial_sum(rate, noise, order), rel=1e-9, abs=1e-300
    )


@pytest.mark.parametrize(
    ("rate", "noise", "order"),
    [(0.01, 4.0, 8), (0.08, 6.0, 16), (0.2, 1.5, 3), (0.01, 4.0, 8.67), (0.5, 0.4, 0.3), (0.3, 50.0, 400.5)],
)
def test_both_moments_against_quadrature(rate, noise, order):
    event = PoissonGaussian(rate, noise)
    for ours, power in ((log_moment, order + 1), (log_e1, -order)):
        assert ours(event, order) == pytest.approx(loss_of(event).log_moment(np.array([power]))[0], rel=1e-8)


def test_many_orders_at_once_have_the_moments_of_each_alone():
    """Real orders that no quadrature resolves are bounded by the next whole ones; without noise all are infinite."""
    orders = np.array([0.1, 0.5, 1, 1.5, 7, 7.3, 100, 250.5, 500.5])
    for event in (PoissonGaussian(0.01, 4.0), PoissonGaussian(0.3, 0.5), PoissonGaussian(0.01, 0.01), Gaussian(7.0)):
        alone = [log_moment(event, order) for order in orders]
        assert log_moments(event, orders) == pytest.approx(alone, rel=1e-9, abs=1e-12)
    assert log_moment(PoissonGaussian(0.01, 0.01), 500.5) == log_moment(PoissonGaussian(0.01, 0.01), 501)
    assert log_moment(PoissonGaussian(0.01, 1e-200), 1.5) == math.inf


def test_real_orders_of_the_four_hundred_epochs_in_the_paper():
    """2.55 is printed: whole orders give 2.5759, real ones 2.5737, and the smaller moment E1 alone 2.5592."""
    run = {PoissonGaussian(0.01, 4.0): 40_000}
    assert PAPER.compose(run).epsilon(delta=1e-5) == pytest.approx(2.5759, abs=5e-5)
    real = MomentsAccountant(orders=[n / 50 for n in range(300, 600)])
    assert real.compose(run).epsilon(delta=1e-5) == pytest.approx(2.5737, abs=5e-5)
    for steps, epsilon in [(40_000, 2.5592), (10_000, 1.2422)]:
        alone = min(
            (steps * log_e1(PoissonGaussian(0.01, 4.0), order) + math.log(1e5)) / order for order in range(1, 33)
        )
        assert alone == pytest.approx(epsilon, abs=5e-5)


def test_log_of_the_original_code():
    """The README log of the authors' code: one release on all records, then 10 steps that it charges twice each."""
    run = PAPER.compose({Gaussian(7.0): 1, PoissonGaussian(0.01, 4.0): 20})
    printed = 0.72709, 0.24708, 0.0029139, 6.494e-10, 8.2241e-24, 1.319e-51, 3.3927e-107
    for epsilon, delta in zip((0.125, 0.25, 0.5, 1, 2, 4, 8), printed, strict=True):
        assert run.delta(epsilon=epsilon) == pytest.approx(delta, rel=2e-4)
