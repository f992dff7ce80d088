"""Steps of fastDP in each of its modes, from a checkout of its repository.

fastDP is on no package registry: its users clone ``awslabs/fast-differential-privacy``, so it is found by a path.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.steps import sgd

F = nn.functional
_PACKAGE = "fastDP"


def look_in(checkout: Path) -> None:
    """Find fastDP in this folder from now on. The folder comes last, so that nothing else in it is found first.

    Raises:
        ValueError: it is not there.
    """
    if not (checkout / _PACKAGE / "__init__.py").is_file():
        raise ValueError(
            f"no folder {_PACKAGE} in {str(checkout)!r}; give --fastdp the folder of a checkout of "
            "fast-differential-privacy"
        )
    place = str(checkout.resolve())
    if place not in sys.path:
        sys.path.append(place)


def is_found() -> bool:
    """Whether fastDP can be imported."""
    return find_spec(_PACKAGE) is not None


def _by_mode(mode: str, *, origin: bool = False) -> sgd.Method:
    """Book-keeping with the norms of this mode.

    Args:
        mode: how norms are computed.
        origin: compute no ordinary gradient but that of the first parameter, as fastDP's manual advises.
    """

    def method(model: nn.Module, data: sgd.Data) -> sgd.Step:
        optimizer = torch.optim.SGD(model.parameters(), lr=sgd.LEARNING_RATE)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        with redirect_stdout(io.StringIO()):  # it prints what it does
            engine = import_module(_PACKAGE).PrivacyEngine(
                model,
                batch_size=data.size,
                sample_size=1000 * data.size,  # used for accounting alone, as is the number of steps
                num_steps=1000,
                max_grad_norm=sgd.MAX_GRAD_NORM,
                noise_multiplier=sgd.NOISE_MULTIPLIER,
                clipping_mode=mode,
                clipping_fn="Abadi",
                origin_params=[next(iter(trained))] if origin else None,
            )
        engine.attach(optimizer)
        batches = data.batches()  # fastDP has no sampler

        def backward() -> None:
            inputs, targets = next(batches)
            F.cross_entropy(model(inputs), targets).backward()
            _check_all_trained(trained)

        return sgd.step_of(optimizer, backward)

    return method


def _check_all_trained(parameters: Mapping[str, Tensor]) -> None:
    """Each parameter has a private gradient: fastDP leaves out those that it does not support, and trains the rest."""
    left_out = [name for name, p in parameters.items() if not hasattr(p, "private_grad")]
    if left_out:
        raise NotImplementedError(f"fastDP does not train {', '.join(left_out)}")


METHODS: dict[str, sgd.Method] = {
    **{f"fastDP-{mode}": _by_mode(mode) for mode in ("MixOpt", "MixGhostClip", "ghost")},
    "fastDP-origin": _by_mode("MixOpt", origin=True),
}
