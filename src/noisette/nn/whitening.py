"""Whitening: features made uncorrelated by constants that come from public examples."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn


class Whitening(nn.Module):
    """The principal components of features, each brought to the same size, and every example to the same length.

    Maps x (b, ...) to (b, components): ``components @ (flat x - mean)``, divided by the root of the mean of its
    squares. A linear layer on features that differ much in size, or that say nearly the same, learns in many steps what
    it learns on these in few, and noise costs by the step. There are also fewer numbers to add noise to.

    Args:
        mean: of the flat features, (numbers,).
        components: one in each row, already divided by their standard deviation, (components, numbers).

    Guarantee: none for records that the constants were computed from; compute them from public examples with
    :meth:`of_public`. Each example is treated alone.

    Raises:
        ValueError: the shapes do not fit each other.

    >>> Whitening(torch.zeros(2), torch.eye(2))(torch.tensor([[3.0, 3.0]]))
    tensor([[1., 1.]])
    """

    def __init__(self, mean: Tensor, components: Tensor) -> None:
        super().__init__()
        if mean.dim() != 1 or components.dim() != 2 or components.shape[1] != len(mean):
            raise ValueError(
                "expected a mean (numbers,) and components (components, numbers), got "
                f"{tuple(mean.shape)} and {tuple(components.shape)}"
            )
        self.mean: Tensor
        self.components: Tensor
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("components", components.detach().clone(memory_format=torch.contiguous_format))

    @classmethod
    def of_public(cls, examples: Tensor, components: int, floor: float = 0.2) -> Self:
        """With the mean and the first principal components of these examples.

        Args:
            examples: public ones, (n, ...).
            components: how many, fewer than the examples and at most the numbers of one.
            floor: added to the variance of each component, in units of their mean variance. Above 0, small components,
                which the records may not share with the public examples, are not brought to full size.

        Guarantee: none for these examples.

        Raises:
            ValueError: there are too few examples or numbers for so many components.
        """
        from sklearn.decomposition import PCA  # takes a second to import

        flat = examples.flatten(1)
        if not 1 <= components < min(len(flat), flat.shape[1] + 1):
            raise ValueError(
                f"expected from 1 to {min(len(flat) - 1, flat.shape[1])} components of {len(flat)} public examples of "
                f"{flat.shape[1]} numbers, got {components}"
            )
        found = PCA(components, random_state=0).fit(flat.cpu().numpy())
        variance = found.explained_variance_ + floor * found.explained_variance_.mean()
        if not (variance > 0).all():
            raise ValueError("the public examples do not differ; their features have no components")
        rows = found.components_ / variance[:, None] ** 0.5
        return cls(torch.as_tensor(found.mean_).to(examples), torch.as_tensor(rows).to(examples))

    def forward(self, x: Tensor) -> Tensor:
        whitened = nn.functional.linear(x.flatten(1) - self.mean, self.components)
        return nn.functional.rms_norm(whitened, whitened.shape[1:])

    def extra_repr(self) -> str:
        return f"{self.components.shape[1]} numbers, {len(self.components)} components"
