"""The parts of documents that are generated: what stands between two marks."""

from __future__ import annotations


def replaced(text: str, begin: str, end: str, part: str) -> str:
    """The text with ``part`` on lines of its own between the marks ``begin`` and ``end``.

    Raises:
        ValueError: the text does not have both marks, once each and in this order.

    >>> replaced("a <!-- begin -->old<!-- end --> b", "<!-- begin -->", "<!-- end -->", "new").split()
    ['a', '<!--', 'begin', '-->', 'new', '<!--', 'end', '-->', 'b']
    """
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found or text.count(begin) + text.count(end) != 2:
        raise ValueError(f"expected {begin} and behind it {end}, once each")
    return f"{head}{begin}\n{part}\n{end}{tail}"
