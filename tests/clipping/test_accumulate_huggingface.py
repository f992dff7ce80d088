"""Families of pretrained models, from random configurations, through the vectorised loss of their own.

Exact against single examples in double precision without dropout, also as captured steps.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captured_check import check_exact
from captured_models import Model
from noisette import OneByOneWarning, PerExampleClip
from pretrained_families import FAMILIES, B, Batch, Family, classifier, transformers

pytestmark = pytest.mark.filterwarnings("ignore")

every_family = pytest.mark.parametrize("name", FAMILIES)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def of_the_model(model: nn.Module, batch: Batch) -> Tensor:
    return model(**batch).loss


def accumulated(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """The sum of the gradients, of which none is clipped."""
    clip = PerExampleClip(model, 1e9)
    try:
        clip.accumulate(of_the_model, batch)
        return dict(zip(clip.parameters, clip.pop_sums()[0].grads, strict=True))
    finally:
        clip.close()


def assert_exact(model: nn.Module, batch: Batch) -> None:
    """The gradient of each example alone, added up."""
    found = accumulated(model, transformers.BatchEncoding(batch))
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    for i in range(B):
        loss = of_the_model(model, {name: tensor[i : i + 1] for name, tensor in batch.items()})
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
        for name, g in zip(named, gradients, strict=True):
            total[name] += g
    size = torch.stack([value.norm() for value in total.values()]).norm()
    assert size > 0
    for name, value in total.items():
        assert float((found[name] - value).norm()) <= 1e-9 * float(size), name


@every_family
def test_sums_are_those_of_single_examples(name: str) -> None:
    family = FAMILIES[name]
    assert_exact(family.make(dropout=False).double(), family.batch())


@pytest.mark.parametrize("name", ["Bert", "GPT2", "Llama"])
def test_gradient_checkpointing_changes_nothing(name: str) -> None:
    model = FAMILIES[name].make(dropout=False).double()
    model.gradient_checkpointing_enable()
    assert_exact(model, FAMILIES[name].batch())


def test_adapters() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False)
    assert_exact(peft.get_peft_model(FAMILIES["GPT2"].make(dropout=False), config).double(), FAMILIES["GPT2"].batch())


def test_a_model_that_selects_labels_is_vectorised() -> None:
    family = classifier("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], type_vocab_size=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OneByOneWarning)
        assert_exact(family.make(dropout=False).double(), family.batch())


# Captured


def several(family: Family, b: int) -> Batch:
    """Examples of several batches of a family."""
    parts = [family.batch() for _ in range(-(-b // B))]
    return {name: torch.cat([part[name] for part in parts])[:b] for name in parts[0]}


@pytest.mark.parametrize("name", ["Bert", "GPT2", "Llama", "Mixtral", "T5", "Swin"])
def test_captured_sums_are_those_of_single_examples(name: str) -> None:
    family = FAMILIES[name]
    captured = Model(
        lambda: family.make(dropout=False), lambda b: several(family, b), lambda model, **batch: model(**batch).loss
    )
    assert check_exact(captured) <= 1e-10
