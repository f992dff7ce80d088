"""Networks of the sizes that are fine-tuned: a vision transformer, BERT and GPT-2, in the code of ``transformers``.

The library is optional, so it is imported when a model is built. Weights are random, and there is no dropout.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor, nn

VOCABULARY = {"bert": 30_522, "gpt2": 50_257}


class Logits(nn.Module):
    """A model of ``transformers`` that takes one tensor and returns its logits, classes on the second axis."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x).logits
        return logits if logits.dim() == 2 else logits.transpose(1, 2)  # of tokens: (b, classes, positions)


def vit_small(width: int = 384, layers: int = 12, image: int = 224) -> nn.Module:
    """ViT-S/16 for 1000 classes: 22 million parameters (Touvron et al. 2021)."""
    return _model(
        "ViT",
        "ViTForImageClassification",
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=6,
        intermediate_size=4 * width,
        image_size=image,
        num_labels=1000,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def bert_base(width: int = 768, layers: int = 12) -> nn.Module:
    """BERT-base with a classifier of two classes: 110 million parameters (Devlin et al. 2019)."""
    return _model(
        "Bert",
        "BertForSequenceClassification",
        vocab_size=VOCABULARY["bert"],
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=4 * width,
        num_labels=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def gpt2(width: int = 768, layers: int = 12) -> nn.Module:
    """GPT-2 small, which predicts every token: 124 million parameters (Radford et al. 2019)."""
    return _model(
        "GPT2",
        "GPT2LMHeadModel",
        vocab_size=VOCABULARY["gpt2"],
        n_embd=width,
        n_layer=layers,
        n_head=12,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        use_cache=False,
    )


def llama(width: int, inner: int, layers: int, rank: int = 0) -> nn.Module:
    """A Llama with 32,000 words, of which all weights are trained, or adapters of this rank at all of its matrices."""
    model = _model(
        "Llama",
        "LlamaForCausalLM",
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        use_cache=False,
    )
    if rank:
        peft = import_module("peft")
        model.model = peft.get_peft_model(model.model, peft.LoraConfig(r=rank, target_modules="all-linear"))
    return model


def _model(family: str, head: str, /, **settings: Any) -> Logits:
    transformers = import_module("transformers")
    config = getattr(transformers, f"{family}Config")(**settings)
    return Logits(getattr(transformers, head)(config)).train()
