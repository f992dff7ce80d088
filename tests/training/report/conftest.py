from __future__ import annotations

from dataclasses import replace

import pytest

from noisette.accounting import PldAccountant, PoissonGaussian
from noisette.training.outcome import Point
from noisette.training.report import Facts
from noisette.training.report.facts import Claim

EVENT = PoissonGaussian(sampling_rate=0.15, noise_multiplier=3.2)
DELTA = 1e-4


def point(step: int, accuracy: float | None) -> Point:
    return Point(step, PldAccountant().compose({EVENT: step}).epsilon(delta=DELTA), accuracy)


@pytest.fixture(scope="session")
def facts() -> Facts:
    points = tuple(point(step, accuracy) for step, accuracy in ((60, 0.81), (120, 0.9), (180, 0.925), (240, 0.931)))
    return Facts(
        version="1.2.3",
        claim=Claim(
            epsilon=points[-1].epsilon or 0.0,
            delta=DELTA,
            budget=3.0,
            accountant="pld",
            accountant_version="dp-accounting 0.6.0",
            neighbouring="add or remove one record",
            tail_delta=1.7e-13,
            allow_large_delta=False,
            steps=240,
            ledger_head="0123abcd",
        ),
        no_claim_because="",
        data="flowers",
        note="",
        declared_size=1437,
        input_shape=(1, 8, 8),
        word_vectors=(),
        classes=10,
        model="cnn",
        public_weights="",
        standardised=False,
        batch_norm="",
        public_data="",
        public_examples=0,
        public_seed=0,
        parameters=21642,
        sampling="Poisson",
        sampling_rate=EVENT.sampling_rate,
        noise_multiplier=EVENT.noise_multiplier,
        max_grad_norm=1.5,
        lipschitz=None,
        layers=1,
        components=0,
        components_noise_multiplier=0.0,
        steps_planned=240,
        steps_taken=240,
        steps_lost=0,
        resumed=0,
        completed=True,
        expected_batch_size=216,
        epochs=36.0,
        seed=7,
        learning={"lr": 1.25, "momentum": 0.0, "cosine": False},
        test_accuracy=0.931,
        seconds=3.21,
        seconds_per_step=0.0134,
        device="cpu",
        points=points,
    )


@pytest.fixture
def non_private(facts: Facts) -> Facts:
    """The same run, had it no claim."""
    points = tuple(replace(point, epsilon=None) for point in facts.points)
    norm = {"batch_norm": "mixture", "public_data": "kmnist", "public_examples": 128}
    return replace(facts, claim=None, no_claim_because="one record moves the others", points=points, **norm)
