"""The parts of documents that are generated: what stands between two marks."""

from __future__ import annotations


def replaced(text: str, begin: str, end: str, part: str) -> str:
    """The text with ``part`` on lines of its own between the marks ``begin`` and ``end``.

    >>> replaced("a <!-- begin -->old<!-- end --> b", "<!-- begin -->", "<!-- end -->", "new").split()
    ['a', '<!--', 'begin', '-->', 'new', '<!--', 'end', '-->', 'b']
    """
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n{part}\n{end}{tail}"
