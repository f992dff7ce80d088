"""Whether PyTorch itself runs an LSTM under bfloat16 autocast on this processor: without AVX-512, oneDNN does not."""

import pytest
import torch
from torch import nn


def skip_without_bfloat16_lstm() -> None:
    """Skip the test where a plain `nn.LSTM` under bfloat16 autocast raises."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(2, 2)(torch.ones(1, 1, 2))
    except RuntimeError as error:
        pytest.skip(f"PyTorch does not run a plain LSTM under bfloat16 autocast on this processor: {error}")
