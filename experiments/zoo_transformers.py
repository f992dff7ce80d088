"""Every model of Hugging Face's transformers for which a small random configuration can be built."""

from __future__ import annotations

import importlib
import inspect
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from experiments.zoo_check import Batch, Entry, combined
from experiments.zoo_inputs import CONSTANTS, INPUTS, JOINED
from experiments.zoo_sizes import OVERRIDES, small

with suppress(ImportError):  # timm and torchvision, which some models have as their backbone
    importlib.import_module("experiments.zoo_images")
transformers.logging.set_verbosity_error()

B, LENGTH = 3, 8
TASKS = {
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "images": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "ctc": modeling_auto.MODEL_FOR_CTC_MAPPING_NAMES,
    "sounds": modeling_auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
    "speech": modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    "video": modeling_auto.MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES,
    "sequence": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "multimodal": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    "segmentation": modeling_auto.MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES,
    "base": modeling_auto.MODEL_MAPPING_NAMES,
}


_NO_GRADIENT = "it returns codes, which are integers and have no gradient"
_UNTRAINED = "its forward pass says that training is not implemented, and keeps what it made of words between calls"
_NO_FORWARD = "its parts are models, and it has no forward pass of its own"
_SESSION = "its forward pass takes a session of inference, frame by frame, and not records"
_ASSISTANT = "it takes keys and values that another model has computed"
LEFT_OUT: dict[str, str] = {
    **{
        f"transformers/{name}": _ASSISTANT
        for name in ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
    },
    **dict.fromkeys(("transformers/BarkModel", "transformers/GlmImageVQVAE"), _NO_FORWARD),
    "transformers/WavTokenizerEncoderModel": _NO_GRADIENT,
    "transformers/OmDetTurboForObjectDetection": _UNTRAINED,
    **{
        f"transformers/{name}": _SESSION
        for name in ("EdgeTamVideoModel", "Sam2VideoModel", "Sam3TrackerVideoModel", "Sam3VideoModel")
    },
}


def entries() -> list[Entry]:
    """One model of each family."""
    chosen: dict[str, tuple[str, str]] = {}
    covered: set[str] = set()
    for task, mapping in TASKS.items():
        for family, names in mapping.items():
            name = names if isinstance(names, str) else names[0]
            if hasattr(transformers, name) and (task != "base" or family not in covered):
                chosen.setdefault(name, (family, task))
                covered.add(family)
    return [
        Entry(
            f"transformers/{name}",
            "transformers",
            *(partial(make, family, name), partial(batch, task), partial(loss, task)),
        )
        for name, (family, task) in sorted(chosen.items())
        if f"transformers/{name}" not in LEFT_OUT
    ]


def make(family: str, name: str, dropout: bool) -> nn.Module:
    """The model of this name with random weights."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    of_text = getattr(kind, "config_class", None) or CONFIG_MAPPING[family]  # of a family with pictures, perhaps
    config_class = of_text if issubclass(of_text, tuple(CONFIG_MAPPING.values())) else CONFIG_MAPPING[family]
    config = small(config_class, OVERRIDES.get(config_class.model_type, {}))
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 2
    if hasattr(config, "is_decoder") and name.endswith("ModelWithLMHead"):
        config.is_decoder = True
    if not dropout:
        without_dropout(config)
    model = kind(config).train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    return model


def without_dropout(config: Any) -> None:
    """All probabilities of dropping or masking become zero."""
    for name, value in list(vars(config).items()):
        if isinstance(value, transformers.PretrainedConfig):
            without_dropout(value)
        elif isinstance(value, float) and any(
            part in name for part in ("drop", "jitter", "noise", "vae_std", "mask_time_prob", "mask_feature_prob")
        ):
            setattr(config, name, 0.0)
        elif name == "apply_spec_augment":
            setattr(config, name, False)


def batch(task: str, model: Any) -> dict[str, Tensor]:
    """A batch of random examples for the model's own arguments."""
    torch.manual_seed(1)
    taken = inspect.signature(model.forward).parameters
    config = model.config
    main = model.main_input_name if task != "seq2seq" else "input_ids"
    text = config.get_text_config()
    words = min([getattr(text, "vocab_size", None) or 40, getattr(config, "vocab_size", None) or 40])
    given: dict[str, Tensor] = {}
    if main == "input_ids" or (task in ("multimodal", "masked") and "input_ids" in taken):
        lengths = torch.tensor([[LENGTH], [LENGTH - 3], [LENGTH - 2]])
        mask = (torch.arange(LENGTH) < lengths).long()
        given["input_ids"] = torch.randint(5, words - 4, (B, LENGTH)) * mask + (1 - mask)
        if task == "sequence" and getattr(config, "is_encoder_decoder", False):  # its classes are told at the end
            given["input_ids"].scatter_(1, lengths - 1, config.eos_token_id)
        if "attention_mask" in taken:
            given["attention_mask"] = mask
        if config.model_type == "paligemma":  # without it, the model's attention depends on whether anything is padded
            given["token_type_ids"] = mask
        if "bbox" in taken:
            given["bbox"] = torch.randint(0, 10, (B, LENGTH, 4)).sort(-1).values
    if main in ("pixel_values", "pixel_values_videos"):
        given[main] = _pictures(config, task)
    if config.model_type == "vit_mae":
        given["noise"] = torch.rand(B, 16)
    if main == "input_features":
        given[main] = _features(config)
    if main == "input_values":
        given[main] = _sounds(config, task)
        if "attention_mask" in taken and task in ("ctc", "sounds"):
            given["attention_mask"] = torch.ones(B, 800).long()
            given["attention_mask"][1, 600:] = 0
    given |= (more := INPUTS.get(type(model).__name__, lambda _: {})(config))
    given |= more if "labels" in more else {**_labels(task, taken, given, config, words), **more}
    return {name: field for name, field in given.items() if field is not None}


def _pictures(config: Any, task: str) -> Tensor:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 32
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(vision, "num_channels", None) or 3
    if task == "video":
        return torch.randn(B, getattr(config, "num_frames", None) or 2, channels, height, width)
    return torch.randn(B, channels, height, width)


def _features(config: Any) -> Tensor:
    for part in (config, getattr(config, "encoder_config", None), getattr(config, "audio_config", None)):
        for name in ("num_mel_bins", "input_feat_per_channel", "n_mels", "feature_projection_input_dim", "input_dim"):
            if isinstance(getattr(part, name, None), int):
                bins = getattr(part, name)
                if config.model_type == "whisper":
                    return torch.randn(B, bins, 32)
                return torch.randn(B, 64, bins)
    return torch.randn(B, 64, 8)


def _sounds(config: Any, task: str) -> Tensor:
    if config.model_type == "audio-spectrogram-transformer":
        return torch.randn(B, config.max_length, config.num_mel_bins)
    return torch.randn(B, 800)


def _labels(task: str, taken: Any, given: dict[str, Tensor], config: Any, words: int) -> dict[str, Tensor]:
    if task == "seq2seq" or task == "speech":
        if "labels" in taken and "input_ids" in given and not getattr(config, "is_encoder_decoder", False):
            task = "causal"  # a decoder alone, which is given the sound as words
        elif "labels" in taken:
            return {"labels": torch.randint(5, words - 4, (B, 5))}
        elif "decoder_input_ids" in taken:
            return {"decoder_input_ids": torch.randint(5, words - 4, (B, 5))}
    if "labels" not in taken:
        return (
            {"decoder_input_ids": torch.randint(5, words - 4, (B, 5))}
            if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in taken
            else {}
        )
    if task in ("causal", "masked", "multimodal") and "input_ids" in given:
        mask = given.get("attention_mask", torch.ones(B, LENGTH))
        return {"labels": given["input_ids"].masked_fill(mask == 0, -100)}
    if task in ("images", "sounds", "video", "sequence"):
        return {"labels": torch.arange(B) % 2}
    if task == "ctc":
        return {"labels": torch.randint(5, words - 4, (B, 3))}
    return {}


def loss(task: str, model: nn.Module, batch: Batch) -> Tensor:
    """The loss that the model computes itself, else a fixed combination of what it returns."""
    given = dict(batch)
    kind = type(model).__name__
    for name in JOINED.get(kind, ()):
        given[name] = given[name].flatten(0, 1)
    given |= CONSTANTS.get(kind, lambda _: {})(model.config)
    if "use_cache" in inspect.signature(model.forward).parameters:
        given["use_cache"] = False  # pyright: ignore
    output = model(**given)
    own = getattr(output, "loss", None)
    return own.sum() if isinstance(own, Tensor) else combined(output)
