"""The idx format of MNIST and its kin: a magic number, the sizes as big-endian words, then plain bytes."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from noisette.data import pixels
from noisette.data.dataset import Split
from noisette.data.errors import DataError

_CHUNK = 2**20


def read_split(folder: Path, *, stem: str) -> Split:
    """The examples in ``stem-images-idx3-ubyte.gz`` and ``stem-labels-idx1-ubyte.gz``, inputs (n, 1, h, w) in [0, 1].

    Raises:
        DataError: as `parse`.
    """
    return Split(
        pixels.unit(read(folder / f"{stem}-images-idx3-ubyte.gz", dimensions=3)),
        read(folder / f"{stem}-labels-idx1-ubyte.gz", dimensions=1).astype(np.int64),
    )


def read(path: Path, *, dimensions: int) -> np.ndarray:
    """The bytes of a gzipped idx file, uint8, with ``dimensions`` axes.

    Raises:
        DataError: as `parse`.
    """
    with path.open("rb") as stream:
        return parse(stream, dimensions=dimensions, source=str(path))


def parse(zipped: IO[bytes], *, dimensions: int, source: str) -> np.ndarray:
    """The bytes of a gzipped idx stream, uint8, with ``dimensions`` axes; ``source`` names it in errors.

    No more memory is taken than the stream has bytes for, whatever sizes it declares.

    Raises:
        DataError: not gzip or damaged; another magic number; fewer or more bytes than the sizes ask for.
    """
    try:
        with gzip.GzipFile(fileobj=zipped) as stream:
            header = _up_to(4 + 4 * dimensions, stream)
            magic = bytes([0, 0, 8, dimensions])
            if header[:4] != magic:
                raise DataError(
                    f"{source} starts with {header[:4].hex() or 'nothing'}, expected {magic.hex()}: "
                    f"an idx file of bytes with {dimensions} axes; get it anew"
                )
            if len(header) < 4 + 4 * dimensions:
                raise DataError(f"{source} ends inside its header; get it anew")
            shape = tuple(int.from_bytes(header[i : i + 4], "big") for i in range(4, len(header), 4))
            expected = math.prod(shape)
            body = _up_to(expected + 1, stream)
    except (OSError, zlib.error) as error:
        raise DataError(f"{source} is not a sound gzip file ({error}); get it anew") from error
    if len(body) != expected:
        found = f"{len(body)} were found" if len(body) < expected else "there are more"
        raise DataError(
            f"{source} should hold {expected} bytes after its header ({' x '.join(map(str, shape))}), "
            f"but {found}; get it anew"
        )
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _up_to(size: int, stream: gzip.GzipFile) -> bytearray:
    """``size`` bytes, or the fewer that there are, be the stream short or cut off."""
    found = bytearray()
    try:
        while len(found) < size and (chunk := stream.read1(min(_CHUNK, size - len(found)))):
            found += chunk
    except EOFError:  # the gzip stream is cut off: what came before it counts
        pass
    return found
