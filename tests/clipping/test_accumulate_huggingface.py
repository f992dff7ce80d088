"""Families of pretrained models, from random configurations, through the vectorised loss of their own.

Exact against single examples in double precision without dropout, also as captured steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captured_check import check_exact
from captured_models import Batch, Model
from noisette import OneByOneWarning, PerExampleClip

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.logging.set_verbosity_error()

B, WORDS = 3, 40
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
GROUPED = SIZES | {"num_key_value_heads": 1, "pad_token_id": 1}
EXPERTS = GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"}
IMAGES = {**SIZES, "image_size": 16, "patch_size": 8}
IMAGES = {name: value for name, value in IMAGES.items() if name not in ("vocab_size", "max_position_embeddings")}
TRANSLATION = {
    **{"vocab_size": WORDS, "d_model": 16, "max_position_embeddings": 32, "pad_token_id": 1, "bos_token_id": 2},
    **{"eos_token_id": 3, "decoder_start_token_id": 2, "encoder_layers": 1, "decoder_layers": 1},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24},
}
SPEECH = {
    **{"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16},
    **{"suppress_tokens": None, "begin_suppress_tokens": None},
}
SOUND = SIZES | {
    **{"conv_dim": [8, 8], "conv_stride": [4, 4], "conv_kernel": [8, 4], "num_feat_extract_layers": 2},
    **{"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8},
    **{"mask_time_prob": 0.0, "layerdrop": 0.0},
}


def texts() -> Batch:
    """Texts of different lengths, padded."""
    lengths = torch.tensor([[7], [4], [5]])
    mask = (torch.arange(7) < lengths).long()
    return {"input_ids": torch.randint(4, WORDS, (B, 7)) * mask + (1 - mask), "attention_mask": mask}


def labelled() -> Batch:
    return texts() | {"labels": torch.arange(B) % 2}


def next_words() -> Batch:
    batch = texts()
    return batch | {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def translations() -> Batch:
    return texts() | {"labels": torch.randint(4, WORDS, (B, 5))}


def images() -> Batch:
    return {"pixel_values": torch.randn(B, 3, 16, 16).double(), "labels": torch.arange(B) % 2}


def speech() -> Batch:
    return {"input_features": torch.randn(B, 8, 32).double(), "labels": torch.randint(4, WORDS, (B, 5))}


def sounds() -> Batch:
    return {"input_values": torch.randn(B, 400).double(), "labels": torch.arange(B) % 2}


@dataclass(frozen=True)
class Family:
    model: str
    config: str
    settings: dict[str, Any]
    batch: Callable[[], Batch]

    def make(self, dropout: bool) -> nn.Module:
        config = getattr(transformers, self.config)(**self.settings)
        for name, value in list(vars(config).items()) if not dropout else ():
            if "drop" in name and isinstance(value, float):
                setattr(config, name, 0.0)
        return getattr(transformers, self.model)(config).train()


def classifier(name: str, **settings: Any) -> Family:
    return Family(f"{name}ForSequenceClassification", f"{name}Config", SIZES | settings, labelled)


def language_model(name: str, sizes: dict[str, Any] = GROUPED, **settings: Any) -> Family:
    return Family(f"{name}ForCausalLM", f"{name}Config", sizes | settings, next_words)


FAMILIES = {
    **{name: classifier(name) for name in ("Bert", "Roberta", "Electra", "MPNet", "FNet")},
    "Albert": classifier("Albert", embedding_size=8),
    "DistilBert": Family(
        *("DistilBertForSequenceClassification", "DistilBertConfig"),
        *({"vocab_size": WORDS, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}, labelled),
    ),
    "XLNet": Family(
        *("XLNetForSequenceClassification", "XLNetConfig"),
        *({"vocab_size": WORDS, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}, labelled),
    ),
    "GPT2": Family(
        *("GPT2LMHeadModel", "GPT2Config"),
        *({"vocab_size": WORDS, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}, next_words),
    ),
    **{name: language_model(name) for name in ("Llama", "Qwen2", "Phi", "GPTNeoX")},
    "Mistral, windows": language_model("Mistral", sliding_window=4),
    "Gemma": language_model("Gemma", head_dim=8),
    "Mixtral": language_model("Mixtral", EXPERTS),
    "Mamba": language_model("Mamba", state_size=4),
    "T5": Family(
        *("T5ForConditionalGeneration", "T5Config"),
        {
            **{"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2},
            **{"decoder_start_token_id": 0, "relative_attention_num_buckets": 8},
        },
        translations,
    ),
    "Bart": Family("BartForConditionalGeneration", "BartConfig", TRANSLATION, translations),
    "Whisper": Family("WhisperForConditionalGeneration", "WhisperConfig", TRANSLATION | SPEECH, speech),
    "Wav2Vec2": Family("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", SOUND, sounds),
    "ViT": Family("ViTForImageClassification", "ViTConfig", IMAGES, images),
    "Beit": Family("BeitForImageClassification", "BeitConfig", IMAGES, images),
    "ConvNext": Family(
        *("ConvNextForImageClassification", "ConvNextConfig"),
        *({"hidden_sizes": [8, 12], "depths": [1, 1], "num_stages": 2}, images),
    ),
    "Swin": Family(
        *("SwinForImageClassification", "SwinConfig"),
        {
            **{"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [1, 2]},
            "window_size": 4,
        },
        images,
    ),
}

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
