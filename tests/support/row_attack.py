"""An attack on whole runs: every record moves an axis of its own or of its user, and half of the axes have records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from noisette import PerExampleClip, PrivateRun, privatize
from noisette.audit import Rows
from noisette.audit.step_audit import canary_scores


def row_steps(axes: int, records: int, *, noise: float, **declared: Any) -> Iterator[tuple[PrivateRun, np.ndarray]]:
    """The run after each step, with how far the release moves each axis in deviations of the noise, (axes,).

    Args:
        axes: how many there are; the first half has records.
        records: of each of these axes.
        noise: the noise multiplier.
        declared: the other arguments of ``privatize``.
    """
    canaries = Rows(axes)
    present = canaries.records[: axes // 2].repeat(records)
    bound = PerExampleClip(canaries.model, 0.7)
    optimizer = torch.optim.SGD(canaries.model.parameters(), lr=0.0)
    with privatize(bound, optimizer, present, noise_multiplier=noise, **declared) as run:
        for batch in run.batches():
            sums = bound.pop_sums()
            for part in batch.microbatches(20_000):
                run.accumulate(canaries.loss, part)
            optimizer.step()
            moved, _ = canary_scores(sums, bound.parameters, axes, declared["expected_batch_size"])
            yield run, moved / noise
            optimizer.zero_grad()
