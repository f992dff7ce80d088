"""Refusal of modules that are known to normalise over the batch."""

from __future__ import annotations

from torch import nn

from noisette.errors import PrivacyError


def batch_mixing_modules(model: nn.Module) -> list[str]:
    """One line for each module that is known to mix examples: its name, its class, and what to do instead."""
    return [
        f"{name or 'the model itself'}  {type(module).__name__} {problem}"
        for name, module in model.named_modules()
        if (problem := _mixing(module))
    ]


def _mixing(module: nn.Module) -> str:
    """How the module mixes examples, or an empty string; modules may state it in an attribute ``mixes_examples``."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
        return (
            "mixes examples: put PublicBatchNorm or GroupNorm in its place (noisette.nn.convert_batch_norm), or call "
            ".eval() on it"
        )
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.training and module.track_running_stats:
        return "mixes examples in its running statistics: set track_running_stats=False, or call .eval() on it"
    return getattr(module, "mixes_examples", "")


def check_no_batch_norm(model: nn.Module) -> None:
    """No module of the model normalises over the batch.

    Raises:
        PrivacyError: listing every module that does.
    """
    if problems := batch_mixing_modules(model):
        raise PrivacyError(f"{len(problems)} modules of the model mix examples:\n  " + "\n  ".join(problems))
