"""Training and testing under noise on the weights, which shows how norms respond to noise; it is not private."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from noisette.nn import models
from papers import networks as networks  # which settings name
from papers.davody_2020.distortion import Distortion, distortion_for
from papers.davody_2020.setting import NoisyWeights as Setting

if TYPE_CHECKING:
    from noisette.data import DataSet, Split
    from papers.paper import Tell

F = nn.functional

_BARELY_BETTER = 1.5  # times the accuracy of chance: below that a network has learned nothing
_AT_ONCE = 1000  # test images that share batch statistics
_DRAWS = 5  # of the noise, on each test image
_SPLIT_SEED = 20  # which training images are held out
_NOISED = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase)


class NoisyWeights(nn.Module):
    """Adds fresh Gaussian noise to the weights and biases of a model's layers in each forward pass.

    The parameters are the means mu; a pass uses mu + sigma * eps, eps ~ N(0, I), in training and in evaluation mode.
    All examples of a batch share one draw. Norms and embeddings have no noise.

    Source: Davody et al. 2020, section 2.
    """

    def __init__(self, model: nn.Module, sigma: float) -> None:
        super().__init__()
        self.model, self.sigma = model, sigma
        layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, _NOISED)]
        self._noised = [f"{name}.{own}" for name, layer in layers for own, _ in layer.named_parameters(recurse=False)]

    def forward(self, x: Tensor) -> Tensor:
        if not self.sigma:
            return self.model(x)
        means = {name: self.model.get_parameter(name) for name in self._noised}
        noisy = {name: mean + torch.empty_like(mean).normal_(0.0, self.sigma) for name, mean in means.items()}
        return functional_call(self.model, noisy, x)


def train(setting: Setting, seed: int, data: DataSet, tell: Tell) -> dict[str, Any]:
    """Train under noise: accuracy on held-out records after each epoch, and at the end on the test examples.

    The seed determines weights, batches and noise. Every sixth training record is held out.
    """
    torch.manual_seed(seed)
    start = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = NoisyWeights(with_fresh_statistics(built(setting.model, data)).to(device), setting.sigma)
    training, held_out = (part.to(device) for part in Examples.of(data.train).divided())
    validation: list[float] = []
    for accuracy in _epochs(model, setting, training, held_out, distortion_for(setting.data)):
        validation.append(accuracy)
        tell(len(validation) / setting.epochs, accuracy)
        if len(validation) == setting.patience and accuracy < _BARELY_BETTER / data.classes:
            break
    test = Examples.of(data.test).to(device) if data.test else held_out
    return {
        "test_accuracy": accuracy_under_noise(model, test, draws=_DRAWS),
        "points": list(enumerate(validation, 1)),
        "seconds": round(time.perf_counter() - start, 1),
    }


def built(name: str, data: DataSet) -> nn.Module:
    """The network for this data set."""
    return models.build(name, data.train.inputs.shape[1:], data.classes)


def with_fresh_statistics(model: nn.Module) -> nn.Module:
    """The model with every batch norm on the statistics of its batch, in evaluation too.

    Running averages were taken under the noise of other steps and fit no other draw.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return model


@dataclass(frozen=True)
class Examples:
    """Inputs and their classes."""

    inputs: Tensor
    targets: Tensor

    @classmethod
    def of(cls, split: Split) -> Self:
        return cls(torch.as_tensor(split.inputs), torch.as_tensor(split.targets))

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device) -> Examples:
        return Examples(self.inputs.to(device), self.targets.to(device))

    def divided(self) -> tuple[Examples, Examples]:
        """Five sixths to train on, and one sixth held out: the same at every call."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(_SPLIT_SEED))
        kept, held_out = order[len(order) // 6 :], order[: len(order) // 6]
        return Examples(self.inputs[kept], self.targets[kept]), Examples(self.inputs[held_out], self.targets[held_out])

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Whole batches in a new order; the remaining examples are left out."""
        order = torch.randperm(len(self)).to(self.targets.device)
        for chosen in order[: len(self) // size * size].split(size):
            yield self.inputs[chosen], self.targets[chosen]


def _epochs(
    model: nn.Module, setting: Setting, training: Examples, held_out: Examples, distort: Distortion
) -> Iterator[float]:
    """Validation accuracy after each epoch."""
    optimizer, peaks = _optimizer(model, setting)
    steps, taken = setting.epochs * (len(training) // setting.batch_size), 0
    for _ in range(setting.epochs):
        model.train()
        for inputs, targets in training.batches(setting.batch_size):
            share = (1 + math.cos(math.pi * taken / steps)) / 2 if setting.cosine else 1.0
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = share * peak
            F.cross_entropy(model(distort(inputs)), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
        yield accuracy_under_noise(model, held_out, draws=1)


def _optimizer(model: nn.Module, setting: Setting) -> tuple[torch.optim.Adam, list[float]]:
    """Adam with a rate for the weights and one for the norms, and these rates."""
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)
    of_norms = [p for module in model.modules() if isinstance(module, norms) for p in module.parameters()]
    known = {id(p) for p in of_norms}
    weights = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    rates = [(weights, setting.lr), (of_norms, setting.lr_norms)] if of_norms else [(weights, setting.lr)]
    groups = [{"params": parameters, "lr": lr} for parameters, lr in rates]
    return torch.optim.Adam(groups, fused=True), [lr for _, lr in rates]


@torch.no_grad()
def accuracy_under_noise(model: nn.Module, examples: Examples, *, draws: int) -> float:
    """Share of examples whose highest score is their class; noise is drawn for each 1000 of them, ``draws`` times.

    These thousands are the same random ones at every call: a data set may have its classes one after the other, and
    then batch statistics would be those of a single class.
    """
    model.eval()
    right = 0
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(_SPLIT_SEED)).to(
        examples.targets.device
    )
    for _ in range(draws):
        for chosen in order.split(_AT_ONCE):
            right += int((model(examples.inputs[chosen]).argmax(1) == examples.targets[chosen]).sum())
    return right / (draws * len(examples))
