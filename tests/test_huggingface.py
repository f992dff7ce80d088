"""Language models from random configurations, against the oracle."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette import BookKeeping, Loop, PerExampleClip, Reweight
from noisette.preflight import Call, prove
from oracle import clipped_sum

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = 40
BERT = {
    "vocab_size": WORDS,
    "max_position_embeddings": 16,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def bert() -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**BERT))


def roberta() -> nn.Module:
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**BERT))


def distilbert() -> nn.Module:
    return transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(
            vocab_size=WORDS,
            max_position_embeddings=16,
            dim=24,
            n_layers=2,
            n_heads=2,
            hidden_dim=32,
            dropout=0.0,
            attention_dropout=0.0,
            seq_classif_dropout=0.0,
        )
    )


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=WORDS,
            n_positions=16,
            n_embd=24,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=WORDS,
            hidden_size=24,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=16,
        )
    )


def classes(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(input_ids=ids).logits, ids[:, 0] % 2, reduction="none")


def next_words(model: nn.Module, ids: Tensor) -> Tensor:
    scores = model(input_ids=ids).logits[:, :-1].transpose(1, 2)
    return F.cross_entropy(scores, ids[:, 1:], reduction="none").sum(1)


MODELS = {
    "bert": (bert, classes),
    "roberta": (roberta, classes),
    "distilbert": (distilbert, classes),
    "gpt2, tied": (gpt2, next_words),
    "llama": (llama, next_words),
}


@pytest.mark.parametrize(("make", "loss"), MODELS.values(), ids=MODELS)
def test_clipped_sum_is_the_oracles(make, loss) -> None:
    model = make().double().train()
    tolerance = 1e-6 if make is llama else 1e-9  # its norms are in single precision whatever the rest is in
    ids = torch.randint(2, WORDS, (4, 7))
    norms = clipped_sum(model, loss, (ids,), 1.0).norms
    for bound in (float(norms.median()), float(norms.min()) / 100):
        truth = clipped_sum(model, loss, (ids,), bound)
        for engine in (BookKeeping(), Reweight(), Loop()):
            clip = PerExampleClip(model, bound, engine=engine)
            clip.backward(loss(model, ids))
            [total] = clip.take()
            clip.close()
            found = dict(zip(clip.parameters, total.grads, strict=True))
            assert found.keys() == truth.sums.keys()
            for name, expected in truth.sums.items():
                assert float((found[name] - expected).norm()) <= tolerance * float(truth.vector.norm()), (name, engine)


def test_tied_table_is_one_parameter() -> None:
    model = gpt2()
    assert model.lm_head.weight is model.transformer.wte.weight
    clip = PerExampleClip(model, 1.0)
    assert "lm_head.weight" not in clip.parameters
    clip.close()


@pytest.mark.parametrize(("make", "loss"), MODELS.values(), ids=MODELS)
def test_preflight_passes(make, loss) -> None:
    model = make()
    clip = PerExampleClip(model, 1.0)
    prove(
        clip,
        Call((), {"input_ids": torch.randint(2, WORDS, (4, 7)), "attention_mask": torch.ones(4, 7, dtype=torch.long)}),
    )
    clip.close()
