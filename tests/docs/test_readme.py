"""The README's Python runs as it stands, from top to bottom, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def promised(block: str) -> list[str]:
    """What the comments after ``print`` say, to where they trail off."""
    return [said.strip().rstrip(".") for said in re.findall(r"^\s*print\(.*\)  # (.*)$", block, re.MULTILINE)]


@pytest.mark.parametrize("block", [block for block in BLOCKS if "import " in block], ids=lambda block: block.split()[3])
def test_a_block_of_the_readme_prints_what_it_says(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, str(README), "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert promised(block)
    for line, said in zip(printed, promised(block), strict=True):
        assert line.startswith(said)
