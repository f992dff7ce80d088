import math

import pytest

from noisette.accounting import MomentsAccountant, PldAccountant, PoissonGaussian, RdpAccountant, noise_multiplier_for

# examples in a batch, in the data set, steps: {epsilon: (RDP noise, PLD noise)}, at delta 1e-5.
TABLE = {
    (32, 60_000, 18_750): {
        7: (0.4624, 0.4400),
        3: (0.5823, 0.5370),
        1: (0.8479, 0.6719),
        0.5: (1.1373, 0.8229),
        0.1: (2.7202, 2.3628),
        0.05: (4.7967, 4.2901),
    },
    (256, 60_000, 7031): {
        7: (0.6412, 0.6163),
        3: (0.8570, 0.8176),
        1: (1.6257, 1.5193),
        0.5: (2.8545, 2.6308),
        0.1: (12.203, 11.043),
        0.05: (23.207, 20.702),
    },
    (600, 60_000, 6000): {
        7: (0.8580, 0.8250),
        3: (1.3640, 1.2903),
        1: (3.2366, 2.9950),
        0.5: (6.0059, 5.5131),
        0.1: (26.362, 23.849),
        0.05: (50.201, 44.781),
    },
    (1024, 60_000, 2344): {
        7: (0.8987, 0.8615),
        3: (1.4468, 1.3652),
        1: (3.4560, 3.1952),
        0.5: (6.4144, 5.8864),
        0.1: (28.132, 25.449),
        0.05: (53.563, 47.772),
    },
    (128, 96_000, 37_500): {
        7: (0.5747, 0.5549),
        3: (0.7360, 0.7010),
        1: (1.2515, 1.1798),
        0.5: (2.1081, 1.9516),
        0.1: (8.8142, 7.9811),
    },
    (300, 96_000, 3840): {
        7: (0.5587, 0.5329),
        3: (0.7199, 0.6732),
        1: (1.1067, 1.0027),
        0.5: (1.6689, 1.5504),
        0.1: (6.6498, 6.0204),
    },
    (1024, 96_000, 1875): {
        7: (0.7108, 0.6806),
        3: (0.9964, 0.9473),
        1: (2.0385, 1.8949),
        0.5: (3.6551, 3.3606),
        0.1: (15.758, 14.255),
    },
    (16, 50_000, 125_000): {8: (0.4684, 0.4516), 4: (0.5516, 0.5234), 2: (0.6738, 0.6066)},
    (1000, 50_000, 3000): {8: (0.9778, 0.9373), 4: (1.4711, 1.3908), 2: (2.4898, 2.3216)},
    (2000, 50_000, 1750): {8: (1.2937, 1.2314), 4: (2.0978, 1.9699), 2: (3.7078, 3.4462)},
    (4000, 50_000, 1250): {8: (1.9683, 1.8604), 4: (3.3936, 3.1745), 2: (6.1687, 5.7250)},
}
ROWS = [(*plan, epsilon, *noises) for plan, budgets in TABLE.items() for epsilon, noises in budgets.items()]
QUICK = [row for row in ROWS if (row[0], row[3]) in {(600, 3), (600, 0.1), (4000, 2), (32, 0.05)}]


def check_row(batch, size, steps, epsilon, rdp, pld):
    plan = {"delta": 1e-5, "sampling_rate": batch / size, "steps": steps}
    assert noise_multiplier_for(epsilon=epsilon, accountant=RdpAccountant(), **plan) == pytest.approx(rdp, rel=2e-3)
    assert noise_multiplier_for(epsilon=epsilon, **plan) == pytest.approx(pld, rel=5e-3)


@pytest.mark.parametrize(("batch", "size", "steps", "epsilon", "rdp", "pld"), QUICK)
def test_oracle_table(batch, size, steps, epsilon, rdp, pld):
    check_row(batch, size, steps, epsilon, rdp, pld)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "size", "steps", "epsilon", "rdp", "pld"), ROWS)
def test_whole_oracle_table(batch, size, steps, epsilon, rdp, pld):
    check_row(batch, size, steps, epsilon, rdp, pld)


@pytest.mark.parametrize(
    ("epsilon", "noise"),
    [(0.05, 57.7707), (0.1, 30.7496), (0.5, 7.0318), (1, 3.7306), (2, 1.9938), (4, 1.0812), (10, 0.4999)],
)
def test_one_release_on_all_records_needs_the_exact_gaussian_noise(epsilon, noise):
    ours = noise_multiplier_for(epsilon=epsilon, delta=1e-5, sampling_rate=1.0, steps=1)
    assert noise * (1 - 1e-4) <= ours <= noise * (1 + 2e-3)


@pytest.mark.parametrize(
    "accountant", [PldAccountant(), PldAccountant(30.0), RdpAccountant(), MomentsAccountant()], ids=str
)
@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps"), [(3.0, 1e-5, 0.02, 1000), (0.5, 1e-6, 0.2, 60), (8.0, 1e-5, 0.5, 40)]
)
def test_the_result_is_safe_and_hardly_more_than_needed(accountant, epsilon, delta, rate, steps):
    noise = noise_multiplier_for(epsilon=epsilon, delta=delta, sampling_rate=rate, steps=steps, accountant=accountant)

    def price(noise):
        return accountant.price({PoissonGaussian(rate, noise): steps}).epsilon(delta=delta)

    assert price(noise) <= epsilon < price(noise * (1 - 1e-3))


def test_a_budget_that_any_noise_keeps_asks_for_hardly_any():
    """The batch is so unlikely to hold a given record that delta covers all of it."""
    noise = noise_multiplier_for(epsilon=2.0, delta=1e-2, sampling_rate=1e-6, steps=1, accountant=PldAccountant(50.0))
    run = PldAccountant().price({PoissonGaussian(1e-6, noise): 1})
    assert noise < 0.1
    assert run.epsilon(delta=1e-2) == 0


def test_what_no_noise_can_buy_is_refused():
    plan = {"delta": 1e-5, "sampling_rate": 0.01, "steps": 100}
    with pytest.raises(ValueError, match=r"moments accountant cannot promise epsilon=0\.1"):
        noise_multiplier_for(epsilon=0.1, accountant=MomentsAccountant(orders=range(1, 33)), **plan)
    assert noise_multiplier_for(epsilon=0.1, accountant=MomentsAccountant(), **plan) > 0


GOOD = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.01, "steps": 100}
BAD = {
    "epsilon": [0, -1.0, math.nan, math.inf, "1"],
    "delta": [0, 1, -1e-5, math.nan, "1e-5"],
    "sampling_rate": [0, -0.1, 1.5, math.nan, None],
    "steps": [0, -5, 10.0, "10", True],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_bad_numbers_are_refused_by_name(name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        noise_multiplier_for(**(GOOD | {name: value}))
