"""Captured steps of families of pretrained models: exact, and equal to the step that is not captured."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from captured_check import assert_captured, check_equal, check_exact, error_of
from captured_models import Batch, Model
from noisette import PerExampleClip
from pretrained_families import FAMILIES, B, Family, transformers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
NAMES = ("Bert", "GPT2", "Llama", "Mixtral", "T5", "Swin")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def of_the_model(model: nn.Module, **batch: Tensor) -> Tensor:
    return model(**batch).loss


def several(family: Family, b: int) -> Batch:
    """Examples of several batches of a family."""
    parts = [family.batch() for _ in range(-(-b // B))]
    return {name: torch.cat([part[name] for part in parts])[:b] for name in parts[0]}


def model_of(name: str, dropout: bool = False) -> Model:
    family = FAMILIES[name]
    return Model(lambda: family.make(dropout=dropout), lambda b: several(family, b), of_the_model)


@pytest.mark.parametrize("name", NAMES)
def test_sums_are_those_of_single_examples(name: str) -> None:
    assert check_exact(model_of(name)) <= 1e-10


@pytest.mark.parametrize("name", ["Bert", "Llama"])
def test_sums_are_those_of_the_step_itself(name: str) -> None:
    assert check_equal(model_of(name)) <= 1e-5


def test_a_batch_as_one_argument() -> None:
    model, batch = model_of("Bert").make(), several(FAMILIES["Bert"], 6)
    clip, eager = PerExampleClip(model, 0.1, capture="graph"), PerExampleClip(copy.deepcopy(model), 0.1)

    def loss(model: nn.Module, batch: transformers.BatchEncoding) -> Tensor:
        return model(**batch).loss

    for _ in range(4):  # the first call of a model fills caches of its library
        clip.accumulate(loss, transformers.BatchEncoding(batch))
        eager.accumulate(loss, transformers.BatchEncoding(batch))
    assert_captured(clip)
    assert error_of(clip.pop_sums()[0].grads, eager.pop_sums()[0].grads) <= 1e-5
