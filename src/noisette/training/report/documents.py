"""The files of a finished run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noisette.training.report.facts import Facts
from noisette.training.report.page import page
from noisette.training.report.statement import as_text, statement

if TYPE_CHECKING:
    from torch import nn


def documents(facts: Facts, model: nn.Module) -> dict[str, bytes]:
    """The files of a run folder other than the ledger: their names and contents."""
    title = f"Privacy statement of {facts.recipe.model.name} trained on {facts.data}"
    return {
        "model.safetensors": _weights(model),
        "privacy.txt": as_text(statement(facts), title=title).encode(),
        "report.html": page(facts).encode(),
        "run.json": facts.as_json().encode(),
    }


def _weights(model: nn.Module) -> bytes:
    from safetensors.torch import save

    # Tied weights are written once for each of their names, since the format cannot share them.
    return save({name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()})
