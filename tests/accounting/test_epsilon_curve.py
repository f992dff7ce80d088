import pytest

from noisette.accounting import MomentsAccountant, PldAccountant, PoissonGaussian, RdpAccountant, epsilon_curve


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.004, 1.3, 5000), (0.15, 4.0, 270)])
def test_never_below_the_price_and_close_to_it(rate, noise, steps):
    release = PoissonGaussian(rate, noise)
    checkpoints = [1, steps // 10, steps // 3, steps]
    curve = epsilon_curve(release, checkpoints=checkpoints, delta=1e-5)
    prices = [PldAccountant().compose({release: n}).epsilon(delta=1e-5) for n in checkpoints]
    for on_the_curve, price in zip(curve, prices, strict=True):
        assert price <= on_the_curve <= price * 1.003
    assert curve == sorted(curve)


@pytest.mark.parametrize("accountant", [RdpAccountant(), MomentsAccountant()], ids=lambda a: a.name)
def test_other_accountants_give_their_own_price(accountant):
    release = PoissonGaussian(0.01, 4.0)
    curve = epsilon_curve(release, checkpoints=[10, 10_000], delta=1e-5, accountant=accountant)
    assert curve == [accountant.compose({release: n}).epsilon(delta=1e-5) for n in (10, 10_000)]


def test_checkpoints_are_numbers_of_steps():
    with pytest.raises(ValueError, match="checkpoints"):
        epsilon_curve(PoissonGaussian(0.01, 4.0), checkpoints=[0, 10], delta=1e-5)


def test_what_was_released_before_is_paid_for_too():
    release = PoissonGaussian(0.01, 4.0)
    before = {PoissonGaussian(1.0, 16.0): 1, release: 500}
    (together,) = epsilon_curve(release, checkpoints=[1000], delta=1e-5, prior_events=before)
    whole = {PoissonGaussian(1.0, 16.0): 1, release: 1500}
    assert together == PldAccountant(coarseness=4).compose(whole).epsilon(delta=1e-5)
    assert before == {PoissonGaussian(1.0, 16.0): 1, release: 500}
