"""A schema: the facts about a data set of one's own, in a TOML file beside it, as the table ``data`` of a recipe."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from noisette.training.recipe.reading import read_fields
from noisette.training.recipe.sections import DataSection

_OF_A_RUN = ("name", "test")  # places of files, which belong to a run


def read_schema(path: Path) -> dict[str, Any]:
    """The fields of :class:`DataSection` that a schema gives.

    Raises:
        ValueError: the file is not TOML, or has unknown keys or values of another type; all are listed.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from error
    problems = [
        f"{key} is given on the command line or in a recipe; leave it out" for key in _OF_A_RUN if key in tables
    ]
    fields = read_fields(DataSection, tables, "", problems)
    if problems:
        raise ValueError(f"{path} has {len(problems)} problems:\n  " + "\n  ".join(problems))
    return fields
