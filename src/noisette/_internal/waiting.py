"""Waiting for a GPU, which computes on its own while Python goes on."""

from __future__ import annotations

import torch


def wait_for(device: torch.device) -> None:
    """Return when a GPU has done everything that it was given; for a processor at once.

    >>> wait_for(torch.device("cpu"))
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
