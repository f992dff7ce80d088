"""Names of parameters do not depend on how a model is wrapped, and a wrapper is left as it was found."""

from __future__ import annotations

import pytest
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from noisette import PerExampleClip, PrivacyError
from noisette.ranks.process_group import canonical_parameters


class OptimizedModule(nn.Module):
    """Holds its module as that of ``torch.compile`` does, which warns where it is imported."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module


def test_wrappers_are_left_out_of_names() -> None:
    inside = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)), OptimizedModule(nn.Linear(2, 2)))
    whole = OptimizedModule(inside)
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert [name for name, _ in canonical_parameters(whole)] == [name for name, _ in plain.named_parameters()]


def test_data_parallel_is_refused() -> None:
    with pytest.raises(PrivacyError, match="torchrun"):
        PerExampleClip(nn.DataParallel(nn.Linear(2, 2)), 1.0)
