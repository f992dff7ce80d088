"""On a GPU a warm microbatch never waits for the host, as PyTorch itself reports."""

from __future__ import annotations

import pytest
import torch
from test_no_host_sync import MODELS, loss, microbatch

from noisette.clipping.engines import BookKeeping, ReweightGP
from noisette.clipping.per_example import PerExampleClip
from noisette.core.clip import Engine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP()], ids=lambda e: type(e).__name__)
def test_a_warm_microbatch_does_not_synchronise(name: str, engine: Engine) -> None:
    clip = PerExampleClip(MODELS[name][0]().cuda(), 0.5, engine=engine, capture="eager")
    batches = [[tensor.cuda() for tensor in microbatch(name)] for _ in range(4)]
    for batch in batches[:2]:
        clip.accumulate(loss, *batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches[2:]:
            clip.accumulate(loss, *batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        clip.close()
