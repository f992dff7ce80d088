"""Whether the private step of a model can be captured as one graph, told before training."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from noisette.clipping.per_example import PerExampleClip
from noisette.errors import PrivacyError
from noisette.validation.buffers import buffers_restored
from noisette.validation.checked_calls import attributes_restored
from noisette.validation.vectorization import sum_of_outputs


def capture_remark(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> str:
    """One line: that the step is captured, with its number of operations, or why it is not.

    Args:
        model: called with inputs like these, whose first axis holds examples.
        args: its positional arguments.
        kwargs: its keyword arguments.

    >>> capture_remark(nn.Linear(3, 2), [torch.zeros(4, 3)]).split(" of ")[0]
    'The step is captured as one graph'
    """
    with attributes_restored(model), buffers_restored(model), torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clip = PerExampleClip(model, 1.0, capture="graph")
        try:
            for _ in range(2):
                clip.accumulate(sum_of_outputs, *args, **(kwargs or {}))
            operations, problems = clip.captured_operations, clip.capture_problems
        except PrivacyError as error:
            return f"The step is not captured: the loss of one example cannot be vectorised: {error}"
        finally:
            clip.close()
    if problems:
        return f"The step is not captured, and runs eagerly: {problems[0]}"
    return f"The step is captured as one graph of {operations} operations."
