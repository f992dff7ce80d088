"""The CSV that ``noisette predict`` writes, and names that are not UTF-8."""

import csv
import os
from pathlib import Path

import numpy as np
import pandas
from PIL import Image

from command_line import noisette, refusal, succeeded, train

CLASSES = "=1+1,-2"


def columns(path: Path, rows: int = 60) -> Path:
    with path.open("w", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow(["@id", "debt", "a", "label"])
        lines.writerows([f"+cmd|{k}", -k - 0.5, k % 7, CLASSES.split(",")[k % 2]] for k in range(rows))
    return path


def trained(declared: str, ignored: str) -> Path:
    """The rows that a run in the folder ``run`` was trained on, as declared, without a column."""
    rows = columns(Path("rows.csv"))
    Path("schema.toml").write_text(
        f'{declared}\nsize = 60\n[columns]\na = {{ kind = "number", low = 0, high = 7 }}\n'
        f'"@id" = {{ kind = "ignored" }}\n{ignored} = {{ kind = "ignored" }}\n'
    )
    succeeded(train("--data", rows, "--columns", "schema.toml", "--epochs", 1, "--delta", 1e-3, "--out", "run"))
    return rows


def test_what_a_spreadsheet_would_compute_is_quoted():
    rows = trained('label = "label"\nclasses = ["=1+1", "-2"]', ignored="debt")
    shown = succeeded(noisette("predict", "run", rows, "--keep", "@id,debt"))
    header, first, *_ = csv.reader(shown.stdout.splitlines())
    assert header == ["'@id", "debt", "predicted label", "probability of =1+1", "probability of -2"]
    assert first[:2] == ["'+cmd|0", "-0.5"], "a number is none that is computed"
    assert {line[2] for line in csv.reader(shown.stdout.splitlines()[1:])} <= {"'=1+1", "-2"}


def test_dates_of_a_parquet_file_are_repeated_as_dates():
    trained('label = "label"\nclasses = ["=1+1", "-2"]', ignored="debt")
    days = pandas.to_datetime(["2024-02-29", None, "2023-01-01"])
    pandas.DataFrame({"a": [1, 2, 3], "day": days, "at": days + pandas.Timedelta(hours=1)}).to_parquet("new.parquet")
    lines = succeeded(noisette("predict", "run", "new.parquet", "--keep", "day,at")).stdout.splitlines()
    assert [line.split(",")[:2] for line in lines[1::2]] == [
        ["2024-02-29", "2024-02-29 01:00:00"],
        ["2023-01-01", "2023-01-01 01:00:00"],
    ]


def test_numbers_that_are_predicted_stay_numbers():
    rows = trained('label = "debt"\ntarget = [-60, -50]', ignored="label")
    assert all(float(line) < 0 for line in noisette("predict", "run", rows).stdout.splitlines()[1:])
    refusal(noisette("predict", "run", rows, "--text", "note"), "trained on no texts; leave out --text")


def test_places_that_are_not_utf_8(tmp_path):
    """A finished run is reported and its folder is whole, whatever the names of its files are."""
    photos = tmp_path / os.fsdecode(b"photos-\xff")
    for k in range(20):
        place = photos / "train" / "ab"[k % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 12 * k, np.uint8)).save(place / os.fsdecode(b"%d-\xe9.png" % k))
    out, found = tmp_path / os.fsdecode(b"run-\xff"), tmp_path / "found.csv"
    declared = ("--classes", "a,b", "--size", "20", "--image-size", "8,8", "--model", "linear")
    commands = (
        ("train", "--data", photos, *declared, "--epochs", "1", "--delta", "1e-3", "--out", out),
        ("predict", out, photos / "train" / "a", "--out", found),
        ("predict", out, photos / "train" / "a"),
        ("ledger", "price", out),
    )
    for words in commands:
        succeeded(noisette(*words))
    assert b"0-\xe9.png," in found.read_bytes(), "a file holds the bytes of the name"


def test_an_empty_data_set_says_so():
    none = {"x_train": np.zeros((0, 4), np.float32), "y_train": np.zeros(0, np.int64)}
    some = {"x_train": np.zeros((20, 4), np.float32), "y_train": np.arange(20) % 2}
    np.savez("none.npz", **none)
    np.savez("untested.npz", **some, x_test=none["x_train"], y_test=none["y_train"])
    for name, part in (("none", "train"), ("untested", "test")):
        given = ("--data", f"{name}.npz", "--classes", 2, "--size", 20, "--delta", 1e-3)
        refusal(train(*given), f"{part} holds no records")
    assert not Path("runs").exists(), "nothing was spent"
