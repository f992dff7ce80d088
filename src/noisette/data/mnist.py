"""MNIST, Fashion-MNIST and Kuzushiji-MNIST: ten classes of 28 x 28 grey images in four idx files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from noisette.data import files, idx
from noisette.data.dataset import DataSet

MNIST = files.Source(  # a mirror of the original files; the original address is closed
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    {
        "train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
)
FASHION_MNIST = files.Source(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    {
        "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
    },
)
KMNIST = files.Source(
    "https://codh.rois.ac.jp/kmnist/dataset/kmnist/",
    {
        "train-images-idx3-ubyte.gz": "md5:bdb82020997e1d708af4cf47b453dcf7",
        "train-labels-idx1-ubyte.gz": "md5:e144d726b3acfaa3e44228e80efcd344",
        "t10k-images-idx3-ubyte.gz": "md5:5c965bf0a639b31b8f53240b1b52f4d7",
        "t10k-labels-idx1-ubyte.gz": "md5:7320c461ea6c1c855c0b718fb2a4b134",
    },
)
KMNIST_FIRST_7011 = idx.file_names("train-first7011", "t10k")


def mnist(data_dir: Path | None) -> DataSet:
    """MNIST, handwritten digits: 60,000 + 10,000, inputs (n, 1, 28, 28) in [0, 1]."""
    return files.read("mnist", MNIST, partial(_data_set, "mnist"), data_dir=data_dir)


def fashion_mnist(data_dir: Path | None) -> DataSet:
    """Fashion-MNIST, pieces of clothing: 60,000 + 10,000, inputs (n, 1, 28, 28) in [0, 1]."""
    return files.read("fashion-mnist", FASHION_MNIST, partial(_data_set, "fashion-mnist"), data_dir=data_dir)


def kmnist(data_dir: Path | None) -> DataSet:
    """Kuzushiji-MNIST, cursive characters: 60,000 + 10,000, or a copy with the first 7,011 of the training images.

    Inputs (n, 1, 28, 28) in [0, 1].
    """
    subset = partial(
        _data_set,
        "kmnist",
        train="train-first7011",
        size=7_011,
        note="trained on the first 7,011 of the 60,000 training images of Kuzushiji-MNIST: "
        "not comparable with published results",
    )
    whole = partial(_data_set, "kmnist")
    return files.read("kmnist", KMNIST, whole, data_dir=data_dir, copies={KMNIST_FIRST_7011: subset})


def _data_set(name: str, folder: Path, *, train: str = "train", size: int = 60_000, note: str = "") -> DataSet:
    splits = [idx.read_split(folder, stem=stem) for stem in (train, "t10k")]
    return DataSet(name, *splits, classes=10, declared_size=size, note=note)
