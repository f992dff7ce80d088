"""Pages of this project: filled strictly, with one look."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def templates(room: str) -> Environment:
    """The templates of a room, and what the report shares with all of them."""
    return Environment(
        loader=ChoiceLoader([PackageLoader("noisette", room), PackageLoader("noisette", "report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
