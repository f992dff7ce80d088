"""How well scores tell anomalies from the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from noisette.data import Split

_AT_ONCE = 10_000  # rows in memory


@torch.no_grad()
def area_under_roc(model: nn.Module, test: Split) -> float:
    """The chance that an anomaly scores above a row that is none, of two drawn from the test rows.

    A row's score is that of class 1 less that of class 0.
    """
    from sklearn.metrics import roc_auc_score

    device = next(model.parameters()).device
    pieces = torch.as_tensor(test.inputs).split(_AT_ONCE)
    scores = torch.cat([model(rows.to(device)).cpu() for rows in pieces])
    return float(roc_auc_score(test.targets, (scores[:, 1] - scores[:, 0]).double().numpy()))
