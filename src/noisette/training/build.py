"""The model, the gradient bound, the optimizer and the examples of a recipe."""

import hashlib
import math
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pooch
import torch
from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from noisette.accounting import Ledger, atomic_files
from noisette.clipping.registry import CLIPPING_RULES, ENGINES
from noisette.clipping.rules import FlatClipping
from noisette.core.release import GradientBound
from noisette.data import DataSet, Split
from noisette.lipschitz import Constrained
from noisette.lipschitz.bound import LipschitzBound
from noisette.lipschitz.projections import project
from noisette.lipschitz.propagation import output_shape
from noisette.nn import MirrorAndShift, Whitening, mean_over_views, models
from noisette.nn.batch_norm import convert_batch_norm, in_evaluation, refuse_overlap
from noisette.nn.features import Loss
from noisette.nn.lipschitz import TauCrossEntropy
from noisette.nn.models import factory
from noisette.nn.models.backbones import folder_of
from noisette.ranks import AnyRanks
from noisette.run.checkpoint import digest_of_value
from noisette.run.per_example import PerExampleClip
from noisette.run.sampling import Sampling, Users
from noisette.training.recipe import BATCH_NORMS, BATCHES, COMPILE, OPTIMIZERS, ModelSection, Recipe, TrainingSection

_AT_ONCE = 100  # examples whose fixed features are computed
LossOfScores = Callable[[Tensor, Tensor], Tensor]  # of scores and targets, one value for each example


class TrainingSetup:
    """The model, bound, optimizer and examples of a recipe.

    ``components`` gives its private principal components, (components, numbers), if it has any, and ``whitening`` those
    that a resumed run began with: anew on another machine, ones of nearly the same variance could be others.

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
        whitening: Whitening | None = None,
    ) -> None:
        settings, device = recipe.training, torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(settings.seed)
        model = model_of(recipe, data)
        self.components = components() if components and recipe.projection.components else None
        if self.components is not None:
            model.get_submodule("features").load_state_dict({"1.weight": self.components})
        model.to(device)
        chosen = public_examples_of(recipe, data, public)
        self.public_weights = sha256_of_first_weights(recipe.model)
        given = self.public_weights.encode() + (b"" if chosen is None else chosen.numpy().tobytes())
        self.public_digest = hashlib.sha256(given).hexdigest() if given else ""  # of all that is public
        self.whitening, whitened = whitening, recipe.model.whitened
        if recipe.model.standardised or whitened:
            if not isinstance(model, models.FixedFeatures):
                raise ValueError("the model has no fixed features; leave standardised and whitened out")
            assert chosen is not None, "a recipe with these settings names its public examples"
            refuse_overlap([chosen], [torch.as_tensor(data.train.inputs)])
            if whitened:
                self.whitening = whitening or Whitening.of_public(features_of(chosen, model.features, device), whitened)
                model = models.whitened(model, self.whitening.to(device))
            else:
                model = models.standardised(model, features_of(chosen, model.features, device))
        fixed, trained = (model.features, model.head) if isinstance(model, models.FixedFeatures) else (None, model)
        section, shape = recipe.augmentation, data.train.inputs.shape[1:]
        if section.moves and len(shape) != 3:
            raise ValueError(f"augmentation is for images of three axes, not examples of shape {shape}; leave it out")
        if section.moves and fixed is not None:
            raise ValueError("fixed features are computed once, from the image itself; leave out augmentation")
        self.examples = Examples(data.train, fixed, device)
        self.inputs = self.examples.tensors[0]
        self.users = None
        if recipe.data.users is not None:
            assert recipe.data.records_per_user is not None, "the recipe is checked"
            if data.train.users is None:
                raise ValueError(f"the records of {data.name} have no users, for which the recipe asks for a guarantee")
            self.users = Users(data.train.users, recipe.data.records_per_user, recipe.data.trained_users)
        numbers = [number for number in (settings.largest_batch, settings.bands) if number is not None]  # one at most
        self.sampling: Sampling = BATCHES[settings.batches].resolve()(*numbers)
        self.test = Examples(data.test, fixed, device).tensors if data.test else None
        if recipe.model.batch_norm is not None:
            given = chosen if chosen is None or fixed is None else features_of(chosen, fixed, device)
            replace_batch_norm(trained, recipe.model.batch_norm, given, self.inputs)
        self.loss, self.bound, self.noise_multiplier = _bound(trained, recipe, self.inputs.shape[1:], data)
        loss = self.loss  # a function that holds self would keep the records in memory until a collection
        self.losses: Loss = lambda model, inputs, targets: loss(model(inputs), targets)
        if section.moves:
            moved = MirrorAndShift(flip=section.flip, shift=section.shift)
            self.losses = mean_over_views(self.losses, moved, section.views)
        momentum = {"momentum": settings.momentum} if settings.optimizer == "sgd" else {}
        make = OPTIMIZERS[settings.optimizer].resolve()
        self.optimizer: torch.optim.Optimizer = make(trained.parameters(), lr=settings.lr or 1.0, **momentum)
        self.averaged = WeightAverage(trained, settings) if settings.averaging or settings.average_last else None
        learned = self.averaged.module if self.averaged else trained
        self.published = models.FixedFeatures(fixed, learned) if fixed else learned
        self.tested = learned  # maps the stored test examples to scores


def sha256_of_first_weights(model: ModelSection) -> str:
    """The SHA-256 of the public weights that a run begins with, "" if there are none."""
    if model.backbone is not None:
        return factory.sha256_of_weights(folder_of(model.backbone))
    if factory.is_folder_of_model(model.name):
        return factory.sha256_of_weights(Path(model.name))
    return "" if model.weights is None else hashlib.sha256(Path(model.weights).read_bytes()).hexdigest()


def model_of(recipe: Recipe, data: DataSet) -> nn.Module:
    """A new model by the recipe, with public weights; the weight of a projection is set later."""
    shape, components = data.train.inputs.shape[1:], recipe.projection.components
    if components and data.words:
        raise ValueError(f"{data.name} is text, which has no principal components; leave the projection out")
    if components:
        return models.projected(recipe.model.name, shape, data.classes, components)
    if recipe.model.backbone:
        backbone, mirrored = recipe.model.backbone, recipe.model.mirrored
        features = factory.fixed_features(backbone, shape, words=bool(data.words), mirrored=mirrored)
        size, name = output_shape(features, shape), recipe.model.name  # one layer, so that features can be whitened
        head = nn.Linear(size[0], data.classes) if name == "linear" else models.build(name, size, data.classes)
        return models.FixedFeatures(features, head)
    model = models.build(recipe.model.name, shape, data.classes, data.words)
    if recipe.model.weights is not None:
        model = models.pretrained(model, Path(recipe.model.weights), frozen=recipe.model.frozen)
    return model


def principal_components_of(recipe: Recipe, data: DataSet, ledger: Ledger, ranks: AnyRanks, declaration: str) -> Tensor:
    """The private principal components that the recipe asks for, (components, numbers); the ledger is charged."""
    from noisette.run.pca import PrivatePCA

    rows = data.train.inputs.reshape(len(data.train.inputs), -1)
    found, noise = recipe.projection.components, recipe.projection.noise_multiplier
    pca = PrivatePCA(found, noise_multiplier=noise, ledger=ledger, ranks=ranks, declaration=declaration)
    return torch.as_tensor(pca.fit(rows).components_)


def public_examples_of(recipe: Recipe, data: DataSet, public: DataSet | None) -> Tensor | None:
    """The public examples of a recipe, which fit the records; ``None`` if it has none."""
    section = recipe.public
    if section.data is None:
        return None
    if public is None:
        raise ValueError(f"the recipe takes public examples of {section.data}; give that data set as public")
    given, needed = (str(part.train.inputs.shape[1:]) for part in (public, data))
    if given != needed:
        of = f"public examples of {section.data} have shape {given}, those of {data.name} {needed}"
        raise ValueError(f"{of}; name a public set of the same shape")
    return public_examples(public, examples=section.examples, seed=section.seed)


def public_examples(public: DataSet, *, examples: int, seed: int) -> Tensor:
    """Inputs of a public data set, (examples, ...), the same ones for a seed; a ``ValueError`` if it has fewer."""
    inputs = public.train.inputs
    if len(inputs) < examples:
        raise ValueError(f"{public.name} has {len(inputs)} examples, fewer than the {examples} public ones asked for")
    return torch.as_tensor(inputs[np.random.default_rng(seed).permutation(len(inputs))[:examples]])


def replace_batch_norm(
    model: nn.Module, name: str, public: Tensor | Sequence[Tensor] | None = None, private: Tensor | None = None
) -> None:
    """Replace every batch norm of a model by the norm that a recipe calls by this name, or a ``ValueError``."""
    if not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        raise ValueError(f'the model has no batch norm that batch_norm = "{name}" could replace; leave it out')
    private = private if public is not None else None
    convert_batch_norm(model, to=BATCH_NORMS[name].resolve(), public=public, private=private)


def _bound(
    model: nn.Module, recipe: Recipe, shape: Sequence[int], data: DataSet
) -> tuple[LossOfScores, GradientBound, float | None]:
    """The loss, the bound, and the noise multiplier of a whole step if it is given, for inputs of this shape."""
    if recipe.lipschitz.tau is None:
        # Only a run with a Lipschitz bound projects constrained weights; loading them projects them in any case.
        if any(isinstance(part, Constrained) for part in model.modules()):
            raise ValueError(
                f"{recipe.model.name} constrains its weights so that its layers bound the gradient: give the recipe a "
                "table lipschitz, such as [lipschitz] tau = 30"
            )
        return _loss(recipe, data, next(model.parameters()).device), *_clip(model, recipe)
    loss = TauCrossEntropy(recipe.lipschitz.tau, data.classes)
    clipping = FlatClipping(recipe.lipschitz.logit_clip) if recipe.lipschitz.logit_clip else None
    bound = LipschitzBound(model, loss=loss, input_shape=shape, logit_clipping=clipping)
    return loss, bound, recipe.privacy.noise_multiplier


def _loss(recipe: Recipe, data: DataSet, device: torch.device) -> LossOfScores:
    """The squared error of a number, or the cross-entropy times the weight of the class over the largest one."""
    if data.target is not None:
        return lambda predictions, targets: (predictions.squeeze(1) - targets).square()  # (n, 1) and (n,)
    relative = None
    if (weights := recipe.class_weights(data.classes)) is not None:  # above one they would only enlarge what is clipped
        relative = (torch.tensor(weights) / max(weights)).to(device)
    return partial(nn.functional.cross_entropy, weight=relative, reduction="none")


def _clip(model: nn.Module, recipe: Recipe) -> tuple[PerExampleClip, float | None]:
    """The clipping of the recipe, and the noise multiplier of a whole step if the recipe gives one."""
    # Those of the recipe, C and sigma, are of each group that is clipped alone. Noise of sigma C on each of K groups
    # is one Gaussian mechanism of clipping norm C sqrt(K) and noise multiplier sigma / sqrt(K).
    privacy, make = recipe.privacy, CLIPPING_RULES[recipe.privacy.clipping].resolve()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    spread = math.sqrt(len(make(privacy.max_grad_norm).groups(names)))
    clipping, engine = make(privacy.max_grad_norm * spread), ENGINES[privacy.engine].resolve()()
    clip = PerExampleClip(model, clipping=clipping, engine=engine, capture=COMPILE[recipe.training.compile])
    return clip, None if privacy.noise_multiplier is None else privacy.noise_multiplier / spread


class WeightAverage(AveragedModel):
    """The average of a model's weights that a recipe asks for; ``module`` is the model with it.

    With ``averaging`` d it is exponential: after step t the average moves by 1 - min(d, t / (9 + t)) towards the
    weights, so the first ones, which are far from good, soon leave it. With ``average_last`` s it is the mean of the
    weights of the last share s of the steps, and before these the weights themselves.

    Source: Polyak & Juditsky 1992; for private training De et al. 2022, section 3.2.
    """

    def __init__(self, model: nn.Module, settings: TrainingSection) -> None:
        self._decay, self._last = settings.averaging, settings.average_last
        super().__init__(model, avg_fn=self._moved)

    def update(self, model: nn.Module, *, spent: int, steps: int) -> None:
        """Take in the weights after step ``spent`` of ``steps``."""
        if self._last and spent <= (1 - self._last) * steps + 1:
            self.n_averaged.zero_()  # this update copies the weights
        self.update_parameters(model)
        project(self.module)  # an average of orthogonal weights is not orthogonal

    def _moved(self, kept: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
        weights = int(count)
        share = 1 / (1 + weights) if self._last else 1 - min(self._decay, (1 + weights) / (10 + weights))
        return torch.lerp(kept, current, share)


class Examples(TensorDataset):
    """Inputs of the trained part of the model, and targets: the split itself, or its fixed features, computed once.

    Features are rounded differently on another machine, so a resumed run recognises its records by the split.
    """

    def __init__(self, split: Split, fixed: nn.Module | None, device: torch.device) -> None:
        inputs, targets = torch.as_tensor(split.inputs), torch.as_tensor(split.targets, device=device)
        super().__init__(inputs.to(device) if fixed is None else features_of(inputs, fixed, device), targets)
        self.known_by = (split.inputs, split.targets)


def features_of(inputs: Tensor, fixed: nn.Module, device: torch.device) -> Tensor:
    """The fixed features of inputs (n, ...); those of a public network from an earlier run if there was one."""
    if isinstance(fixed, nn.Sequential):
        for part in fixed:
            inputs = features_of(inputs, part, device)
        return inputs.to(device)
    if isinstance(fixed, factory.ImageFeatures | factory.TextFeatures):
        return cached_features(fixed, inputs, partial(_computed, inputs, fixed, device)).to(device)
    return _computed(inputs, fixed, device)


@torch.no_grad()
def _computed(inputs: Tensor, fixed: nn.Module, device: torch.device) -> Tensor:
    shape = fixed(inputs.new_zeros((1, *inputs.shape[1:]), device=device)).shape[1:]
    features = torch.empty(len(inputs), *shape, device=device)
    pairs = zip(features.split(_AT_ONCE), inputs.split(_AT_ONCE), strict=True)
    shown, parts = Console(stderr=True), -(-len(inputs) // _AT_ONCE)
    for place, part in track(pairs, "features", parts, console=shown, disable=not shown.is_terminal):
        place.copy_(fixed(part.to(device)))
    return features


def cached_features(network: nn.Module, inputs: Tensor, compute: Callable[[], Tensor]) -> Tensor:
    """The features (n, ...) of inputs (n, ...): those of an earlier call, or ``compute()``, which are then kept.

    A network is known by its printed form and its weights, inputs by their values. Features of records are as private
    as the records: the owner alone can read the files (mode 600), in ``noisette/features`` of the user's cache. Their
    names are digests with a secret key that lies beside them, so a name tells nothing about the records.
    """
    folder = Path(pooch.os_cache("noisette")) / "features"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (key := folder / "key").is_file():
        atomic_files.write(key, secrets.token_bytes(32), mode=0o600)
    known = [str(network), *network.parameters(), *network.buffers(), inputs]
    file = folder / f"{digest_of_value(key.read_bytes(), known).hex()}.safetensors"
    if not file.is_file():
        atomic_files.write(file, save({"features": compute().cpu()}), mode=0o600)
    return load_file(file)["features"]


@torch.no_grad()
def outputs(model: nn.Module, inputs: Tensor, *, at_once: int = 2000) -> np.ndarray:
    """The scores of a model in evaluation, (n, classes); ``at_once`` examples are in memory at once."""
    with in_evaluation(model):
        return torch.cat([model(part).float().cpu() for part in inputs.split(at_once)]).numpy()
