"""Clipped sums of small versions of the built-in networks equal those of a loop over single examples."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from engine_check import check
from model_cases import Case, cross_entropy, labelled
from noisette.clipping.engines import BookKeeping
from noisette.nn import models

IMAGE = (3, 8, 8)
SMALL = {
    "lenet-300-100": (models.lenet_300_100, (1, 4, 4)),
    "lenet-5": (models.lenet_5, (1, 12, 13)),
    "light-vgg": (partial(models.light_vgg, width=2), IMAGE),
}
WITH_NORM = {
    "tf-tutorial": (models.tf_tutorial, (1, 24, 24)),
    "cifar-tutorial": (models.cifar_tutorial, (1, 24, 24)),
    "resnet-18": (partial(models.resnet, width=2), IMAGE),
    "resnet-50": (partial(models.resnet, width=2, depth=50), IMAGE),
    "resnet-18-mod": (partial(models.resnet, width=2, last_norm=False), IMAGE),
    "resnet-18, logits": (partial(models.resnet, width=2, normalised_logits=True), IMAGE),
    "vgg-16": (partial(models.vgg, width=2), (3, 32, 32)),
    "vgg-16-mod": (partial(models.vgg, width=2, last_norm=False), (3, 32, 32)),
}
TEXT = (5, 6)
CASES = [
    *[Case(name, partial(net, shape, 4), labelled(*shape), cross_entropy) for name, (net, shape) in SMALL.items()],
    *[
        Case(f"ln-{name}", partial(net, shape, 4, norm=models.layer_norm), labelled(*shape), cross_entropy)
        for name, (net, shape) in (SMALL | WITH_NORM).items()
    ],
    Case("bilstm-dl", partial(models.bilstm_dl, TEXT, 4, dropout=0.0), labelled(*TEXT), cross_entropy),
    Case("encoder", partial(models.encoder, TEXT, 4), labelled(*TEXT), cross_entropy),
    Case("ln-bilstm-dl", partial(models.ln_bilstm_dl, TEXT, 4, dropout=0.0), labelled(*TEXT), cross_entropy),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_clipped_sums_of_the_networks_are_exact(case: Case) -> None:
    check(case, BookKeeping(), b=3, dtype=torch.float64)
