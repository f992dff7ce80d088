"""The batch norm of the paper's algorithm 1, which normalises private and public examples together."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from noisette.nn import ExactPerExampleBatchNorm
from noisette.nn.batch_norm import JointBatch


class MixedBatch(JointBatch):
    """In training mode the public examples join all private ones at once, in evaluation mode each one separately."""

    def _joined(self, model: nn.Module, x: Tensor, public: Tensor) -> Tensor:
        return torch.cat([x, public]) if model.training else super()._joined(model, x, public)

    def _private(self, model: nn.Module, rows: Tensor, count: int) -> Tensor:
        return rows[:count] if model.training else super()._private(model, rows, count)


class MixtureBatchNorm(ExactPerExampleBatchNorm):
    """Batch norm over all private examples of a batch and the public ones together, as published.

    One record moves the statistics, and so the gradients of all other records in its batch: clipping each to C bounds
    what L of them change together by (2 L - 1) C, not by C. :func:`noisette.privatize` refuses it. In evaluation mode
    it is :class:`noisette.nn.ExactPerExampleBatchNorm`.

    Guarantee: none.
    Source: Davody et al. 2020, algorithm 1.
    """

    joint_batch: ClassVar[type[JointBatch]] = MixedBatch

    @property
    def mixes_examples(self) -> str:
        """Why a private run refuses this module, "" in evaluation mode."""
        return "mixes examples in its statistics, as published: use PublicBatchNorm instead" if self.training else ""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return nn.functional.batch_norm(input, None, None, self.weight, self.bias, training=True, eps=self.eps)
