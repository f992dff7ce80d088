"""Language models from random configurations, against the oracle."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette import PerExampleClip, privatize
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
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


def t5() -> nn.Module:
    """An encoder and a decoder with one embedding table, and positions as a bias of the attention."""
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=WORDS,
            d_model=16,
            d_kv=8,
            d_ff=24,
            num_layers=2,
            num_heads=2,
            dropout_rate=0.0,
            relative_attention_num_buckets=8,
            decoder_start_token_id=0,
        )
    )


def vit() -> nn.Module:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
            image_size=8,
            patch_size=4,
            num_labels=3,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def with_adapters(base: nn.Module, **settings: object) -> nn.Module:
    """Low-rank adapters on a frozen model, moved from their initial point, where half of their gradients vanish."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, lora_alpha=4, lora_dropout=0.0, **settings))
    for name, p in model.named_parameters():
        if "lora_A" in name or "lora_B" in name:
            nn.init.normal_(p, std=0.3)
    return model


def gpt2_adapters() -> nn.Module:
    return with_adapters(gpt2(), target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)


def bert_adapters_and_head() -> nn.Module:
    return with_adapters(bert(), target_modules=["query", "value"], modules_to_save=["classifier"], bias="lora_only")


def bert_scaled_adapters() -> nn.Module:
    return with_adapters(bert(), target_modules=["query", "dense"], use_dora=True)


Inputs = dict[str, Tensor]


def texts(b: int = 4) -> Inputs:
    return {"input_ids": torch.randint(2, WORDS, (b, 7))}


def labelled_texts(b: int = 4) -> Inputs:
    """Padded texts of different lengths, with the label among the model's inputs."""
    lengths = torch.randint(3, 8, (b, 1))
    return {**texts(b), "attention_mask": (torch.arange(7) < lengths).long(), "labels": torch.randint(0, 2, (b,))}


def translations(b: int = 4) -> Inputs:
    return {**labelled_texts(b), "labels": torch.randint(2, WORDS, (b, 5))}


def images(b: int = 4) -> Inputs:
    return {"pixel_values": torch.randn(b, 3, 8, 8, dtype=torch.float64), "labels": torch.randint(0, 3, (b,))}


def classes(model: nn.Module, **inputs: Tensor) -> Tensor:
    labels = inputs["labels"] if "labels" in inputs else inputs["input_ids"][:, 0] % 2
    return F.cross_entropy(model(**inputs).logits, labels, reduction="none")


def next_words(model: nn.Module, input_ids: Tensor) -> Tensor:
    scores = model(input_ids=input_ids).logits[:, :-1].transpose(1, 2)
    return F.cross_entropy(scores, input_ids[:, 1:], reduction="none").sum(1)


def other_words(model: nn.Module, **inputs: Tensor) -> Tensor:
    scores = model(**inputs).logits.transpose(1, 2)
    return F.cross_entropy(scores, inputs["labels"], reduction="none").sum(1)


MODELS = {
    "bert": (bert, classes, texts),
    "bert, texts of different lengths": (bert, classes, labelled_texts),
    "roberta": (roberta, classes, texts),
    "distilbert": (distilbert, classes, texts),
    "gpt2, tied": (gpt2, next_words, texts),
    "llama": (llama, next_words, texts),
    "t5": (t5, other_words, translations),
    "vit": (vit, classes, images),
    "adapters of gpt2": (gpt2_adapters, next_words, texts),
    "adapters and head of bert": (bert_adapters_and_head, classes, labelled_texts),
    "adapters of normalised weights": (bert_scaled_adapters, classes, labelled_texts),
}
every_model = pytest.mark.parametrize(("make", "loss", "inputs"), MODELS.values(), ids=MODELS)


@every_model
def test_clipped_sum_is_the_oracles(make, loss, inputs) -> None:
    model, piece = make().double().train(), inputs()
    tolerance = 1e-6 if make in (llama, t5) else 1e-9  # their norms are in single precision whatever the rest is in
    norms = clipped_sum(model, loss, piece, 1.0).norms
    for bound in (float(norms.median()), float(norms.min()) / 100):
        truth = clipped_sum(model, loss, piece, bound)
        for engine in (BookKeeping(), ReweightGP(), PerExampleLoop()):
            clip = PerExampleClip(model, bound, engine=engine, capture="eager")
            clip.accumulate(loss, **piece)
            [total] = clip.pop_sums()
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


def test_adapters_alone_are_trained() -> None:
    for make, head in ((gpt2_adapters, 0), (bert_adapters_and_head, 2)):
        clip = PerExampleClip(make(), 1.0)
        assert all("lora_" in name or "classifier" in name or name.endswith("bias") for name in clip.parameters)
        assert sum("classifier" in name for name in clip.parameters) == head
        clip.close()


def test_loss_of_the_models_own() -> None:
    model, piece = bert().double(), labelled_texts()
    truth = clipped_sum(model, own_loss, piece, 0.5)
    clip = PerExampleClip(model, 0.5, capture="eager")
    clip.accumulate(own_loss, **piece)
    [total] = clip.pop_sums()
    clip.close()
    for found, expected in zip(total.grads, truth.sums.values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def own_loss(model: nn.Module, **texts: Tensor) -> Tensor:
    return model(**texts).loss


@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
def test_fine_tuning(checkpointed: bool) -> None:
    """A data set of named columns, AdamW, a schedule, dropout, and activation checkpointing."""
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(**BERT | {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})
    ).train()
    if checkpointed:
        model.gradient_checkpointing_enable()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 1, 4)
    run = privatize(
        PerExampleClip(model, max_grad_norm=1.0),
        optimizer,
        labelled_texts(40),
        expected_batch_size=8,
        public_size=40,
        steps=4,
        epsilon=8.0,
        delta=1e-5,
    )
    with run:
        for batch in run.batches():
            for piece in batch.microbatches(4):
                run.accumulate(own_loss, **piece)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    assert 0 < run.epsilon(delta=1e-5) <= 8.0
    assert schedule.get_last_lr() == [0.0]
    moved = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert set(moved) == {name for name, _ in model.named_parameters()}
    fresh = bert()
    fresh.load_state_dict(model.state_dict())
    piece = labelled_texts()
    with torch.no_grad():
        assert torch.equal(fresh.eval()(**piece).logits, model.eval()(**piece).logits)
