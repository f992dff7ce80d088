"""Reads the user's own CSV: a header, then one example in each row, with a column of what is predicted."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from noisette.data import table
from noisette.data.dataset import DataSet
from noisette.data.declaration import Declaration
from noisette.data.errors import DataError, refuse


def read(path: Path, declaration: Declaration) -> DataSet:
    """The CSV (or .csv.gz) as a data set, inputs (n, features) as `table.encode` makes them; see `Declaration`.

    Raises:
        DataError: lists what is undeclared; or every column that is declared but absent; or every column with a
            missing value, a value that is not a finite number, or an undeclared text, with the rows.
    """
    classes, size = declaration.public_facts(path.name)
    declaration.refuse_image_facts(path.name)
    train = table.read(path)
    refuse(path.name, _absent_columns(train, declaration))
    features = declaration.features(train)
    split, problems = table.encode(table.labelled(train, declaration), declaration, features)
    test_split = None
    if declaration.test is not None:
        test = table.read(declaration.test)
        if test.keys() != train.keys():
            raise DataError(f"{declaration.test.name} must have the columns of {path.name}, in any order")
        test_split, test_problems = table.encode(table.labelled(test, declaration), declaration, features)
        problems += [f"{declaration.test.name}: {problem}" for problem in test_problems]
    first = "the first with a label" if declaration.skip_unlabelled else "the first below the header"
    refuse(f"{path.name} (row 1 is {first})", problems)
    return DataSet(
        path.name,
        split,
        test_split,
        classes=classes,
        declared_size=size,
        words=declaration.numbering.size if declaration.text else 0,
        target=declaration.target,
        features=() if declaration.text else features.names,
    )


def _absent_columns(found: table.Table, declaration: Declaration) -> list[str]:
    """Messages on declared columns that are absent, each with a similar name or all names, and on absent features."""
    named = {"label": [declaration.label], "ranges": declaration.ranges, "categories": declaration.categories}
    named |= {"users": [declaration.users]} if declaration.users is not None else {}
    named |= {"text": [declaration.text]} if declaration.text is not None else {}
    problems = []
    for fact, names in named.items():
        for name in names:
            if name not in found:
                close = get_close_matches(name, found, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(map(repr, found))}"
                problems.append(f"{fact}: there is no column {name!r}; {hint}")
    if declaration.columns is not None:
        declared = {declaration.label, declaration.users, *declaration.columns.declared}
        problems += [
            f'columns: column {name!r} is not declared; declare it, or as kind = "ignored"'
            for name in found
            if name not in declared
        ]
        problems += [f"columns: {problem}" for problem in declaration.columns.absent(found)]
    if not set(found) - {declaration.label, declaration.users}:
        problems.append("there is no column besides the label" + (" and the users" if declaration.users else ""))
    return problems
