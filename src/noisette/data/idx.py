"""The idx format of MNIST and similar sets: a magic number, the sizes as big-endian integers, then plain bytes."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from noisette.data.dataset import Split, unit_pixels
from noisette.data.errors import DataError

_CHUNK = 2**20


def file_names(*stems: str) -> tuple[str, ...]:
    """The gzipped files of splits with these stems: images and labels of each."""
    return tuple(f"{stem}-{kind}-ubyte.gz" for stem in stems for kind in ("images-idx3", "labels-idx1"))


def read_split(folder: Path, *, stem: str) -> Split:
    """The examples in the two files of a stem, inputs (n, 1, h, w) in [0, 1].

    Raises:
        DataError: as `parse`.
    """
    images, labels = (folder / name for name in file_names(stem))
    return Split(unit_pixels(read(images, dimensions=3)), read(labels, dimensions=1).astype(np.int64))


def read(path: Path, *, dimensions: int) -> np.ndarray:
    """The bytes of a gzipped idx file, uint8, with ``dimensions`` axes.

    Raises:
        DataError: as `parse`.
    """
    with path.open("rb") as stream:
        return parse(stream, dimensions=dimensions, source=str(path))


def parse(zipped: IO[bytes], *, dimensions: int, source: str) -> np.ndarray:
    """The bytes of a gzipped idx stream, uint8, with ``dimensions`` axes; ``source`` names it in errors.

    Memory use is bounded by the bytes in the stream, whatever sizes its header declares.

    Raises:
        DataError: the stream is not gzip or is damaged, has another magic number, or has fewer or more bytes than its
            header declares.
    """
    try:
        with gzip.GzipFile(fileobj=zipped) as stream:
            header = _up_to(4 + 4 * dimensions, stream)
            magic = bytes([0, 0, 8, dimensions])
            if header[:4] != magic:
                raise DataError(
                    f"{source} starts with {header[:4].hex() or 'nothing'}, expected {magic.hex()}: "
                    f"an idx file of bytes with {dimensions} axes; download it again"
                )
            if len(header) < 4 + 4 * dimensions:
                raise DataError(f"{source} ends inside its header; download it again")
            shape = tuple(int.from_bytes(header[i : i + 4], "big") for i in range(4, len(header), 4))
            expected = math.prod(shape)
            body = _up_to(expected + 1, stream)
    except (OSError, zlib.error) as error:
        raise DataError(f"{source} is not a valid gzip file ({error}); download it again") from error
    if len(body) != expected:
        found = f"{len(body)} were found" if len(body) < expected else "there are more"
        raise DataError(
            f"{source} should hold {expected} bytes after its header ({' x '.join(map(str, shape))}), "
            f"but {found}; download it again"
        )
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _up_to(size: int, stream: gzip.GzipFile) -> bytearray:
    """The next ``size`` bytes, or as many as there are if the stream ends before, or is truncated."""
    found = bytearray()
    try:
        while len(found) < size and (chunk := stream.read1(min(_CHUNK, size - len(found)))):
            found += chunk
    except EOFError:  # the gzip stream is truncated; the bytes before that point are returned
        pass
    return found
