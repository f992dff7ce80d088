"""A Llama that trains in seconds, and its tokenizer, with a chat template."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<pad>", "<eos>", "<user>", "<assistant>", "The", "secret", "number", "is", *"0123456789"]
TEMPLATE = (
    "{% for m in messages %}{{ '<' + m.role + '> ' }}{% if m.role == 'user' %}{{ m.content }}{% else %}"
    "{% generation %}{{ m.content + ' <eos>' }}{% endgeneration %}{% endif %}{% endfor %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    tokens = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    made = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>")
    made.chat_template = TEMPLATE
    return made


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), **sizes))
