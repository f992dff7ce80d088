"""The code on pages of the documentation, and what it defines."""

import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).parents[2]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)


def names_of(*code: str, given: Any = MappingProxyType({})) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "a_users_module", **given}
    for block in code:
        exec(block, found)
    return found
