"""The page of decisions keeps to its form, and links to it lead to an entry."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "decisions.md"
MOST_WORDS = 80
SECTIONS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
ENTRIES = [section for section in SECTIONS if section[0].isdigit()]


def anchor_of(section: str) -> str:
    """The anchor that GitHub and the site make of the heading."""
    return re.sub(r"[^\w\- ]", "", section.partition("\n")[0].lower()).replace(" ", "-")


def test_each_entry_is_short_and_has_its_measurement() -> None:
    assert len(ENTRIES) > 30
    for entry in ENTRIES:
        title, _, text = entry.partition("\n")
        assert len(text.split()) <= MOST_WORDS, title
        assert "**Measured.**" in text, title


def test_numbers_ascend() -> None:
    numbers = [int(entry.partition(".")[0]) for entry in ENTRIES]
    assert numbers == sorted(set(numbers))


def test_links_to_decisions_lead_to_entries() -> None:
    anchors = {anchor_of(section) for section in SECTIONS}
    found = subprocess.run(
        ["git", "grep", "-hoE", r"decisions\.md#[A-Za-z0-9-]+"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    linked = {line.partition("#")[2] for line in found.stdout.splitlines()}
    assert len(linked) > 10
    assert linked <= anchors
    assert {link for link in re.findall(r"\]\(#([\w-]+)\)", PAGE.read_text(encoding="utf-8"))} <= anchors
