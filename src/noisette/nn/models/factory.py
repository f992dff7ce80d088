"""Builds models by name, from a folder of Hugging Face, or with public weights from a file."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from noisette.data.words import from_folder, tokenizer_of
from noisette.nn.batch_norm import in_evaluation
from noisette.nn.models import REGISTRY
from noisette.nn.models.networks import FixedFeatures, Shape, numbers_of

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
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
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
        raise ValueError(
            f"the output of model {name!r} does not fit the labels: {classes} classes, output for 2 examples: {got}"
        )
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
        factory = _users_own(name)
        try:
            return factory(shape, classes, words) if words else factory(shape, classes)
        except Exception as error:
            called = "(shape of an example, classes, words)" if words else "(shape of an example, classes)"
            inside = traceback.extract_tb(error.__traceback__)[1:2]  # the user's line, if it got that far
            where = "".join(f"{Path(line.filename).name}, line {line.lineno}: " for line in inside)
            said = f"{where}{type(error).__name__}: {error}"
            raise ValueError(f"the model {name!r} is called with {called}, but: {said}") from error
    model = REGISTRY[name]
    if model.of_words != bool(words):
        able = ", ".join(known for known, other in REGISTRY.items() if other.of_words)
        raise ValueError(
            f"the model {name!r} takes no texts whose words are numbers; there are {able}, or a folder of Hugging Face"
            if words
            else f"the model {name!r} takes texts whose words are numbers; there are none in these data"
        )
    made = model.factory
    factory: Callable[..., nn.Module] = _imported(f"noisette.nn.models.{made}") if isinstance(made, str) else made
    return factory(shape, classes, words=words) if words else factory(shape, classes)


def _users_own(name: str) -> Callable[..., nn.Module]:
    if not name.partition(":")[2]:
        raise ValueError(
            f"no model {name!r}; there are {', '.join(REGISTRY)}, or give your own as package.module:callable "
            "or a folder of Hugging Face"
        )
    try:
        return _imported(name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no model {name!r}: {error}") from error


def _imported(name: str) -> Any:
    """What ``module:attribute`` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
