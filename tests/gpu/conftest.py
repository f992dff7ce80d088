"""Every test here runs on the processor, and with the mark ``gpu`` the same code runs on a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A device with exact single precision: no TF32 in products and convolutions."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield torch.device(request.param)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    if request.param == "cuda":
        torch.cuda.empty_cache()
