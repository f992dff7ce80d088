"""The built-in sets of images: digits, MNIST and similar sets, CIFAR-10, and images that are drawn."""

import gzip
import io
import math
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from noisette import errors as checks
from noisette.data import files
from noisette.data.dataset import DataError, DataSet, Split, unit_pixels
from noisette.data.files import BuiltIn

_NOT_COMPARABLE = "not comparable with published results"


def _idx_files(*stems: str) -> tuple[str, ...]:
    return tuple(f"{stem}-{kind}-ubyte.gz" for stem in stems for kind in ("images-idx3", "labels-idx1"))


def read_idx(zipped: bytes, *, dimensions: int, source: str) -> np.ndarray:
    """The bytes of a gzipped idx file, uint8, with ``dimensions`` axes; ``source`` names it in a ``DataError``.

    Memory use is bounded by what the file unzips to, whatever its header declares.
    """
    try:
        content = gzip.decompress(zipped)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{source} is not a valid gzip file ({error}); download it again") from error
    start = 4 + 4 * dimensions  # behind a magic number and the sizes
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) - start != math.prod(shape):
        raise DataError(f"{source} is no whole idx file of bytes with {dimensions} axes; download it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _idx_source(address: str, *checksums: str) -> files.Source:
    """Four idx files with the checksums of training images, training labels, test images and test labels."""
    return files.Source(address, dict(zip(_idx_files("train", "t10k"), checksums, strict=True)))


MNIST = _idx_source(  # a mirror of the original files; the original address is closed
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
FASHION_MNIST = _idx_source(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "md5:25c81989df183df01b3e8a0aad5dffbe",
    "md5:bef4ecab320f06d8554ea6380940ec79",
    "md5:bb300cfdad3c16e7a12a480ee83cd310",
)
KMNIST = _idx_source(
    "https://codh.rois.ac.jp/kmnist/dataset/kmnist/",
    "md5:bdb82020997e1d708af4cf47b453dcf7",
    "md5:e144d726b3acfaa3e44228e80efcd344",
    "md5:5c965bf0a639b31b8f53240b1b52f4d7",
    "md5:7320c461ea6c1c855c0b718fb2a4b134",
)
CIFAR10 = files.Source(  # the binary version: the "python" version is a pickle, which can run code when loaded
    "https://www.cs.toronto.edu/~kriz/", {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"}
)
JPEG = ("cifar10_train_jpegq75.npz", "cifar10_test_jpegq75.npz")
_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE  # the label, then the red, green and blue planes


def mnist(name: str, source: files.Source, data_dir: Path | None) -> DataSet:
    """MNIST, Fashion-MNIST or Kuzushiji-MNIST: 60,000 + 10,000, inputs (n, 1, 28, 28) in [0, 1], ten classes."""

    def read(folder: Path, train: str = "train", size: int = 60_000, note: str = "") -> DataSet:
        splits = []
        for stem in (train, "t10k"):
            images, labels = (
                read_idx((folder / file).read_bytes(), dimensions=dimensions, source=str(folder / file))
                for file, dimensions in zip(_idx_files(stem), (3, 1), strict=True)
            )
            splits.append(Split(unit_pixels(images), labels.astype(np.int64)))
        return DataSet(name, *splits, classes=10, declared_size=size, note=note)

    few = "train-first7011"
    note = f"trained on the first 7,011 of the 60,000 training images of Kuzushiji-MNIST: {_NOT_COMPARABLE}"
    copies = {_idx_files(few, "t10k"): partial(read, train=few, size=7_011, note=note)} if name == "kmnist" else {}
    return files.read(name, source, read, data_dir=data_dir, copies=copies)


def cifar10(data_dir: Path | None) -> DataSet:
    """CIFAR-10: 50,000 + 10,000 photographs of ten kinds of objects, inputs (n, 3, 32, 32) in [0, 1].

    A copy compressed as JPEG is sorted by class, so batches must be sampled from all of it, as Poisson sampling does.
    """

    def binary(folder: Path) -> DataSet:
        archive = folder / "cifar-10-binary.tar.gz"
        names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
        found = {Path(name).name: part for name, part in files.members(archive, lambda name: Path(name).name in names)}
        if wrong := [name for name in names if len(found.get(name, b"")) % _RECORD or not found.get(name)]:
            raise DataError(f"{archive} has no whole records in {', '.join(wrong)}; download it again")
        splits = (_records(b"".join(found[name] for name in part)) for part in (names[:-1], names[-1:]))
        return DataSet("cifar10", *splits, classes=10, declared_size=50_000)

    def jpeg(folder: Path) -> DataSet:
        note = f"CIFAR-10 recompressed as JPEG, which loses detail: {_NOT_COMPARABLE}"
        splits = (_decoded(folder / name) for name in JPEG)
        return DataSet("cifar10", *splits, classes=10, declared_size=50_000, note=note)

    return files.read("cifar10", CIFAR10, binary, data_dir=data_dir, copies={JPEG: jpeg})


def _records(content: bytes) -> Split:
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    planes = records[:, 1:].reshape(-1, 3, _SIDE, _SIDE)
    return Split(unit_pixels(np.moveaxis(planes, 1, 3)), records[:, 0].astype(np.int64))


def _decoded(path: Path) -> Split:
    """The examples of an NPZ of JPEG images: ``header`` is common to all, ``scans`` are cut at ``offsets``."""
    from PIL import Image

    header, scans, offsets, labels = files.read_npz(path, "header", "scans", "offsets", "labels")
    start, content = header.tobytes(), scans.tobytes()
    try:
        images = np.empty((len(offsets) - 1, _SIDE, _SIDE, 3), np.uint8)
        for index in range(len(images)):
            stream = start + content[offsets[index] : offsets[index + 1]]
            images[index] = np.asarray(Image.open(io.BytesIO(stream), formats=("JPEG",)))
        return Split(unit_pixels(images), labels.astype(np.int64))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); download it again") from error


def digits(data_dir: Path | None) -> DataSet:
    """Digits, inputs (n, 1, 8, 8) in [0, 1]; 1,437 examples for training and 360 for testing, from scikit-learn.

    The records are ordered by writer, so the split is a fixed shuffle, the same on every machine.
    """
    from sklearn.datasets import load_digits  # here, because importing it takes longer than reading MNIST

    images, labels = (np.asarray(array) for array in load_digits(return_X_y=True))
    inputs, targets = images.astype(np.float32).reshape(-1, 1, 8, 8) / np.float32(16), labels.astype(np.int64)
    order = np.random.RandomState(0).permutation(len(targets))  # the same in every version of NumPy
    test, train = (Split(inputs[rows], targets[rows]) for rows in (order[:360], order[360:]))
    return DataSet("digits", train, test, classes=10, declared_size=1437)


# Images of random processes: anyone can draw them again, so they are public and nobody's

TRAIN, TEST = 10_000, 1_000
KINDS = ("discs", "rectangles", "lying bars", "rising bars", "standing bars", "falling bars")
SIZES = {"small": (0.03, 0.15), "large": (0.12, 0.5)}  # the smallest and largest radius, in sides of the image
CLASSES = tuple(f"{size} {kind}" for size in SIZES for kind in KINDS)
_LEAVES = 48
_AT_ONCE = 500
_BAR = 0.2  # the width of a bar as a share of its length
_SMALLEST, _LARGEST = 0.03, 0.6  # radii, in sides of the image
_CHROMA = 0.12  # the deviation of a channel of a leaf from its brightness
_SHADE = 0.15  # the deviation of a slope of the brightness, over one side of the image
_BLUR = np.float32(0.15)  # the weight of each neighbour of a pixel, first above and below it, then left and right


def dead_leaves(images: int, seed: int, *, side: int = 32, channels: int = 3) -> Split:
    """Images (images, channels, side, side) in [0, 1], float32, and the classes of what is in them.

    Leaves fall one after another and hide what is below. Each has a uniform colour, a uniform place and a radius with
    a density in proportion to r^-3 within the bounds of its class: a size and a kind of leaves. ``seed`` is public.

    Guarantee: the images depend on these numbers alone, so there is no record to protect.
    Source: Lee, Mumford & Huang 2001, "Occlusion models for natural images"; for learning features Baradad et al. 2021,
    "Learning to see by looking at noise"; before private training Tang, Panda, Sehwag & Mittal 2023, "Differentially
    private image classification by learning priors from random processes".

    >>> split = dead_leaves(3, seed=0, side=8, channels=1)
    >>> split.inputs.shape, split.targets.shape
    ((3, 1, 8, 8), (3,))
    """
    checks.count(images=images, side=side, channels=channels)
    random = np.random.RandomState(seed)  # the same in every version of NumPy
    targets = random.randint(len(CLASSES), size=images)

    def draw(inputs: np.ndarray, first: int) -> None:
        count = len(inputs)
        sizes, kinds = np.divmod(targets[first : first + count], len(KINDS))
        low, high = np.array(list(SIZES.values()))[sizes].T * side

        def shape() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            angle = np.where(kinds < 2, random.uniform(size=count) * np.pi, (kinds - 2) * np.pi / 4)
            flat = np.where(kinds == 1, random.uniform(0.3, 1.0, size=count), np.where(kinds > 1, _BAR, 1.0))
            return angle, flat, kinds == 0

        _fall(inputs, random, (low, high), shape, lambda places: random.uniform(size=(count, channels, 1, 1)))

    return Split(_drawn((images, channels, side, side), draw), targets.astype(np.int64))


def shaded_leaves(images: int, seed: int, *, side: int = 32, channels: int = 3) -> np.ndarray:
    """Images (images, channels, side, side) in [0, 1], float32, closer to photographs than :func:`dead_leaves`.

    What differs is what makes photographs easy to compress: the channels of a colour differ little, and alike all over
    an image; the brightness of a leaf changes evenly along it; edges are soft.

    Source: Lee, Mumford & Huang 2001, "Occlusion models for natural images"; the colours and shades are noisette's own.
    """
    checks.count(images=images, side=side, channels=channels)
    random = np.random.RandomState(seed)

    def draw(inputs: np.ndarray, first: int) -> None:
        count = len(inputs)
        tint = _CHROMA * random.normal(size=(count, channels, 1, 1))  # of a whole image
        contrast = random.uniform(0.1, 0.5, size=(count, 1, 1, 1))
        middle = random.uniform(0.25, 0.75, size=(count, 1, 1, 1))

        def shape() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            angle, flat = random.uniform(size=count) * np.pi, random.uniform(0.15, 1.0, size=count)
            return -angle, flat, random.uniform(size=count) < 0.6  # the others are rectangles

        def paint(places: np.ndarray) -> np.ndarray:
            brightness = middle + contrast * random.uniform(-1, 1, size=(count, 1, 1, 1))
            colour = brightness + tint + _CHROMA * random.normal(size=(count, channels, 1, 1))
            slopes = _SHADE / side * random.normal(size=(2, count, 1, 1))
            return colour + (slopes * places).sum(0)[:, None]

        _fall(inputs, random, (_SMALLEST * side, _LARGEST * side), shape, paint)

    return _blurred(_drawn((images, channels, side, side), draw)).clip(0, 1)


def _drawn(shape: tuple[int, int, int, int], draw: Callable[[np.ndarray, int], None]) -> np.ndarray:
    """Images of this shape, of which ``draw`` fills in a part, and is told the number of its first image."""
    inputs = np.empty(shape, np.float32)
    for first in range(0, shape[0], _AT_ONCE):
        draw(inputs[first : first + _AT_ONCE], first)
    return inputs


def _fall(
    inputs: np.ndarray,
    random: np.random.RandomState,
    radii: tuple[Any, Any],  # the smallest and the largest one
    shape: Callable[[], tuple[np.ndarray, np.ndarray, np.ndarray]],  # angle, width / length, whether it is a disc
    paint: Callable[[np.ndarray], np.ndarray],  # colours at places along and across, (2, images or 1, side, side)
) -> None:
    """Paint the ground of each image, and over it leaves whose radii have a density in proportion to r^-3."""
    count, _, side, _ = inputs.shape
    low, high = radii
    y, x = np.mgrid[:side, :side].astype(np.float32) + 0.5
    inputs[:] = paint(np.stack([x, y])[:, None] - side / 2)
    for _ in range(_LEAVES):
        radius = (low**-2 - random.uniform(size=count) * (low**-2 - high**-2)) ** -0.5  # the inverse distribution
        across, down = random.uniform(size=(2, count)) * side
        angle, flat, disc = shape()
        across, down, cos, sin, half, thin = (
            values.astype(np.float32)[:, None, None]
            for values in (across, down, np.cos(angle), np.sin(angle), radius, radius * flat)
        )
        right, below = x - across, y - down
        along, apart = right * cos - below * sin, right * sin + below * cos
        u, v = along / half, apart / thin
        inside = np.where(disc[:, None, None], u**2 + v**2 < 1, (np.abs(u) < 1) & (np.abs(v) < 1))
        np.copyto(inputs, paint(2 * np.stack([along, apart])).astype(np.float32), where=inside[:, None])


def _blurred(inputs: np.ndarray) -> np.ndarray:
    for axis in (2, 3):
        border = [(1, 1) if axis == k else (0, 0) for k in range(4)]
        padded = np.pad(inputs, border, mode="edge")
        before, here, after = (np.take(padded, np.arange(k, k + inputs.shape[axis]), axis) for k in range(3))
        inputs = _BLUR * before + (1 - 2 * _BLUR) * here + _BLUR * after
    return inputs


def _leaves(name: str, draw: Callable[[int, int], Split], classes: int, data_dir: Path | None) -> DataSet:
    """10,000 + 1,000 drawn images."""
    note = "images of a random process: no record of anyone" + (", and all of one class" if classes == 1 else "")
    splits = [draw(n, seed) for seed, n in enumerate((TRAIN, TEST))]
    return DataSet(name, *splits, classes=classes, declared_size=TRAIN, note=note)


_GREY = partial(dead_leaves, side=28, channels=1)
IMAGES = {
    "digits": BuiltIn(digits, "handwritten digits, 8 x 8 pixels; installed with scikit-learn"),
    "mnist": BuiltIn(partial(mnist, "mnist", MNIST), "handwritten digits, 28 x 28 pixels"),
    "fashion-mnist": BuiltIn(partial(mnist, "fashion-mnist", FASHION_MNIST), "articles of clothing, 28 x 28 pixels"),
    "kmnist": BuiltIn(partial(mnist, "kmnist", KMNIST), "cursive Japanese characters, 28 x 28 pixels"),
    "cifar10": BuiltIn(cifar10, "colour photographs of ten kinds of objects, 32 x 32 pixels"),
    "dead-leaves-grey": BuiltIn(
        partial(_leaves, "dead-leaves-grey", _GREY, len(CLASSES)), "grey images of a random process, 28 x 28; drawn"
    ),
    "shaded-leaves": BuiltIn(
        partial(_leaves, "shaded-leaves", lambda n, seed: Split(shaded_leaves(n, seed), np.zeros(n, np.int64)), 1),
        "images of a random process in the colours of photographs, 32 x 32; drawn",
    ),
}
