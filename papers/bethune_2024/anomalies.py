"""The area under the ROC curve of a network that detects anomalies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from noisette.data import Split

_AT_ONCE = 10_000  # rows in memory


@torch.no_grad()
def area_under_roc(model: nn.Module, test: Split) -> float:
    """Return the probability that a random anomaly of the test rows scores above a random normal row.

    The score of a row is its output for class 1 minus its output for class 0.
    """
    from sklearn.metrics import roc_auc_score

    device = next(model.parameters()).device
    chunks = torch.as_tensor(test.inputs).split(_AT_ONCE)
    scores = torch.cat([model(rows.to(device)).cpu() for rows in chunks])
    return float(roc_auc_score(test.targets, (scores[:, 1] - scores[:, 0]).double().numpy()))
