"""The pages on the structure of the package name what is there: entries in their order, files and registries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import noisette
from tests.test_architecture import LEVEL

ROOT = Path(__file__).parents[2]
SOURCE = Path(noisette.__file__).parent
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_table_has_every_entry_below_those_that_it_imports() -> None:
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", ARCHITECTURE, re.MULTILINE)
    assert set(rows) == LEVEL.keys() - {"__main__"}
    assert [LEVEL[row] for row in rows] == sorted(LEVEL[row] for row in rows)


@pytest.mark.parametrize("page", [ARCHITECTURE, CONTRIBUTING], ids=["architecture", "contributing"])
def test_files_of_the_page_exist(page: str) -> None:
    named = {path for path in re.findall(r"`([\w/]+(?:/|\.py|\.pyi))`", page) if not re.search("NAME|FAMILY", path)}
    assert len(named) > 5
    assert [
        path for path in sorted(named) if not any((place / path).exists() for place in (SOURCE, ROOT, ROOT / "src"))
    ] == []


def test_registries_of_the_page_exist() -> None:
    named = set(re.findall(r"`([A-Z_]{4,})`", ARCHITECTURE + CONTRIBUTING))
    assert named == {"ACCOUNTANTS", "CLIPPING_RULES", "ENGINES"}
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("registry.py"))
    assert [name for name in sorted(named) if not re.search(rf"^{name}\b.* = ", text, re.MULTILINE)] == []
