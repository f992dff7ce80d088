"""The page of decisions keeps to its form, and links to it lead to an entry."""

from __future__ import annotations

import re
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
    files = [*ROOT.glob("*.md"), *(path for folder in ("docs", "papers") for path in (ROOT / folder).rglob("*.md"))]
    files += (ROOT / "src").rglob("*.py")
    linked = {
        link for path in files for link in re.findall(r"decisions\.md#([\w-]+)", path.read_text(encoding="utf-8"))
    }
    assert len(linked) > 10
    assert linked <= anchors
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE.read_text(encoding="utf-8"))) <= anchors
