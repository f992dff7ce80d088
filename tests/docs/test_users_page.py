"""The code of the page on guarantees for users runs, and prints what its comments state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "guarantees-for-users.md"


def test_the_code_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(block, str(PAGE), "exec"), {"__name__": "a_users_module"})
    stated = re.findall(r"print\(.*\)  # (.*)", block)
    assert capsys.readouterr().out.splitlines() == stated
