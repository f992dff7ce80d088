"""The decomposed attention layer against the operation itself."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from noisette.rules.attention import multi_head_attention
from rule_oracle import double

B, L, S, E, HEADS, D = 3, 4, 5, 6, 2, 3
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def arguments(source: str = "self", *, bias: bool = True) -> dict[str, Any]:
    """Arguments of the layer in double precision, without any option; ``source`` says which inputs are one tensor."""
    query = double(L, B, E)
    key = query if source == "self" else double(S, B, E)
    value = key if source in ("self", "memory") else double(S, B, E)
    return {
        "query": query,
        "key": key,
        "value": value,
        "embed_dim_to_check": E,
        "num_heads": HEADS,
        "in_proj_weight": double(3 * E, E),
        "in_proj_bias": double(3 * E) if bias else None,
        "bias_k": None,
        "bias_v": None,
        "add_zero_attn": False,
        "dropout_p": 0.0,
        "out_proj_weight": double(E, E),
        "out_proj_bias": double(E) if bias else None,
    }


def check_same(given: dict[str, Any]) -> None:
    """Both outputs and the gradients of all floating-point arguments equal those of the operation."""
    results = []
    for operation in (multi_head_attention, F.multi_head_attention_forward):
        leaves = {id(x): x.detach().clone() for x in given.values() if isinstance(x, Tensor)}
        floating = [x.requires_grad_() for x in leaves.values() if x.is_floating_point()]
        torch.manual_seed(1)
        output, weights = operation(**{name: leaves.get(id(x), x) for name, x in given.items()})
        total = output.sin().sum() + (0 if weights is None else weights.square().sum())
        gradients = torch.autograd.grad(total, floating, allow_unused=True)
        results.append((output, weights, gradients))
    (output, weights, gradients), (expected, expected_weights, expected_gradients) = results
    torch.testing.assert_close(output, expected, **EXACT)
    assert output.stride() == expected.stride()
    for found, truth in zip((weights, *gradients), (expected_weights, *expected_gradients), strict=True):
        assert (found is None) == (truth is None)
        if found is not None:
            torch.testing.assert_close(found, truth, **EXACT)


def masks(length: int) -> dict[str, Tensor | None]:
    hidden, each = (torch.rand(*shape, length) > 0.6 for shape in ((L,), (B * HEADS, L)))
    hidden[:, 0], each[..., 0] = False, False
    floats = {"float": double(L, length), "each float": double(*each.shape)}
    return {"none": None, "bool": hidden, "each bool": each, **floats}


def padding(kind: str, length: int) -> Tensor | None:
    if kind == "none":
        return None
    hidden = torch.arange(length).expand(B, -1) >= length - torch.arange(B).unsqueeze(1)
    return hidden if kind == "bool" else double(B, length)


WEIGHTS = [{"need_weights": False}, {"need_weights": True}, {"need_weights": True, "average_attn_weights": False}]


@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")
@pytest.mark.parametrize("extra", [False, True], ids=["plain", "extra rows"])
@pytest.mark.parametrize("kind", masks(S))
def test_every_mask_gives_the_operations_own_result(kind: str, extra: bool) -> None:
    for padded, settings in itertools.product(["none", "bool", "float"], WEIGHTS):
        given = arguments("memory") | settings
        given |= {"attn_mask": masks(S)[kind], "key_padding_mask": padding(padded, S)}
        if extra:
            given |= {"bias_k": double(1, 1, E), "bias_v": double(1, 1, E), "add_zero_attn": True}
        check_same(given)


@pytest.mark.parametrize("settings", WEIGHTS, ids=["no weights", "mean weights", "weights of each head"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("source", ["self", "memory", "distinct"])
def test_every_kind_of_projection_gives_the_operations_own_result(
    source: str, bias: bool, settings: dict[str, bool]
) -> None:
    given = arguments(source, bias=bias) | settings
    check_same(given)
    check_same(given | {"add_zero_attn": True})
    check_same(given | {"bias_k": double(1, 1, E), "bias_v": double(1, 1, E)})
    static = {"static_k": double(B * HEADS, S, D), "static_v": double(B * HEADS, S, D)}
    check_same(given | static)
    check_same(given | {"training": True, "dropout_p": 0.5})
    check_same(given | {"training": False, "dropout_p": 0.5})


@pytest.mark.parametrize("settings", WEIGHTS)
def test_causal_attention_gives_the_operations_own_result(settings: dict[str, bool]) -> None:
    causal = {"is_causal": True, "attn_mask": torch.ones(L, L).triu(1).bool()}
    check_same(arguments() | causal | settings)
    check_same(arguments() | causal | settings | {"key_padding_mask": padding("bool", L)})
    check_same(arguments() | causal | settings | {"bias_k": double(1, 1, E), "bias_v": double(1, 1, E)})


@pytest.mark.parametrize("settings", WEIGHTS)
@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_inputs_without_a_batch_give_the_operations_own_result(kind: str, settings: dict[str, bool]) -> None:
    given = arguments("memory") | settings
    query, memory = given["query"][:, 0].clone(), given["key"][:, 0].clone()
    given |= {"query": query, "key": memory, "value": memory, "attn_mask": masks(S)[kind]}
    check_same(given)
    check_same(given | {"key_padding_mask": torch.arange(S) > 2, "attn_mask": None})
    check_same(given | {"attn_mask": double(HEADS, L, S)})


@pytest.mark.parametrize(
    "wrong",
    [
        {"is_causal": True},
        {"attn_mask": double(1, S)},
        {"attn_mask": double(B * HEADS, L, 1)},
        {"value": double(S + 1, B, E)},
        {"static_k": double(B * HEADS, S + 1, D)},
    ],
    ids=["causal without a mask", "short mask", "short mask for each", "longer values", "longer keys"],
)
def test_arguments_that_the_operation_refuses_are_not_rewritten(wrong: dict[str, Any]) -> None:
    given = arguments("memory") | wrong
    with pytest.raises((AssertionError, RuntimeError)):
        F.multi_head_attention_forward(**given)
    assert multi_head_attention(**given) is NotImplemented
