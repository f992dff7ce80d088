"""A fingerprint of the weights that bounds depend on, to find out whether they have changed since their projection."""

from __future__ import annotations

from torch import nn

from noisette.lipschitz.protocols import is_constrained


def weight_fingerprint(model: nn.Module) -> tuple[object, ...]:
    """It changes if a weight is written, replaced or cast, and if a certified norm is no longer that of its weight.

    Writes through ``.data`` are not seen.
    """
    weights = [(p._version, p.data_ptr(), p.dtype) for p in model.parameters()]
    norms = [(m, m.projection, getattr(m, "norm", None)) for m in model.modules() if is_constrained(m)]
    return (*weights, *norms)
