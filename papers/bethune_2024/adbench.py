"""ADBench: tables of numbers in which some rows are anomalies, which the paper's tabular study classifies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noisette.data import DataError, DataSet, Split, files

_ADBENCH = (
    "https://raw.githubusercontent.com/Minqi824/ADBench/3dac8221081e190f157d78e93bfa8867f90d0965/"
    "adbench/datasets/Classical/"
)
_NOTE = (
    "ADBench publishes no split: 80 % of the rows, chosen by a fixed shuffle, are used for training; ADBench may have "
    "scaled columns by statistics of all rows before publishing them, which no accountant includes"
)


@dataclass(frozen=True)
class Anomalies:
    """One of ADBench's sets: its file and checksum, its rows and columns, and a data-independent map of its values."""

    file: str
    sha256: str
    rows: int
    columns: int
    transform: Callable[[np.ndarray], np.ndarray] = np.asarray

    @property
    def size(self) -> int:
        return self.rows * 4 // 5


# Square roots of histogram frequencies tell small ones apart. The inverse hyperbolic sine, for integers of up to five
# digits, is linear below about 100 and logarithmic above.
# fmt: off
ANOMALIES = {
    "aloi": Anomalies("1_ALOI.npz", "792d0b5bd1147bfc9574a1974f157b39fbd4cbed8ecd04cf983fd554498ed477",
                      49_534, 27, lambda rows: np.sqrt(np.clip(rows, 0, 1))),
    "campaign": Anomalies("5_campaign.npz", "74dd4d0072d6c6f1aabab63bc102f9633454f32bb936fa9bcfbd38f9f2386bcd",
                          41_188, 62),
    "celeba": Anomalies("8_celeba.npz", "1cadfdea14cd8d240eca715a70c09c88af8621d086a7478c63f602d97adef0b5",
                        202_599, 39),
    "donors": Anomalies("11_donors.npz", "5824ec854465f2763b4bfe3da1ae9f25ed5433b5c6e265d42e37da4f82a58679",
                        619_326, 10),
    "magic": Anomalies("22_magic.gamma.npz", "0be375984d7af9ea7a63b12206c240840d8b7daa3607021c5fb8756407dd86f1",
                       19_020, 10),
    "mammography": Anomalies("23_mammography.npz", "a0308ac9712d78321073b1c2dc98dc37665c0f35c1cc33019416fe8f8d7de7ea",
                             11_183, 6),
    "shuttle": Anomalies("32_shuttle.npz", "26900b0f6be45d9ddb7a402c9b2f956ceda42d23a8ca4cf4406b8bc1352823d1",
                         49_097, 9, lambda rows: np.arcsinh(rows / 100)),
    "skin": Anomalies("33_skin.npz", "d02aa01ffc1b6bf2b8b1ac250c90e8a8eacd0cefc962940ed5cc4bf5deac9c95", 245_057, 3),
    "yeast": Anomalies("47_yeast.npz", "bbb15c873d78a4f6a589f46d0f75814595e2282d2ae7ce7779c750f276c3770d", 1_484, 8),
}
# fmt: on


PREFIX = "adbench-"


def load(name: str, data_dir: Path | None) -> DataSet:
    """One of the sets, by its name in ``ANOMALIES`` behind ``PREFIX``: inputs (n, columns), class 1 for anomalies.

    Guarantee: values go through data-independent maps only, and the sizes are those that ADBench publishes.
    """
    known = ANOMALIES[name.removeprefix(PREFIX)]

    def read(folder: Path) -> DataSet:
        path = folder / known.file
        rows, anomalies = files.read_npz(path, "X", "y")
        if rows.shape != (known.rows, known.columns) or anomalies.shape != (known.rows,):
            raise DataError(
                f"{path} holds rows of shape {rows.shape} and labels of shape {anomalies.shape}; ADBench publishes "
                f"{known.rows} rows of {known.columns} numbers: download it again"
            )
        inputs, targets = known.transform(rows.astype(np.float64)).astype(np.float32), anomalies.astype(np.int64)
        order = np.random.RandomState(0).permutation(known.rows)  # the same in every version of NumPy
        splits = [Split(inputs[chosen], targets[chosen]) for chosen in (order[: known.size], order[known.size :])]
        return DataSet(name, *splits, classes=2, declared_size=known.size, note=_NOTE)

    return files.read(
        "adbench", files.Source(_ADBENCH, {known.file: f"sha256:{known.sha256}"}), read, data_dir=data_dir
    )
