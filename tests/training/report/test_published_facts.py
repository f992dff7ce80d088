"""``run.json``: a claim with its numbers, or none and why."""

from __future__ import annotations

import json
from dataclasses import fields

from noisette.training.report import Facts
from noisette.training.report.facts import Claim


def test_a_claim_stands_flat_beside_the_rest(facts: Facts) -> None:
    run = json.loads(facts.as_json())
    assert run["claim"] is True
    assert run["no_claim_because"] == ""
    assert facts.claim is not None
    assert {part.name: run[part.name] for part in fields(Claim)} == facts.claim.__dict__
    assert run["points"][-1]["epsilon"] == run["epsilon"]


def test_without_a_claim_its_numbers_are_null(non_private: Facts) -> None:
    run = json.loads(non_private.as_json())
    assert run["claim"] is False
    assert run["no_claim_because"] == "one record moves the others"
    assert {run[part.name] for part in fields(Claim)} == {None}
    assert {point["epsilon"] for point in run["points"]} == {None}
    assert run["noise_multiplier"] == 3.2
