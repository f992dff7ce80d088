"""How a trained model is evaluated."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import torch
from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from noisette.accounting import atomic_files
from noisette.data import DataSet, Split
from noisette.data.dataset import Target
from noisette.nn.batch_norm import in_evaluation
from noisette.nn.models.factory import ImageFeatures, TextFeatures
from noisette.training.recipe import Recipe
from noisette.training.report.facts import ClassFigures, NumberFigures, Point

_AT_ONCE = 100


class Examples(TensorDataset):
    """Inputs of the trained part of the model, and targets: the split itself, or its fixed features, computed once.

    Features are rounded differently on another machine, so a resumed run recognises its records by the split.
    """

    def __init__(self, split: Split, fixed: nn.Module | None, device: torch.device) -> None:
        inputs, targets = torch.as_tensor(split.inputs), torch.as_tensor(split.targets, device=device)
        super().__init__(inputs.to(device) if fixed is None else _features(inputs, fixed, device), targets)
        self.known_by = (split.inputs, split.targets)


def _features(inputs: Tensor, fixed: nn.Module, device: torch.device) -> Tensor:
    """As :func:`features_of`, those of a public network from an earlier run if there was one."""
    if isinstance(fixed, nn.Sequential):
        for part in fixed:
            inputs = _features(inputs, part, device)
        return inputs.to(device)
    if isinstance(fixed, ImageFeatures | TextFeatures):
        return cached_features(fixed, inputs, partial(features_of, inputs, fixed, device)).to(device)
    return features_of(inputs, fixed, device)


@torch.no_grad()
def features_of(inputs: Tensor, fixed: nn.Module, device: torch.device) -> Tensor:
    """The fixed features of inputs (n, ...)."""
    shape = fixed(inputs.new_zeros((1, *inputs.shape[1:]), device=device)).shape[1:]
    features = torch.empty(len(inputs), *shape, device=device)
    pairs = zip(features.split(_AT_ONCE), inputs.split(_AT_ONCE), strict=True)
    shown, parts = Console(stderr=True), -(-len(inputs) // _AT_ONCE)
    for place, part in track(pairs, "features", parts, console=shown, disable=not shown.is_terminal):
        place.copy_(fixed(part.to(device)))
    return features


def cached_features(
    network: nn.Module, inputs: Tensor, compute: Callable[[], Tensor], folder: Path | None = None
) -> Tensor:
    """The features (n, ...) of inputs (n, ...): those of an earlier call, or ``compute()``, which are then kept.

    A network is known by its printed form and its weights, inputs by their values. Features of records are as private
    as the records: the owner alone can read the files (mode 600), in ``noisette/features`` of the user's cache. Their
    names are digests with a secret key that lies beside them, so a name tells nothing about the records.
    """
    folder = folder or Path(pooch.os_cache("noisette")) / "features"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (key := folder / "key").is_file():
        atomic_files.write(key, secrets.token_bytes(32), mode=0o600)
    digest = hashlib.blake2b(str(network).encode(), key=key.read_bytes(), digest_size=16)
    for tensor in (*network.parameters(), *network.buffers(), inputs):
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    file = folder / f"{digest.hexdigest()}.safetensors"
    if not file.is_file():
        atomic_files.write(file, save({"features": compute().cpu()}), mode=0o600)
    return load_file(file)["features"]


@dataclass
class Outcome:
    """A finished run, which is private unless it is said."""

    recipe: Recipe
    data: DataSet
    model: nn.Module
    run: Any  # a PrivateRun, or a PlainRun without privacy
    points: list[Point] = field(default_factory=list)
    seconds: float = 0.0  # for calibration, training and evaluation
    resumed: int = 0  # how many times
    public_weights: str = ""  # the SHA-256 of the file of the first weights, as it was read; "" if they were random
    test: ClassFigures | NumberFigures | None = None  # of the model on its test examples

    @property
    def epsilon(self) -> float:
        """The privacy cost of the whole run at the recipe's delta, infinite without privacy."""
        return self.run.epsilon(delta=self.recipe.privacy.delta)


Watch = Callable[[Any, Point], None]  # of the run, which is a PrivateRun unless it has no privacy


@torch.no_grad()
def outputs(model: nn.Module, inputs: Tensor, *, at_once: int = 2000) -> np.ndarray:
    """The scores of a model in evaluation, (n, classes); ``at_once`` examples are in memory at once."""
    with in_evaluation(model):
        return torch.cat([model(part).float().cpu() for part in inputs.split(at_once)]).numpy()


def class_figures(scores: np.ndarray, targets: np.ndarray) -> ClassFigures:
    """The figures for scores (n, classes) and classes (n,)."""
    from sklearn.metrics import confusion_matrix, roc_auc_score

    classes = scores.shape[1]
    table = confusion_matrix(targets, scores.argmax(1), labels=range(classes))
    sizes, right = table.sum(1), table.diagonal()
    present = np.flatnonzero(sizes)
    shares = sizes[present] / sizes.sum()
    found = torch.as_tensor(scores, dtype=torch.float64).log_softmax(1).numpy()
    auc, log_loss, means = None, None, ()
    if np.isfinite(scores).all():
        log_loss, means = -float(found[np.arange(len(targets)), targets].mean()), tuple(np.exp(found).mean(0).tolist())
        if len(present) > 1:
            chosen = present if classes > 2 else [1]
            auc = float(np.mean([roc_auc_score(targets == k, found[:, k]) for k in chosen]))
    return ClassFigures(
        accuracy=float(right.sum() / sizes.sum()),
        base_rate=float(shares.max()),
        macro_accuracy=float(np.mean(right[present] / sizes[present])),
        auc=auc,
        confusion=tuple(tuple(row) for row in table.tolist()),
        log_loss=log_loss,
        base_log_loss=abs(float(shares @ np.log(shares))),  # no -0.0
        mean_probabilities=means,
    )


def number_figures(predictions: np.ndarray, targets: np.ndarray, target: Target) -> NumberFigures:
    """The figures for predictions (n, 1) and targets (n,), both on the scale of the model from -1 to 1."""
    right = target.unscaled(targets)
    errors = target.unscaled(predictions[:, 0]) - right
    return NumberFigures(
        rmse=float(np.sqrt(np.mean(errors**2))),
        mae=float(np.abs(errors).mean()),
        base_rmse=float(right.std()),
        base_mae=float(np.abs(right - np.median(right)).mean()),
        unit=target.unit,
    )
