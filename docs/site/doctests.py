"""Doctests in docstrings are shown as code, and the marks of names are dropped."""

from __future__ import annotations

import re
import textwrap

import griffe

_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc):(?=`)")


class Doctests(griffe.Extension):
    """Fences each doctest of a docstring, so that it is not read as text."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Change the docstring before it is read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(_ROLE.sub("", obj.docstring.value))


def fenced(text: str) -> str:
    """The text with a fence around each paragraph that begins with a prompt."""
    paragraphs = re.split(r"\n[ ]*\n", text)
    return "\n\n".join(_fenced(part) if part.lstrip().startswith(">>>") else part for part in paragraphs)


def _fenced(doctest: str) -> str:
    indent = doctest[: len(doctest) - len(doctest.lstrip(" "))]
    return textwrap.indent(f"```pycon\n{textwrap.dedent(doctest)}\n```", indent)
