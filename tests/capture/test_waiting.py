from __future__ import annotations

import pytest
import torch

from noisette.capture.captured import wait_for


def test_only_a_gpu_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    wait_for(torch.device("cpu"))
    assert waited == []
    wait_for(torch.device("cuda", 1))
    assert waited == [torch.device("cuda", 1)]
