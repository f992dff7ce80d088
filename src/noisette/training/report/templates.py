"""The HTML templates of this project."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def templates(package: str) -> Environment:
    """The templates of a package, with the style sheet of the report; undefined variables are errors."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, ""), PackageLoader("noisette.training.report", "")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
