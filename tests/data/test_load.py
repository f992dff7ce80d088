from __future__ import annotations

from pathlib import Path

import pytest

from noisette.data import DataError, Declaration, load, names
from noisette.data.words import Numbering


def test_built_in_names() -> None:
    leaves = ("dead-leaves-grey", "shaded-leaves")
    images, others = (
        ("digits", "mnist", "fashion-mnist", "kmnist", "cifar10", *leaves),
        ("ag-news-words", "sst2", "imdb", "adult"),
    )
    assert names() == (*images, *others)


def test_unknown_name_lists_all_and_a_close_one() -> None:
    with pytest.raises(DataError) as caught:
        load("mnits")
    message = str(caught.value)
    assert "Did you mean mnist?" in message
    assert all(name in message for name in names())
    assert "\n" not in message


def test_built_in_set_takes_no_declaration() -> None:
    with pytest.raises(DataError, match="digits is a built-in set and takes no declaration"):
        load("digits", declaration=Declaration(size=3))
    assert load("digits", declaration=Declaration()).declared_size == 1437
    with pytest.raises(DataError, match="tokens and words are for texts whose words are hashed, not for digits"):
        load("digits", declaration=Declaration(numbering=Numbering(tokens=5)))


def test_a_folder_named_as_a_built_in_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load("digits").name == "digits"
    with pytest.raises(DataError, match="declare classes"):
        load("./digits")
