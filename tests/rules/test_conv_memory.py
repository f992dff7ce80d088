"""Plans of a convolution whose temporary memory is out of proportion are never tried."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noisette import PerExampleClip
from noisette.rules import conv as kernel_gradients
from noisette.rules.conv import GRAM_PLANS, KernelGradients

LARGE = {
    "patch embedding": (lambda: nn.Conv2d(3, 768, 16, 16), (3, 224, 224)),
    "patches of 32": (lambda: nn.Conv2d(3, 768, 32, 32), (3, 256, 256)),
    "large kernel": (lambda: nn.Conv2d(8, 8, 31, padding=15), (8, 24, 24)),
}


@pytest.mark.parametrize("b", [2, 16])
@pytest.mark.parametrize("name", LARGE)
def test_every_plan_that_is_tried_is_affordable(name: str, b: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def checked(size):
        def counted(form: KernelGradients) -> int:
            tried.append(size(form))
            return size(form)

        return counted

    def affordable(norms, size):
        def run(form: KernelGradients):
            assert size(form) <= 2**23, "a plan of unbounded memory was tried"
            return norms(form)

        return run

    planned = {n: (affordable(norms, size), checked(size)) for n, (norms, size) in GRAM_PLANS.items()}
    monkeypatch.setattr(kernel_gradients, "GRAM_PLANS", planned)
    make, shape = LARGE[name]
    model = make()
    clip = PerExampleClip(model, 1.0)
    clip.accumulate(lambda model, x: model(x).square().mean(), torch.randn(b, *shape))
    [total] = clip.pop_sums()
    assert all(g.isfinite().all() for g in total.grads)
