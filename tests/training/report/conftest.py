import pytest

from noisette.accounting import PldAccountant, PoissonGaussian
from noisette.accounting.events import facts_of
from noisette.training.recipe import DataSection, ModelSection, PrivacySection, Recipe, TrainingSection
from noisette.training.report.facts import ClassFigures, Facts, Point

EVENT = PoissonGaussian(sampling_rate=0.15, noise_multiplier=3.2)
DELTA = 1e-4


def point(step: int, accuracy: float | None) -> Point:
    return Point(step, PldAccountant().compose({EVENT: step}).epsilon(delta=DELTA), accuracy)


@pytest.fixture(scope="session")
def facts():
    points = tuple(point(step, accuracy) for step, accuracy in ((60, 0.81), (120, 0.9), (180, 0.925), (240, 0.931)))
    recipe = Recipe(
        DataSection("flowers"),
        ModelSection("cnn"),
        PrivacySection(delta=DELTA, max_grad_norm=1.5),
        TrainingSection(epochs=36.0, batch_size=216, lr=1.25, cosine=False, seed=7),
    )
    test = ClassFigures(0.931, 0.1, 0.93, 0.99, ((1,) * 10,) * 10, 0.2, 2.3, (0.1,) * 10)
    of_data = {"data": "flowers", "note": "", "declared_size": 1437, "input_shape": (1, 8, 8)}
    of_data |= {"classes": 10, "parameters": 21642, "public_weights": "", "sampling": "Poisson"}
    of_steps = {"sampling_rate": EVENT.sampling_rate, "noise_multiplier": EVENT.noise_multiplier, "max_grad_norm": 1.5}
    of_steps |= {"steps": 240, "steps_planned": 240, "steps_taken": 240, "event": facts_of(EVENT)}
    of_cost = {"epsilon": points[-1].epsilon, "neighbouring": "add or remove one record", "ledger_head": "0123abcd"}
    of_cost |= {"accountant_version": "noisette 0.1.0", "released": ((facts_of(EVENT), 240),)}
    of_run = {"version": "1.2.3", "recipe": recipe, "test": test, "test_accuracy": 0.931, "points": points}
    return Facts(**of_run, **of_data, **of_steps, **of_cost, seconds=3.21, device="cpu")
