"""The page on accuracy: its code runs, its recipes are read, and the names in its table exist."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from torch import Tensor

from noisette.nn import MirrorAverage
from noisette.training.recipe import Recipe

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "better-accuracy.md"
TEXT = PAGE.read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_the_loop_of_the_page_runs() -> None:
    names: dict[str, object] = {}
    (code,) = blocks("python")
    exec(code, names)
    published, images = names["published"], names["images"]
    assert isinstance(published, MirrorAverage)
    assert isinstance(images, Tensor)
    assert published(images).isfinite().all()


@pytest.mark.parametrize("block", blocks("toml"))
def test_recipes_of_the_page_are_read(block: str) -> None:
    assert Recipe.of(tomllib.loads(block), "the page") != Recipe()


def test_keys_and_names_of_the_page_exist() -> None:
    recipe = Recipe()
    known = {field.name for part in fields(recipe) for field in fields(getattr(recipe, part.name))}
    rows = [row.split("|") for row in TEXT.splitlines() if row.startswith("| ") and row.count("|") == 5]
    keys = {
        key
        for row in rows[1:]
        for code in re.findall(r"`([^`]*)`", row[2])
        if not code.startswith(("noisette", '"'))
        for key in [code.rpartition("] ")[2].partition(" ")[0]]
    }
    assert len(keys) > 15
    assert keys <= known, keys - known
