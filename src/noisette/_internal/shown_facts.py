"""How an object shows itself: a name and a few public facts, as a line of text and as a table for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def as_text(name: str, facts: Mapping[str, object]) -> str:
    """One line.

    >>> as_text("Batch", {"expected size": 150})
    '<Batch: expected size 150>'
    """
    return f"<{name}: {', '.join(f'{label} {value}' for label, value in facts.items())}>"


def as_html(name: str, facts: Mapping[str, object]) -> str:
    """A table with the name above it.

    >>> as_html("Batch", {"expected size": "< 150"})
    '<table><caption>Batch</caption><tr><th>expected size</th><td>&lt; 150</td></tr></table>'
    """
    rows = (f"<tr><th>{escape(label)}</th><td>{escape(str(value))}</td></tr>" for label, value in facts.items())
    return f"<table><caption>{escape(name)}</caption>{''.join(rows)}</table>"
