"""The page about training without clipping: its code runs, and the library gives its numbers and its picture."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import noisette
from noisette.data import load
from noisette.nn.lipschitz import BoundedInput, GroupSort2, SpectralLinear, SphereInput, TauCrossEntropy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "clipless.md").read_text(encoding="utf-8")
[BLOCK] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_code_of_the_page_trains_and_certifies() -> None:
    """The noise is random, so the numbers differ from those of the page by up to five deviations."""
    names: dict[str, Any] = {}
    exec(BLOCK, names)
    unattacked, attacked = names["accuracies"]
    assert 0.82 < unattacked < 1
    assert 0.5 < attacked < 0.75
    assert 0.25 < names["radii"].median() < 0.42
    assert names["run"].epsilon(delta=1e-4) <= 2.48


@pytest.mark.parametrize(
    ("bounded", "tau", "clipping", "said", "least", "most"),
    [
        (SphereInput(1.0), 30.0, noisette.FlatClipping(0.1), "has 98 to 100 % of the bound", 0.97, 1.0),
        (BoundedInput(3.0), 3.0, None, "it is about 70 %", 0.65, 0.75),
    ],
)
def test_gradients_use_the_stated_share_of_the_bound(
    bounded: nn.Module, tau: float, clipping: noisette.FlatClipping | None, said: str, least: float, most: float
) -> None:
    assert said in PAGE
    model = nn.Sequential(nn.Flatten(), bounded, SpectralLinear(64, 64), GroupSort2(), SpectralLinear(64, 10))
    loss = TauCrossEntropy(tau)
    bound = noisette.LipschitzBound(model, loss=loss, input_shape=(1, 8, 8), logit_clipping=clipping)
    digits = load("digits").test
    used = []
    for image, digit in zip(digits.inputs[:60], digits.targets[:60], strict=True):
        bound.accumulate(lambda model, x, y: loss(model(x), y), torch.tensor(image)[None] - 0.5, torch.tensor([digit]))
        used += [float(part.grads[0].norm()) / part.bound for part in bound.pop_sums()]
    assert least < sum(used) / len(used) <= most


def test_the_picture_is_up_to_date() -> None:
    command = [sys.executable, "-m", "experiments.clipless_page", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0, "run: python -m experiments.clipless_page"


def test_constants_of_the_losses_are_those_of_the_table() -> None:
    from noisette.nn.lipschitz import KR, MAE, MSE, HuberLoss, KCosine, MulticlassHinge, TauBCE

    stated = {
        "TauCrossEntropy(tau)": (TauCrossEntropy(3.0), "sqrt 2;", 2**0.5),
        "TauBCE(tau)": (TauBCE(3.0), "1 ", 1.0),
        "KCosine(k)": (KCosine(4.0), "1 / k", 0.25),
        "MulticlassHinge(outputs, margin)": (MulticlassHinge(4), "sqrt((C - 1) / C)", 0.75**0.5),
        "KR(outputs)": (KR(4), "sqrt(C / (C - 1))", (4 / 3) ** 0.5),
        "MAE(outputs)`, `HuberLoss(outputs, delta)": (MAE(9), "sqrt C, delta sqrt C", 3.0),
        "HuberLoss(outputs, delta)": (HuberLoss(9, 0.5), "sqrt C, delta sqrt C", 1.5),
    }
    for call, (loss, said, constant) in stated.items():
        assert f"`{call}` | {said}" in PAGE
        assert loss.lipschitz() == pytest.approx(constant)
    assert MSE(1, 2.0).lipschitz(3.0) == 2 * (3.0 + 2.0)
    assert "`MSE(outputs, target_bound)` | 2 (R + target_bound)" in PAGE
