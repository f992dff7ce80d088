"""Loads weights that were learned from public records, and freezes some of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from noisette.models.fixed_features import FixedFeatures


def pretrained(model: nn.Module, path: Path, *, frozen: Sequence[str] = ("features",)) -> nn.Module:
    """The model with weights from a safetensors file, some of its parts frozen.

    Layers that the file does not hold keep their initial weights and are trained. To make a file for
    ``cifar-tutorial``, train ``build("cifar-tutorial", (3, 32, 32), 100)`` on CIFAR-100 without privacy: 100 epochs of
    SGD in batches of 128, momentum 0.9, a learning rate of 0.1 with cosine decay to 0, images shifted and mirrored at
    random. Save its state dict without the layer whose size depends on the number of classes::

        kept = {name: value for name, value in model.state_dict().items() if not name.startswith("head.scores")}
        safetensors.torch.save_file(kept, "cifar100.safetensors")

    Args:
        model: such as one of :func:`build`; its weights are overwritten.
        path: a file of tensors under their names in the model's state dict.
        frozen: names of the parts that are not trained.

    Returns:
        The model, as :class:`FixedFeatures` if it consists of ``features``, all of them frozen, and ``head``.

    Guarantee: none for the records that the file was learned from: they must be public, or their ledger must contain
    the release of the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a safetensors file, or it does not fit the model; all problems are listed, and the
            model is not changed.
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
    if not weights:
        yield "the file holds no tensors"
    for name, value in weights.items():
        if name not in known:
            yield f"{name}: the model has no such tensor"
        elif value.shape != known[name].shape:
            shapes = f"of shape {tuple(value.shape)} in the file and {tuple(known[name].shape)} in the model"
            yield (
                f"{name}: {shapes}, where it is frozen"
                if _lies_in(name, frozen)
                else f"{name}: {shapes}; leave it out of the file to train it from initial weights"
            )
        elif value.is_complex() and not known[name].is_complex():
            yield f"{name}: holds complex numbers"
        elif not value.to(known[name].dtype).isfinite().all():
            yield f"{name}: holds values that are not finite as {known[name].dtype}"
    present = {name.rpartition(".")[0] for name in weights}
    for name in (name for name in known if name not in weights):
        if _lies_in(name, frozen):
            yield f"{name}: frozen, but missing in the file"
        elif name.rpartition(".")[0] in present:
            yield f"{name}: missing, though the file holds other tensors of that layer"
    for part in frozen:
        if not any(name.startswith(f"{part}.") for name in known):
            yield f"{part}: cannot be frozen, since no part of the model with weights has this name"


def _lies_in(name: str, parts: Sequence[str]) -> bool:
    """Whether the tensor of this name belongs to one of these parts of the model."""
    return any(name.startswith(f"{part}.") for part in parts)
