"""Families of pretrained models of random weights: exact, also with checkpoints and as captured steps."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captured_check import check_exact
from captured_models import Batch, Model
from noisette import OneByOneWarning
from noisette.core.forms import PHYSICAL
from oracle import example_gradients
from small_loop import clipped_by

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.logging.set_verbosity_error()

B, WORDS = 3, 40
SIZES = {
    **{"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "max_position_embeddings": 32},
}
GROUPED = SIZES | {"num_key_value_heads": 1, "pad_token_id": 1}
EXPERTS = GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"}


def texts() -> Batch:
    mask = (torch.arange(7) < torch.tensor([[7], [4], [5]])).long()
    return {"input_ids": torch.randint(4, WORDS, (B, 7)) * mask + (1 - mask), "attention_mask": mask}


def labelled() -> Batch:
    return texts() | {"labels": torch.arange(B) % 2}


def next_words() -> Batch:
    batch = texts()
    return batch | {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


@dataclass(frozen=True)
class Family:
    model: str
    config: str
    settings: dict[str, Any]
    batch: Callable[[], Batch]

    def make(self) -> nn.Module:
        """Without dropout."""
        config = getattr(transformers, self.config)(**self.settings)
        for name, value in list(vars(config).items()):
            if "drop" in name and isinstance(value, float):
                setattr(config, name, 0.0)
        return getattr(transformers, self.model)(config).train()


def classifier(name: str, **settings: Any) -> Family:
    return Family(f"{name}ForSequenceClassification", f"{name}Config", SIZES | settings, labelled)


def language_model(name: str, sizes: dict[str, Any] = GROUPED, **settings: Any) -> Family:
    return Family(f"{name}ForCausalLM", f"{name}Config", sizes | settings, next_words)


# Of the families that the tests of ``zoo`` do not build, and of those that are captured below.
FAMILIES = {
    "Bert": classifier("Bert"),
    "GPT2": Family(
        *("GPT2LMHeadModel", "GPT2Config"),
        *({"vocab_size": WORDS, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}, next_words),
    ),
    "Llama": language_model("Llama"),
    "Mistral, windows": language_model("Mistral", sliding_window=4),
    "Mixtral": language_model("Mixtral", EXPERTS),
    "Mamba": language_model("Mamba", state_size=4),
    "T5": Family(
        *("T5ForConditionalGeneration", "T5Config"),
        {
            **{"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2},
            **{"decoder_start_token_id": 0, "relative_attention_num_buckets": 8},
        },
        lambda: texts() | {"labels": torch.randint(4, WORDS, (B, 5))},
    ),
    "Swin": Family(
        *("SwinForImageClassification", "SwinConfig"),
        {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4},
        lambda: {"pixel_values": torch.randn(B, 3, 16, 16).double(), "labels": torch.arange(B) % 2},
    ),
}


pytestmark = pytest.mark.filterwarnings("ignore")


def of_the_model(model: nn.Module, **batch: Tensor) -> Tensor:
    return model(**batch).loss


def assert_exact(model: nn.Module, batch: Batch, change: Callable[[], object] = lambda: None) -> None:
    truth = example_gradients(model, of_the_model, batch).clipped(1e9).vector
    change()
    found = clipped_by(model, 1e9, lambda model, batch: model(**batch).loss, (transformers.BatchEncoding(batch),))
    assert float((found - truth).norm()) <= 1e-9 * float(truth.norm())
    assert truth.any()


@pytest.mark.parametrize("name", FAMILIES)
def test_sums_are_those_of_single_examples(name: str) -> None:
    family = FAMILIES[name]
    assert_exact(family.make().double(), family.batch())


@pytest.mark.parametrize("name", ["Bert", "GPT2", "Llama"])
def test_gradient_checkpointing_changes_nothing(name: str) -> None:
    model = FAMILIES[name].make().double()
    model.gradient_checkpointing_enable()
    assert_exact(model, FAMILIES[name].batch())


def test_a_model_that_selects_labels_is_vectorised() -> None:
    family = classifier("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], type_vocab_size=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OneByOneWarning)
        assert_exact(family.make().double(), family.batch())


def test_the_rows_of_an_expert_are_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[Any] = []
    leave = PHYSICAL[of_experts := "transformers::grouped_mm_fallback"]
    monkeypatch.setitem(PHYSICAL, of_experts, lambda *given: products.append(leave(*given)) or products[-1])
    model: Any = FAMILIES["Mixtral"].make().double()
    assert_exact(model, next_words(), lambda: model.set_experts_implementation("grouped_mm"))
    assert [type(product) for product in products] == [Tensor] * 4


def several(family: Family, b: int) -> Batch:
    parts = [family.batch() for _ in range(-(-b // B))]
    return {name: torch.cat([part[name] for part in parts])[:b] for name in parts[0]}


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("GPT2", "Mixtral", "Swin")]


@pytest.mark.parametrize("name", ["Bert", "Llama", "T5", *SLOW])
def test_captured_sums_are_those_of_single_examples(name: str) -> None:
    family = FAMILIES[name]
    assert check_exact(Model(lambda: family.make(), lambda b: several(family, b), of_the_model)) <= 1e-10
