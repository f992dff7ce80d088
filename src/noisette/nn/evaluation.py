"""A context manager that puts a model into evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[nn.Module]:
    """The model in evaluation mode, so that a trial call changes nothing; on exit each part's mode is restored."""
    modes = [(part, part.training) for part in model.modules()]
    try:
        yield model.eval()
    finally:
        for part, mode in modes:
            part.training = mode
