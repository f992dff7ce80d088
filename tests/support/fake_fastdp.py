"""A checkout of a library that looks like fastDP from outside: it steps by its noise alone, upwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

FASTDP = """
import torch

class PrivacyEngine:
    def __init__(self, module, *, batch_size, sample_size, num_steps, max_grad_norm, noise_multiplier, clipping_mode,
                 clipping_fn, origin_params):
        print("a library that prints")
        assert clipping_fn == "Abadi" and clipping_mode in ("MixOpt", "MixGhostClip", "ghost")
        self.parameters = {n: p for n, p in module.named_parameters() if "recurrent" not in n}
        first = next(n for n, p in module.named_parameters())
        assert origin_params in (None, [first])
        self.batch_size, self.std = batch_size, max_grad_norm * noise_multiplier
        module.register_forward_hook(self.after_forward)

    def after_forward(self, *_):
        for p in self.parameters.values():
            p.private_grad = torch.full_like(p, self.std)

    def attach(self, optimizer):
        plain = optimizer.step
        def step():
            for p in self.parameters.values():
                p.grad = p.private_grad / self.batch_size
                del p.private_grad
            plain()
        optimizer.step = step
"""


@contextmanager
def checkout(folder: Path) -> Iterator[Path]:
    """The folder with the library in it; what the search for modules is changed to within is undone afterwards."""
    package = folder / "fastDP"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FASTDP)
    kept = sys.modules.pop("fastDP", None)
    with patch.object(sys, "path", [*sys.path]):
        yield folder
    sys.modules.pop("fastDP", None)
    if kept is not None:
        sys.modules["fastDP"] = kept
