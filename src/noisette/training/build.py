"""What a recipe trains, and on what: model, bound, optimizer and examples, before any step."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from noisette import models
from noisette.accounting import Ledger
from noisette.clipping import FlatClipping, PerLayerClipping
from noisette.clipping.engines.book_keeping import BookKeeping
from noisette.clipping.engines.per_example_loop import PerExampleLoop
from noisette.clipping.norms import Group
from noisette.clipping.per_example import PerExampleClip
from noisette.data import DataSet, Split
from noisette.lipschitz import is_constrained
from noisette.lipschitz.bound import LipschitzBound
from noisette.lipschitz.noise_allocation import Allocation, GlobalAllocation, OptimalAllocation, PerLayerAllocation
from noisette.mechanisms.bounded_sum import GradientBound
from noisette.nn import (
    ExactPerExampleBatchNorm,
    FrozenBatchNorm,
    MixtureBatchNorm,
    PerExampleBatchNorm,
    PublicBatchNorm,
    convert_batch_norm,
)
from noisette.nn.conversion import refuse_overlap
from noisette.nn.lipschitz import TauCrossEntropy
from noisette.training.recipe import Recipe

_FEATURES_AT_ONCE = 100
_EVALUATED_AT_ONCE = 2000


class TrainingSetup:
    """What a recipe trains, and on what.

    Args:
        recipe: the settings.
        data: the records.
        public: the data set of the public examples, if the recipe has any.
        components: gives the private principal components, (components, numbers), if the recipe asks for them.

    Raises:
        ValueError: model, weights or public examples do not fit the records or each other.
        PrivacyError: a public example is one of the records.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: DataSet,
        public: DataSet | None = None,
        components: Callable[[], Tensor] | None = None,
    ) -> None:
        settings, device = recipe.training, torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(settings.seed)
        model = _model(recipe, data)
        self.components = components() if components and recipe.projection.components else None
        if self.components is not None:
            model.get_submodule("features").load_state_dict({"1.weight": self.components})
        model.to(device)
        chosen = _public_examples(recipe, data, public)
        self.public_digest = "" if chosen is None else hashlib.sha256(chosen.numpy().tobytes()).hexdigest()
        if recipe.model.standardised:
            assert chosen is not None, "a recipe that standardises names its public examples"
            model = _standardised(model, chosen, data, device)
        fixed, trained = (model.features, model.head) if isinstance(model, models.FixedFeatures) else (None, model)
        self.examples = _Examples(data.train, fixed, device)
        self.test = _Examples(data.test, fixed, device).tensors if data.test else None
        if recipe.model.batch_norm is not None:
            given = chosen if chosen is None or fixed is None else _features(chosen, fixed, device)
            replace_batch_norm(trained, recipe.model.batch_norm, given, self.examples.tensors[0])
        self.at_once = _evaluated_at_once(recipe)
        shape = self.examples.tensors[0].shape[1:]
        self.loss, self.bound, self.noise_multiplier = _bound(trained, recipe, shape, data.classes)
        self.optimizer = torch.optim.SGD(trained.parameters(), lr=settings.lr, momentum=settings.momentum)
        average = _warm_average(settings.averaging)
        self.averaged = AveragedModel(trained, avg_fn=average) if settings.averaging else None
        self.learned: nn.Module = self.averaged.module if self.averaged else trained
        self.published: nn.Module = models.FixedFeatures(fixed, self.learned) if fixed else self.learned


class _Examples(TensorDataset):
    """Inputs of what is trained, and targets: the split itself, or its fixed features, computed once.

    Features are rounded anew on another machine, so it is the split by which a run that is resumed knows its records.
    """

    def __init__(self, split: Split, fixed: nn.Module | None, device: torch.device) -> None:
        inputs, targets = torch.as_tensor(split.inputs), torch.as_tensor(split.targets, device=device)
        super().__init__(inputs.to(device) if fixed is None else _features(inputs, fixed, device), targets)
        self.known_by = (split.inputs, split.targets)


def _model(recipe: Recipe, data: DataSet) -> nn.Module:
    """A model, fresh or with public weights, behind word vectors, or behind a projection that is yet to be set."""
    shape, components = data.train.inputs.shape[1:], recipe.projection.components
    if components and data.vectors is not None:
        raise ValueError(f"{data.name} is text, of which there are no principal components; leave the projection out")
    if components:
        return models.projected(recipe.model.name, shape, data.classes, components)
    words = None if data.vectors is None else nn.Embedding.from_pretrained(torch.as_tensor(data.vectors), freeze=True)
    if words:
        shape = (*shape, words.embedding_dim)
    model = models.build(recipe.model.name, shape, data.classes)
    if recipe.model.weights is not None:
        model = models.pretrained(model, Path(recipe.model.weights), frozen=recipe.model.frozen)
    return models.FixedFeatures(words, model) if words else model


def principal_components_of(recipe: Recipe, data: DataSet, ledger: Ledger) -> Tensor:
    """The private principal components that the recipe asks for, (components, numbers); the ledger is charged."""
    from noisette.mechanisms.pca import private_pca  # scikit-learn takes a second: paid by those who project

    rows = data.train.inputs.reshape(len(data.train.inputs), -1)
    found = private_pca(rows, recipe.projection.components, recipe.projection.noise_multiplier, ledger=ledger)
    return torch.as_tensor(found.components_)


def _public_examples(recipe: Recipe, data: DataSet, public: DataSet | None) -> Tensor | None:
    """The public examples of a recipe, which fit the records; ``None`` if it has none."""
    section = recipe.public
    if section.data is None:
        return None
    if public is None:
        raise ValueError(f"the recipe takes public examples of {section.data}; give that data set as public")
    if public.train.inputs.shape[1:] != data.train.inputs.shape[1:]:
        raise ValueError(
            f"public examples of {section.data} have shape {public.train.inputs.shape[1:]}, those of {data.name} "
            f"{data.train.inputs.shape[1:]}; name a public set of the same shape"
        )
    return public_examples(public, examples=section.examples, seed=section.seed)


def public_examples(public: DataSet, *, examples: int, seed: int) -> Tensor:
    """So many inputs of a public data set, (examples, ...), always the same ones for a seed.

    Raises:
        ValueError: there are not so many.
    """
    inputs = public.train.inputs
    if len(inputs) < examples:
        raise ValueError(f"{public.name} has {len(inputs)} examples, fewer than the {examples} public ones asked for")
    return torch.as_tensor(inputs[np.random.default_rng(seed).permutation(len(inputs))[:examples]])


def _standardised(model: nn.Module, public: Tensor, data: DataSet, device: torch.device) -> models.FixedFeatures:
    """The model with its fixed features standardised by those of public examples."""
    if not isinstance(model, models.FixedFeatures):
        raise ValueError("the model has no fixed features to standardise; leave standardised out")
    refuse_overlap([public], [torch.as_tensor(data.train.inputs)])
    return models.standardised(model, _features(public, model.features, device))


_NORMS: Mapping[str, type[Any]] = {
    "public": PublicBatchNorm,
    "per-example": PerExampleBatchNorm,
    "per-example-exact": ExactPerExampleBatchNorm,
    "frozen": FrozenBatchNorm,
    "mixture": MixtureBatchNorm,
    "group": nn.GroupNorm,
    "layer": nn.LayerNorm,
}
_INSTANCE_NORMS: Mapping[type[nn.Module], type[Any]] = {
    nn.BatchNorm1d: nn.InstanceNorm1d,
    nn.BatchNorm2d: nn.InstanceNorm2d,
    nn.BatchNorm3d: nn.InstanceNorm3d,
}


def replace_batch_norm(
    model: nn.Module, name: str, public: Tensor | Sequence[Tensor] | None = None, private: Tensor | None = None
) -> None:
    """Put the norm that a recipe calls by this name in the place of every batch norm of a model.

    Raises:
        ValueError: the model has no batch norm, or one that the norm cannot stand for.
        PrivacyError: a public example is one of the private ones.
    """
    kinds = {type(part) for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)}
    if not kinds:
        raise ValueError(f'the model has no batch norm that batch_norm = "{name}" could replace; leave it out')
    if name == "instance" and not (len(kinds) == 1 and kinds <= _INSTANCE_NORMS.keys()):
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f'batch_norm = "instance" replaces batch norms of one kind, but the model has {found}')
    to = _INSTANCE_NORMS[kinds.pop()] if name == "instance" else _NORMS[name]
    convert_batch_norm(model, to=to, public=public, private=private if public is not None else None)


def _evaluated_at_once(recipe: Recipe) -> int:
    """How many test examples fit in memory, where each may come with all public ones."""
    beside = recipe.public.examples if recipe.model.batch_norm in ("per-example-exact", "mixture") else 0
    return max(1, _EVALUATED_AT_ONCE // (1 + beside))


Loss = Callable[[Tensor, Tensor], Tensor]  # of scores and targets, one value for each example
_ALLOCATIONS: Mapping[str, type[Allocation]] = {
    "global": GlobalAllocation,
    "per-layer": PerLayerAllocation,
    "optimal": OptimalAllocation,
}


def _bound(
    model: nn.Module, recipe: Recipe, shape: Sequence[int], classes: int
) -> tuple[Loss, GradientBound, float | None]:
    """The loss, what bounds one example, and the noise multiplier of all layers together if the recipe gives one."""
    if recipe.lipschitz.tau is None:
        _refuse_constrained(model, recipe)
        return partial(nn.functional.cross_entropy, reduction="none"), *_clip(model, recipe)
    lipschitz, loss = recipe.lipschitz, TauCrossEntropy(recipe.lipschitz.tau, classes)
    bound = LipschitzBound(
        model,
        loss=loss,
        input_shape=shape,
        allocation=_ALLOCATIONS[lipschitz.allocation](),
        logit_clipping=FlatClipping(lipschitz.logit_clip) if lipschitz.logit_clip else None,
    )
    return loss, bound, recipe.privacy.noise_multiplier


def _refuse_constrained(model: nn.Module, recipe: Recipe) -> None:
    """Weights that belong to a set are not clipped out of it: they would be others when they are loaded."""
    if any(is_constrained(part) for part in model.modules()):
        raise ValueError(
            f"{recipe.model.name} keeps its weights in a set, and bounds one example by its layers: give the recipe a "
            "table lipschitz, such as [lipschitz] tau = 30"
        )


def _clip(model: nn.Module, recipe: Recipe) -> tuple[PerExampleClip, float | None]:
    """Clipping, of all layers together or of each.

    Noise of sigma C on each of K layers that are clipped to C is one Gaussian mechanism: bound C sqrt(K), noise
    multiplier sigma / sqrt(K).
    """
    privacy, engine = recipe.privacy, PerExampleLoop() if recipe.model.couples else BookKeeping()
    if not privacy.per_layer:
        return PerExampleClip(model, max_grad_norm=privacy.max_grad_norm, engine=engine), privacy.noise_multiplier
    layers = len(layers_of(model))
    clip = PerExampleClip(model, clipping=PerLayerClipping(privacy.max_grad_norm * math.sqrt(layers)), engine=engine)
    noise = privacy.noise_multiplier
    return clip, noise if noise is None else noise / math.sqrt(layers)


def layers_of(model: nn.Module) -> list[Group]:
    """The trainable parameters of each module, as they are clipped where layers are clipped on their own."""
    return PerLayerClipping(1.0).groups([name for name, p in model.named_parameters() if p.requires_grad])


def _warm_average(decay: float) -> Callable[[Tensor, Tensor, Tensor | int], Tensor]:
    """Exponential average of the weights, shorter at first so that the initial weights are soon forgotten."""

    def average(kept: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
        return torch.lerp(kept, current, 1 - min(decay, (1 + int(count)) / (10 + int(count))))

    return average


@torch.no_grad()
def _features(inputs: Tensor, fixed: nn.Module, device: torch.device) -> Tensor:
    shape = fixed(inputs.new_zeros((1, *inputs.shape[1:]), device=device)).shape[1:]
    features = torch.empty(len(inputs), *shape, device=device)
    pairs = zip(features.split(_FEATURES_AT_ONCE), inputs.split(_FEATURES_AT_ONCE), strict=True)
    for place, part in pairs:
        place.copy_(fixed(part.to(device)))
    return features
