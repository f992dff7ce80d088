"""Normalization layers in a graph: per-example gradients against single examples."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_traced_recurrent_layers import check
from torch import nn

from noisette.rules.conv import few_operations

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm([3, 4]),
    "rms": lambda: nn.RMSNorm(4),
    "group": lambda: nn.GroupNorm(2, 6),
    "instance": lambda: nn.InstanceNorm1d(6, affine=True),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_scale_and_shift(kind: str) -> None:
    torch.manual_seed(0)
    model = LAYERS[kind]().double()
    for p in model.parameters():
        nn.init.normal_(p)
    shape = (5, 6, 4) if kind in ("group", "instance") else (5, 3, 4)
    with few_operations():
        graph = check(model, lambda model, x: model(x).pow(3).sum(), torch.randn(shape, dtype=torch.float64))
    assert not [node for node in graph.nodes if node.target is torch.ops.aten.split.Tensor]
