"""The examples that the trained part of a model sees: records, or their fixed features, computed once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from noisette.data import Split

_AT_ONCE = 100


class Examples(TensorDataset):
    """Inputs of the trained part of the model, and targets: the split itself, or its fixed features, computed once.

    With ``views`` they are the features of these views of each image, (n, views, ...).

    On another machine the features are rounded differently, so a resumed run recognises its records by the split.
    """

    def __init__(
        self,
        split: Split,
        fixed: nn.Module | None,
        device: torch.device,
        views: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        inputs, targets = torch.as_tensor(split.inputs), torch.as_tensor(split.targets, device=device)
        super().__init__(inputs.to(device) if fixed is None else features_of(inputs, fixed, device, views), targets)
        self.known_by = (split.inputs, split.targets)


@torch.no_grad()
def features_of(
    inputs: Tensor, fixed: nn.Module, device: torch.device, views: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """The fixed features of inputs (n, ...), or of their views, with which they have one axis more."""

    def of(part: Tensor) -> Tensor:
        if views is None:
            return fixed(part.to(device))
        made = views(part.to(device))
        return fixed(made.flatten(0, 1)).unflatten(0, made.shape[:2])

    shape = of(inputs.new_zeros((1, *inputs.shape[1:]))).shape[1:]
    features = torch.empty(len(inputs), *shape, device=device)
    pairs = zip(features.split(_AT_ONCE), inputs.split(_AT_ONCE), strict=True)
    for place, part in pairs:
        place.copy_(of(part))
    return features
