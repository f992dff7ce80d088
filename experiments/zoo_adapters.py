"""Methods of Hugging Face's PEFT on small random models."""

from __future__ import annotations

from functools import partial
from typing import Any

import peft
import torch
import transformers
from torch import Tensor, nn

from experiments.zoo_check import Batch, Entry

transformers.logging.set_verbosity_error()

WORDS = 48
BASES: dict[str, tuple[str, str, dict[str, Any], list[str], str]] = {  # model, configuration, sizes, targets, task
    "Llama": (
        *("LlamaForCausalLM", "LlamaConfig"),
        {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        *(["q_proj", "v_proj"], "CAUSAL_LM"),
    ),
    "GPT2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 16, "n_layer": 2, "n_head": 2}, ["c_attn"], "CAUSAL_LM"),
    "Bert": (
        *("BertForSequenceClassification", "BertConfig"),
        {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        *(["query", "value"], "SEQ_CLS"),
    ),
    "T5": (
        *("T5ForConditionalGeneration", "T5Config"),
        {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
        *(["q", "v"], "SEQ_2_SEQ_LM"),
    ),
}
FEED_FORWARD = {"Llama": ["down_proj"], "GPT2": ["c_fc"], "Bert": ["output.dense"], "T5": ["wo"]}
CONV1D = {"GPT2": {"fan_in_fan_out": True}}
TARGETS = "target_modules"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("LoraConfig", {"r": 2, "init_lora_weights": False, "lora_dropout": 0.1}),
    "rsLoRA": ("LoraConfig", {"r": 2, "init_lora_weights": False, "use_rslora": True}),
    "DoRA": ("LoraConfig", {"r": 2, "init_lora_weights": False, "use_dora": True}),
    "DoRA, dropout": ("LoraConfig", {"r": 2, "init_lora_weights": False, "use_dora": True, "lora_dropout": 0.1}),
    "LoRA, PiSSA": ("LoraConfig", {"r": 2, "init_lora_weights": "pissa"}),
    "LoRA, bias": ("LoraConfig", {"r": 2, "init_lora_weights": False, "bias": "all"}),
    "AdaLoRA": ("AdaLoraConfig", {"init_r": 4, "target_r": 2, "total_step": 10, "init_lora_weights": False}),
    "IA3": ("IA3Config", {"init_ia3_weights": False}),
    "LoHa": ("LoHaConfig", {"r": 2, "init_weights": False}),
    "LoKr": ("LoKrConfig", {"r": 2, "init_weights": False}),
    "OFT": ("OFTConfig", {"r": 0, "oft_block_size": 4, "init_weights": False}),
    "BOFT": ("BOFTConfig", {"boft_block_size": 4, "init_weights": False}),
    "VeRA": ("VeraConfig", {"r": 4, "init_weights": False}),
    "FourierFT": ("FourierFTConfig", {"n_frequency": 8, "init_weights": False}),
    "HRA": ("HRAConfig", {"r": 2, "init_weights": False}),
    "VBLoRA": ("VBLoRAConfig", {"r": 2, "num_vectors": 8, "vector_length": 4, "topk": 2}),
    "RandLora": ("RandLoraConfig", {"r": 4, "init_weights": False}),
    "LN tuning": ("LNTuningConfig", {}),
    "Bone": ("BoneConfig", {"r": 4, "init_weights": False}),
    "MiSS": ("MissConfig", {"r": 4, "init_weights": False}),
    "C3A": ("C3AConfig", {"block_size": 4, "init_weights": False}),
    "SHiRA": ("ShiraConfig", {"r": 2, "init_weights": False}),
    "RoAd": ("RoadConfig", {"group_size": 4, "init_weights": False}),
    "WaveFT": ("WaveFTConfig", {"n_frequency": 8, "init_weights": False}),
    "DeLoRA": ("DeloraConfig", {"r": 2, "init_weights": False}),
    "prompt": ("PromptTuningConfig", {"num_virtual_tokens": 3}),
    "p-tuning": ("PromptEncoderConfig", {"num_virtual_tokens": 3, "encoder_hidden_size": 8}),
    "p-tuning, LSTM": (
        "PromptEncoderConfig",
        {"num_virtual_tokens": 3, "encoder_hidden_size": 8, "encoder_reparameterization_type": "LSTM"},
    ),
    "prefix": ("PrefixTuningConfig", {"num_virtual_tokens": 3}),
    "prefix, projection": (
        "PrefixTuningConfig",
        {"num_virtual_tokens": 3, "prefix_projection": True, "encoder_hidden_size": 8},
    ),
    "adaption prompt": ("AdaptionPromptConfig", {"adapter_len": 3, "adapter_layers": 2}),
    "CPT": ("CPTConfig", {"cpt_token_ids": [5, 6, 7], "cpt_tokens_type_mask": [1, 2, 4], "cpt_mask": [1, 1, 1]}),
}
WITHOUT_TARGETS = {"LN tuning", "adaption prompt", "CPT"} | {name for name in METHODS if name.startswith("p")}


_LINEAR_ONLY = ("BOFT", "C3A", "DeLoRA", "HRA", "LoHa", "LoKr", "MiSS", "OFT", "RoAd", "SHiRA")
LEFT_OUT: dict[str, str] = {
    **{f"peft/{method} on GPT2": "PEFT has no such adapter for the layers of this model" for method in _LINEAR_ONLY},
    **{
        f"peft/{method} on Bert": "PEFT has prefixes for models with a cache of keys and values alone"
        for method in ("prefix", "prefix, projection")
    },
    **{f"peft/CPT on {base}": "PEFT has this method for causal language models alone" for base in ("Bert", "T5")},
}


def entries() -> list[Entry]:
    return [
        Entry(f"peft/{method} on {base}", "peft", partial(make, base, method), partial(batch, base), loss)
        for base in BASES
        for method in METHODS
        if f"peft/{method} on {base}" not in LEFT_OUT
        if hasattr(peft, METHODS[method][0]) and (method != "adaption prompt" or base == "Llama")
    ]


def make(base: str, method: str, dropout: bool) -> nn.Module:
    torch.manual_seed(0)
    model_name, config_name, sizes, targets, task = BASES[base]
    config = getattr(transformers, config_name)(vocab_size=WORDS, pad_token_id=1, **sizes)
    for name, value in list(vars(config).items()) if not dropout else ():
        if ("drop" in name or name.endswith("pdrop")) and isinstance(value, float):
            setattr(config, name, 0.0)
    class_name, settings = METHODS[method]
    settings = dict(settings) | {"task_type": task}
    if not dropout:
        settings.pop("lora_dropout", None)
    if method not in WITHOUT_TARGETS:
        settings[TARGETS] = targets
    if method == "IA3":
        settings[TARGETS] = targets + FEED_FORWARD[base]
        settings["feedforward_modules"] = FEED_FORWARD[base]
    if method == "LN tuning" and base == "GPT2":
        settings[TARGETS] = ["ln_1", "ln_2"]
    if method == "LN tuning" and base == "Bert":
        settings[TARGETS] = ["LayerNorm"]
    if method == "VeRA":
        settings[TARGETS] = targets[:1]
    model = getattr(transformers, model_name)(config)
    return peft.get_peft_model(model, getattr(peft, class_name)(**settings)).train()


def batch(base: str, model: nn.Module) -> dict[str, Tensor]:
    torch.manual_seed(1)
    mask = (torch.arange(8) < torch.tensor([[8], [5], [6]])).long()
    ids = torch.randint(5, WORDS, (3, 8)) * mask + (1 - mask)
    labels = {
        "SEQ_CLS": torch.arange(3) % 2,
        "SEQ_2_SEQ_LM": torch.randint(5, WORDS, (3, 5)),
        "CAUSAL_LM": ids.masked_fill(mask == 0, -100),
    }
    return {"input_ids": ids, "attention_mask": mask, "labels": labels[BASES[base][-1]]}


def loss(model: nn.Module, given: Batch) -> Tensor:
    return model(**given).loss
