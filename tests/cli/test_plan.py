import json
import sys

import pytest

from command_line import noisette, refusal, succeeded
from noisette.accounting import PldAccountant, PoissonGaussian
from noisette.accounting.calibrate import Setting, recommended

SMALL = {"--size": "60000", "--epsilon": "0.5", "--delta": "1e-5", "--batch-sizes": "600,256", "--epochs": "30,60"}


def run(options, *flags):
    return noisette("plan", *(word for option in options.items() for word in option), *flags)


@pytest.fixture(scope="module")
def facts():
    return json.loads(succeeded(run(SMALL, "--json")).stdout)


def test_every_batch_size_with_every_number_of_epochs_gets_its_noise(facts):
    found = {(s["batch_size"], s["epochs"]): s for s in facts["within_budget"]}
    assert list(found) == [(256, 30), (256, 60), (600, 30), (600, 60)]
    assert found[256, 30]["steps"] == 7031
    assert found[256, 30]["noise_multiplier"] == pytest.approx(2.6308, rel=5e-3)
    assert found[600, 60]["noise_multiplier"] == pytest.approx(5.5131, rel=5e-3)
    for setting in found.values():
        release = PoissonGaussian(setting["sampling_rate"], setting["noise_multiplier"])
        assert 0.497 < PldAccountant().compose({release: setting["steps"]}).epsilon(delta=1e-5) <= 0.5


def test_the_recommended_setting_is_named_beside_all_others(facts):
    chosen = facts["chosen"]
    assert (chosen["batch_size"], chosen["epochs"], chosen["steps"]) == (600, 30, 3000)
    result = succeeded(run(SMALL | {"--batch-sizes": "600", "--epochs": "60"}))
    titles = "Recommended for ε ≤ 0.5", "Least noise multiplier that keeps ε ≤ 0.5", "Share of the largest total"
    assert all(words in result.stdout for words in (*titles, "5.5", "gradients"))


def test_default_batch_sizes(monkeypatch):
    asked = {}

    def look(*, size, batch_sizes, **others):
        asked[size] = batch_sizes
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["noisette.accounting.calibrate"], "within_budget", look)
    for size in (1, 10, 1000, 60_000):
        result = run({"--size": str(size), "--epsilon": "1", "--delta": "1e-6"})
        assert (result.exit_code, result.stderr) == (130, "Stopped.\n")
    assert asked == {1: [1], 10: [4], 1000: [32, 128, 512], 60_000: [256, 1024, 4096, 16384]}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"--epochs": "1e300"}, ["steps <= 1e+12"]),
        ({"--size": "0", "--epsilon": "1"}, ["Error: expected size >= 1, got size=0"]),
        ({"--delta": "0.001"}, ["delta=0.001", "one over the declared size"]),
        ({"--epochs": "0,1", "--batch-sizes": "one"}, ["--epochs", "--batch-sizes"]),
    ],
)
def test_bad_input_gets_one_line_that_names_it_all(wrong, named):
    result = refusal(run(SMALL | wrong), *named)
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)


def setting(batch_size, epochs, noise):
    return Setting(batch_size, epochs, batch_size / 60_000, round(epochs * 60_000 / batch_size), noise, 3.0)


def test_the_recommendation_is_the_least_computation_with_nearly_all_the_signal():
    noises = {(1024, 20): 1.092, (4096, 20): 1.846, (1024, 80): 1.788, (4096, 40): 2.46, (4096, 80): 3.367}
    settings = [setting(batch, epochs, noise) for (batch, epochs), noise in noises.items()]
    assert recommended(settings) == setting(4096, 40, 2.46)
    few = setting(16_384, 10, 2.571)  # 37 steps: never where others take enough, but better than nothing
    assert (recommended([*settings, few]), recommended([few])) == (setting(4096, 40, 2.46), few)
