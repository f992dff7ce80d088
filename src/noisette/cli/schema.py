"""``noisette schema``: writes what is declared about the columns of a table, from public knowledge alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from noisette.cli.options import listed, number_or_names, numbers, option, plain_errors

_OPEN = "?"  # the kind of a column that is still to be declared, which noisette train refuses


@plain_errors()
def schema(
    header_of: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE.csv", help="Take the names of the columns from its first line. No other line is read."
        ),
    ] = None,
    names: Annotated[str | None, option("A,B,..", "The names of the columns, instead of a file.")] = None,
    label: Annotated[str | None, option("COLUMN", "The column of the class or number to predict.", "label")] = None,
    classes: Annotated[str | None, option("N|A,B,..", "Number of classes, or their names in order.")] = None,
    target: Annotated[str | None, option("LOW,HIGH", "Instead of classes: bounds of the number to predict.")] = None,
    unit: Annotated[str | None, option("TEXT", "The unit of that number.")] = None,
    size: Annotated[int | None, option("N", "Public number of records; need not be exact.")] = None,
    number: Annotated[
        list[str] | None, option("COLUMN=LOW,HIGH", "A column of numbers and its bounds. Repeat for each.")
    ] = None,
    category: Annotated[
        list[str] | None, option("COLUMN=A,B,..", "A column of texts and all that are known. Repeat for each.")
    ] = None,
    missing: Annotated[
        list[str] | None,
        option(
            "COLUMN=RULE",
            "What a missing value counts as: a number, indicator, a category, own category, or refuse. Repeatable.",
            "indicator for numbers, own category for texts",
        ),
    ] = None,
    ignore: Annotated[str | None, option("A,B,..", "Columns that are not read.")] = None,
    decimal: Annotated[str | None, option("SIGN", "What stands before decimals, a point or a comma.", ".")] = None,
    skip_unlabelled: Annotated[
        bool, typer.Option("--skip-unlabelled", help="Leave out rows without a label, instead of refusing them.")
    ] = False,
    ask: Annotated[bool, typer.Option("--ask", help="Ask about every column that no option declares.")] = False,
    out: Annotated[Path, option("FILE.toml", "The file to write.")] = Path("schema.toml"),
) -> None:
    """Write a schema for noisette train --columns: what is publicly known about each column of a table.

    Bounds and categories come from what you know about the columns, never from the rows: those would tell about single
    records. The first line of the file, which names the columns, is the only one that is read. These names are taken to
    be public: the report of a run contains them.
    """
    from noisette.data import Declaration
    from noisette.data.columns import Columns
    from noisette.data.dataset import Target

    if out.exists():
        raise ValueError(f"{out} exists; choose another --out, or move it away")
    columns, label = _named(header_of, names), label or "label"
    declared = _declared(columns, number or [], category or [], missing or [], ignore)
    if label not in columns:
        raise ValueError(
            f"there is no column {label!r}, the label; name it with --label, as one of {', '.join(columns)}"
        )
    left = [name for name in columns if name not in declared and name != label]
    if ask:
        declared |= {name: _asked(name) for name in left}
        left = []
    of_classes = None if classes is None else number_or_names(classes)
    bounds = None if target is None else numbers("target", target, "0,120", count=2)
    Declaration(  # which checks that the declarations do not contradict themselves
        classes=of_classes,
        size=size,
        label=label,
        columns=Columns.of(declared),
        decimal=decimal or ".",
        target=None if bounds is None else Target(bounds[0], bounds[1], unit or ""),
    )
    facts = {"label": label, "classes": of_classes, "target": bounds, "unit": unit, "size": size, "decimal": decimal}
    facts |= {"skip_unlabelled": skip_unlabelled or None}
    declared |= {name: {"kind": _OPEN} for name in left}
    _write(out, facts, {name: declared[name] for name in columns if name in declared})
    typer.echo(f"schema  {out}")
    if left:
        typer.echo(f'Still to be declared, with kind = "{_OPEN}" in the file: {", ".join(left)}')


def _named(header_of: Path | None, names: str | None) -> list[str]:
    """The names of the columns, from the header of a file or from the option."""
    from noisette.data.tables import header, is_number

    if header_of is not None and names is None:
        found = header(header_of)
    elif names is not None and header_of is None:
        found = list(listed("names", names))
    else:
        raise ValueError("give a CSV whose first line names the columns, or --names")
    if len(set(found)) < len(found) or "" in found:
        raise ValueError("the columns must have different names, none of them empty")
    if wrong := [name for name in found if is_number(name)]:
        raise ValueError(f"--names: {wrong[0]} is a number; begin the name of a column with a letter")
    return found


def _declared(
    columns: Sequence[str], number: Sequence[str], category: Sequence[str], missing: Sequence[str], ignore: str | None
) -> dict[str, dict[str, Any]]:
    """The columns that options declare, as the tables of a schema."""
    pairs = [("number", *_pair("number", given, "age=0,100")) for given in number]
    pairs += [("category", *_pair("category", given, "job=cook,smith")) for given in category]
    pairs += [("ignore", name, "") for name in (listed("ignore", ignore) if ignore else ())]
    found: dict[str, dict[str, Any]] = {}
    for option_name, name, given in pairs:
        if name not in columns:
            raise ValueError(f"--{option_name}: there is no column {name!r}; there are {', '.join(columns)}")
        if name in found:
            raise ValueError(f"the column {name!r} is declared twice")
        table = _number if option_name == "number" else _category
        found[name] = {"kind": "ignored"} if option_name == "ignore" else table(f"{option_name} {name}", given)
    for name, rule in (_pair("missing", given, "age=indicator") for given in missing):
        if name not in found or found[name]["kind"] == "ignored":
            raise ValueError(f"--missing {name}=...: declare the column with --number or --category too")
        found[name]["missing"] = _number_or_text(rule) if found[name]["kind"] == "number" else rule
    return found


def _pair(option: str, given: str, example: str) -> tuple[str, str]:
    """The name of a column and what is declared about it."""
    name, equals, value = given.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise ValueError(f"expected --{option} as {example}, got {given!r}")
    return name.strip(), value.strip()


def _number(option: str, bounds: str) -> dict[str, Any]:
    low, high = numbers(option, bounds, "0,100", count=2)
    return {"kind": "number", "low": low, "high": high, "missing": "indicator"}


def _category(option: str, texts: str) -> dict[str, Any]:
    known = list(listed(option, texts))
    return {"kind": "category", "categories": known, "missing": "own category", "other": "own category"}


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _asked(name: str) -> dict[str, Any]:
    """What the user answers about a column; a wrong answer is asked for again."""
    from noisette.data.columns import Columns

    def answer(question: str, table: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        def checked(given: str) -> dict[str, Any]:
            try:
                Columns.of({name: table(given)})
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error
            return table(given)

        return typer.prompt(f"{name}: {question}", value_proc=checked)

    def kind(given: str) -> dict[str, Any]:
        return {"kind": given, "categories": ["any"]} if given == "category" else {"kind": given}

    chosen = answer("number, category or ignored?", kind)
    if chosen["kind"] == "number":
        return answer("lowest and highest value, such as 0,100", partial(_number, "number"))
    if chosen["kind"] == "category":
        return answer("all known texts, such as a,b", partial(_category, "category"))
    return chosen


def _write(out: Path, facts: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]) -> None:
    from noisette.accounting import atomic_files

    lines = [
        "# What is publicly known about the columns, for noisette train --columns. Written without reading any row:",
        "# bounds and categories must come from what the columns mean, not from the records.",
        *(f"{key} = {_toml(value)}" for key, value in facts.items() if value is not None),
    ]
    for name, table in declared.items():
        lines += ["", f"[columns.{json.dumps(name, ensure_ascii=False)}]"]
        lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
    atomic_files.write(out, ("\n".join(lines) + "\n").encode())


def _toml(value: Any) -> str:
    """A text, a number, true or a list of them in TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False)
    return str(int(value)) if isinstance(value, float) and math.isfinite(value) and value.is_integer() else repr(value)
