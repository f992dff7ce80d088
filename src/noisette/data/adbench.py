"""ADBench: tables of numbers in which some rows are anomalies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noisette.data import files
from noisette.data.dataset import DataSet, Split
from noisette.data.errors import DataError

ADDRESS = (
    "https://raw.githubusercontent.com/Minqi824/ADBench/3dac8221081e190f157d78e93bfa8867f90d0965/"
    "adbench/datasets/Classical/"
)
_NOTE = (
    "ADBench publishes no split: 80 % of the rows, chosen by a fixed shuffle, are used for training; ADBench may have "
    "scaled columns by statistics of all rows before publishing them, which no accountant includes"
)


def _square_roots(rows: np.ndarray) -> np.ndarray:
    """Square roots of histogram frequencies, so that small frequencies are told apart."""
    return np.sqrt(np.clip(rows, 0, 1))


def _asinh_of_hundredths(rows: np.ndarray) -> np.ndarray:
    """For integers of up to five digits: linear below about 100, logarithmic above."""
    return np.arcsinh(rows / 100)


@dataclass(frozen=True)
class Table:
    """One of the sets: its file, the numbers of rows and columns in it, and a data-independent map of its values."""

    file: str
    sha256: str
    rows: int
    columns: int
    transform: Callable[[np.ndarray], np.ndarray] = np.asarray

    @property
    def size(self) -> int:
        """The number of training rows: 80 %, rounded down."""
        return self.rows * 4 // 5

    @property
    def description(self) -> str:
        """One line for help texts."""
        return f"anomaly detection (ADBench), {self.rows:,} rows of {self.columns} numbers"


TABLES = {
    "aloi": Table(
        "1_ALOI.npz", "792d0b5bd1147bfc9574a1974f157b39fbd4cbed8ecd04cf983fd554498ed477", 49_534, 27, _square_roots
    ),
    "campaign": Table("5_campaign.npz", "74dd4d0072d6c6f1aabab63bc102f9633454f32bb936fa9bcfbd38f9f2386bcd", 41_188, 62),
    "celeba": Table("8_celeba.npz", "1cadfdea14cd8d240eca715a70c09c88af8621d086a7478c63f602d97adef0b5", 202_599, 39),
    "donors": Table("11_donors.npz", "5824ec854465f2763b4bfe3da1ae9f25ed5433b5c6e265d42e37da4f82a58679", 619_326, 10),
    "magic": Table(
        "22_magic.gamma.npz", "0be375984d7af9ea7a63b12206c240840d8b7daa3607021c5fb8756407dd86f1", 19_020, 10
    ),
    "mammography": Table(
        "23_mammography.npz", "a0308ac9712d78321073b1c2dc98dc37665c0f35c1cc33019416fe8f8d7de7ea", 11_183, 6
    ),
    "shuttle": Table(
        "32_shuttle.npz",
        "26900b0f6be45d9ddb7a402c9b2f956ceda42d23a8ca4cf4406b8bc1352823d1",
        49_097,
        9,
        _asinh_of_hundredths,
    ),
    "skin": Table("33_skin.npz", "d02aa01ffc1b6bf2b8b1ac250c90e8a8eacd0cefc962940ed5cc4bf5deac9c95", 245_057, 3),
    "yeast": Table("47_yeast.npz", "bbb15c873d78a4f6a589f46d0f75814595e2282d2ae7ce7779c750f276c3770d", 1_484, 8),
}


def read(name: str, data_dir: Path | None) -> DataSet:
    """One of the sets, by its name in ``TABLES``: inputs (n, columns), class 1 for anomalies.

    Guarantee: values go through data-independent maps only, and the sizes are those that ADBench publishes. ``note``
    says what ADBench may have done to the columns before publishing them.

    Raises:
        DataError: the file is absent and cannot be downloaded, is damaged, or is not the published one.
    """
    table = TABLES[name]
    source = files.Source(ADDRESS, {table.file: f"sha256:{table.sha256}"})
    return files.read("adbench", source, lambda folder: _data_set(name, table, folder / table.file), data_dir=data_dir)


def _data_set(name: str, table: Table, path: Path) -> DataSet:
    """The rows of a file, transformed, and split by a fixed shuffle."""
    rows, anomalies = files.read_npz(path, "X", "y")
    if rows.shape != (table.rows, table.columns) or anomalies.shape != (table.rows,):
        raise DataError(
            f"{path} holds rows of shape {rows.shape} and labels of shape {anomalies.shape}; ADBench publishes "
            f"{table.rows} rows of {table.columns} numbers: download it again"
        )
    inputs, targets = table.transform(rows.astype(np.float64)).astype(np.float32), anomalies.astype(np.int64)
    order = np.random.RandomState(0).permutation(table.rows)  # the same in every version of NumPy
    splits = [Split(inputs[chosen], targets[chosen]) for chosen in (order[: table.size], order[table.size :])]
    return DataSet(f"adbench-{name}", *splits, classes=2, declared_size=table.size, note=_NOTE)
