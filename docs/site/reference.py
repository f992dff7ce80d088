"""Generated reference pages, and the navigation made from the folders, so that a new page needs no entry."""

from __future__ import annotations

import ast
import dataclasses
import typing
from pathlib import Path

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

import noisette

_ROOT = Path(__file__).parents[2]
_EXPLANATION = (
    "explanation",
    "privacy-accounting.md",
    "architecture.md",
    "glossary.md",
    "batch-norm.md",
    "clipless.md",
)
_REFERENCE = ("reference", "command-line.md", "models-and-clipping.md", "supported-models.md")
_EVIDENCE = ("benchmarks.md", "assurance.md", "papers", "decisions.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the source, and name all pages in the navigation."""
    pages = {"api": api(), "commands": commands(), "recipe-keys": recipe_keys(), "refusals": refusals()}
    for name, content in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    models = (_ROOT / "docs/supported-models.json").read_text()  # as a script: a page on disk may not read other files
    data = File.generated(config, "assets/supported-models-data.js", content=f"const supportedModels = {models};")
    files.append(data)
    config.nav = navigation(sorted(file.src_uri for file in files.documentation_pages()))
    return files


def navigation(pages: list[str]) -> list[object]:
    """Sections of pages, by folder or name; a listed page that is not there yet is left out."""

    def of(*places: str) -> list[str]:
        return [page for place in places for page in pages if page == place or page.startswith(f"{place}/")]

    return [
        {"Getting started": "index.md"},
        {"Tutorials": of("tutorials")},
        {"How to": of("how-to")},
        {"Explanation": of(*_EXPLANATION)},
        {"Reference": of(*_REFERENCE)},
        {"Evidence": of(*_EVIDENCE)},
    ]


def api() -> str:
    """Every public name, by the folder that defines it."""
    folders: dict[str, list[str]] = {}
    for module, names in noisette._PUBLIC.items():
        folders.setdefault(module.partition(".")[0], []).extend(names)
    lines = ["# API", "", "Every public name of `noisette`, by the folder of the source that defines it."]
    for folder, names in sorted(folders.items()):
        lines += ["", f"## {folder}", ""]
        for name in sorted(names):
            lines += [f"::: noisette.{name}", ""]
    return "\n".join(lines)


def commands() -> str:
    """All commands and options, as the commands themselves describe them."""
    from noisette.cli import app

    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="noisette")
    text = get_docs_for_click(obj=command, ctx=context, name="noisette")
    return (
        "# Commands and options\n\nAs `--help` prints them; [in use](../command-line.md).\n\n" + text.partition("\n")[2]
    )


def recipe_keys() -> str:
    """The tables of a recipe, with the type and the default of each key."""
    from noisette.training.recipe import Recipe

    lines = ["# Recipe keys", "", "The keys of the TOML file that `noisette train RECIPE` reads."]
    _tables(Recipe, "", lines)
    return "\n".join(lines)


def _tables(owner: type, where: str, lines: list[str]) -> None:
    types = typing.get_type_hints(owner)
    described = (owner.__doc__ or "").partition("\n")[0]
    lines += ["", f"## `[{where}]`" if where else "## All tables", "", described, ""]
    nested, rows = [], []
    for field in dataclasses.fields(owner):
        kind = types[field.name]
        if dataclasses.is_dataclass(kind):
            nested.append((kind, f"{where}.{field.name}" if where else field.name))
            continue
        shown = (kind.__name__ if type(kind) is type else str(kind)).replace("typing.", "").replace("|", "\\|")
        rows.append(f"| `{field.name}` | {_code(shown)} | {_default(field)} |")
    if rows:
        lines += ["| key | type | default |", "|---|---|---|", *rows]
    for kind, place in nested:
        _tables(typing.cast(type, kind), place, lines)


def _code(text: str) -> str:
    return f"<code>{text}</code>" if "|" in text else f"`{text}`"


def _default(field: dataclasses.Field[object]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`"
    return "empty" if field.default_factory is not dataclasses.MISSING else "required"


def refusals() -> str:
    """Every message of a ``PrivacyError`` in the source; what stands in braces is filled in."""
    lines = [
        *("# Refusals", ""),
        "Each message states what is wrong and the remedy. Collected from the source: `…` stands for a value.",
    ]
    for path in sorted((_ROOT / "src/noisette").rglob("*.py")):
        messages = refusal_messages(path.read_text())
        if messages:
            lines += ["", f"## `{path.relative_to(_ROOT / 'src/noisette')}`", ""]
            lines += [f"- {message}" for message in messages]
    return "\n".join(lines)


def refusal_messages(source: str) -> list[str]:
    """The messages of the ``PrivacyError`` that a source makes, those made elsewhere left out."""
    found = []
    for node in ast.walk(ast.parse(source)):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "PrivacyError"
        if is_call and node.args and (message := _text(node.args[0])).strip("… "):
            found.append(message.replace("<", "&lt;").replace("[", "\\[").replace("\n", " "))
    return found


def _text(node: ast.expr) -> str:
    """A string as it is written, with ``…`` for each value that is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "…"
