"""A model of Hugging Face in a local folder, as a function from numbers of words to scores."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn


class HuggingFaceText(nn.Module):
    """Scores (b, classes) of texts (b, tokens), by a model for sequence classification.

    Args:
        model: the model, called with ``input_ids`` and ``attention_mask``.
        padding: the number that stands for no word.
    """

    def __init__(self, model: nn.Module, padding: int) -> None:
        super().__init__()
        self.model = model
        self.padding = padding

    def forward(self, numbers: Tensor) -> Tensor:
        numbers = numbers.long()
        return self.model(input_ids=numbers, attention_mask=(numbers != self.padding).long()).logits


def text_model(folder: Path, classes: int) -> HuggingFaceText:
    """The model in a folder that ``save_pretrained`` has written, with a new layer of scores if the classes differ.

    No code of the folder is run, weights are read from safetensors alone, and nothing is downloaded.

    Guarantee: none for what the weights were trained on, which is taken to be public.

    Raises:
        ValueError: transformers is not installed, or the folder holds no such model.
    """
    try:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
    except ImportError as error:
        raise ValueError(f"{folder} needs Hugging Face's transformers: pip install transformers") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        model = AutoModelForSequenceClassification.from_pretrained(
            folder,
            num_labels=classes,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{folder} holds no model for texts that can be loaded: {error}") from error
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    model.config.pad_token_id = padding
    return HuggingFaceText(model, padding)
