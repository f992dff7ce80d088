"""Scale and shift of layer, RMS, group, instance and evaluating batch norm against autograd."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_traced_recurrent_layers import check
from torch import Tensor, nn

from noisette.core.forms import Examples
from noisette.rules import normalization
from noisette.rules.conv import few_operations
from rule_oracle import by_autograd, check_form, double, rule_of

B = 4


def statistics() -> tuple[Tensor, Tensor]:
    return double(6), double(6).square() + 0.1


# The operation, the shape of an example, that of scale and shift, and the arguments before and after these two.
CASES: list[tuple[Callable[..., Tensor], tuple[int, ...], tuple[int, ...], tuple[Any, ...], tuple[Any, ...]]] = [
    *((F.layer_norm, (*between, 5), (5,), ((5,),), (0.1,)) for between in ((), (3,), (2, 3))),
    *((F.layer_norm, (*between, 4, 5), (4, 5), ((4, 5),), (0.1,)) for between in ((), (3,))),
    *((F.rms_norm, (*between, 5), (5,), ((5,),), (eps,)) for between in ((), (2, 3)) for eps in (None, 0.1)),
    *((F.group_norm, (6, *places), (6,), (groups,), (0.1,)) for places in ((), (3, 2)) for groups in (1, 2, 6)),
    *((F.batch_norm, (6, *places), (6,), statistics(), (False, 0.1, 0.2)) for places in ((), (7,), (3, 2))),
    *((F.instance_norm, (6, *places), (6,), (None, None), (True, 0.1, 0.2)) for places in ((7,), (3, 2))),
    *((F.instance_norm, (6, *places), (6,), statistics(), (False, 0.1, 0.2)) for places in ((7,), (3, 2))),
]


@pytest.mark.parametrize("cached", [1, 2**19], ids=["one at a time", "at once"])
@pytest.mark.parametrize(("operation", "shape", "own", "before", "after"), CASES)
def test_gradients_are_those_of_autograd(operation, shape, own, before, after, cached, monkeypatch) -> None:
    monkeypatch.setattr(normalization, "_CACHED", cached)
    x, affine = double(B, *shape), [double(*own) for _ in range(1 if operation is F.rms_norm else 2)]
    dy = double(*x.shape)
    for k, operand in enumerate(["weight", "bias"][: len(affine)]):

        def by(value: Tensor, k: int = k) -> Tensor:
            return operation(x, *before, *[value if j == k else p for j, p in enumerate(affine)], *after)

        form = rule_of(operation, operand)(Examples(B), dy, x, *before, *affine, *after)
        check_form(form, by_autograd(by, affine[k], dy, B))


@pytest.mark.parametrize("operand", ["weight", "bias"])
def test_statistics_of_private_data_are_refused(operand: str) -> None:
    x, w, bias = double(B, 6, 3), double(6), double(6)
    for operation, given, message in (
        (F.batch_norm, (None, None, w, bias, True), "mix examples"),
        (F.instance_norm, (*statistics(), w, bias), "running statistics"),
    ):
        with pytest.raises(ValueError, match=message):
            rule_of(operation, operand)(Examples(B), x, x, *given)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer": (lambda: nn.LayerNorm([3, 4]), (5, 3, 4)),
    "rms": (lambda: nn.RMSNorm(4), (5, 3, 4)),
    "group": (lambda: nn.GroupNorm(2, 6), (5, 6, 4)),
    "instance": (lambda: nn.InstanceNorm1d(6, affine=True), (5, 6, 4)),
}


@pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)
def test_scale_and_shift_in_a_graph(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model = make().double()
    for p in model.parameters():
        nn.init.normal_(p)
    with few_operations():
        graph = check(model, lambda model, x: model(x).pow(3).sum(), double(*shape))
    assert not [node for node in graph.nodes if node.target is torch.ops.aten.split.Tensor]
