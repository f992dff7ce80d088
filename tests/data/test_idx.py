from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Callable

import numpy as np
import pytest

from noisette.data import DataError
from noisette.data.built_in_images import read_idx

Idx = Callable[[np.ndarray], bytes]


def read(content: bytes, dimensions: int) -> np.ndarray:
    return read_idx(io.BytesIO(content), dimensions=dimensions, source="some-idx3-ubyte.gz")


def test_reads_what_was_written(idx_of: Idx) -> None:
    array = np.random.default_rng(0).integers(0, 256, (7, 3, 5))
    found = read(idx_of(array), 3)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, array)


def test_no_records_are_an_empty_array(idx_of: Idx) -> None:
    assert read(idx_of(np.zeros((0, 3, 5))), 3).shape == (0, 3, 5)


def test_fewer_bytes_than_declared_states_both() -> None:
    content = gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 10, 4, 4) + bytes(100))
    with pytest.raises(DataError, match=r"some-idx3-ubyte.gz should hold 160 bytes .*10 x 4 x 4.* 100 were found"):
        read(content, 3)


def test_a_truncated_gzip_stream_states_both(idx_of: Idx) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (100, 28, 28))
    content = idx_of(noise)
    with pytest.raises(DataError, match=r"should hold 78400 bytes .* but \d+ were found") as caught:
        read(content[: len(content) // 2], 3)
    found = int(str(caught.value).split(" but ")[1].split()[0])
    assert 30_000 < found < 40_000  # noise does not compress: half the stream is about half the bytes


def test_more_bytes_than_declared() -> None:
    content = gzip.compress(bytes([0, 0, 8, 1]) + struct.pack(">I", 10) + bytes(11))
    with pytest.raises(DataError, match=r"should hold 10 bytes .* but there are more"):
        read(content, 1)


def test_a_huge_declared_size_takes_no_memory() -> None:
    content = gzip.compress(bytes([0, 0, 8, 3]) + b"\xff" * 12 + bytes(100))
    with pytest.raises(DataError, match=r"should hold 79228162458924105385300197375 bytes .* but 100 were found"):
        read(content, 3)


def test_wrong_magic(idx_of: Idx) -> None:
    with pytest.raises(DataError, match="starts with 00000801, expected 00000803"):
        read(idx_of(np.zeros(5)), 3)


def test_truncated_header() -> None:
    with pytest.raises(DataError, match="ends inside its header"):
        read(gzip.compress(bytes([0, 0, 8, 3, 0, 0])), 3)


def test_empty_stream() -> None:
    with pytest.raises(DataError, match="starts with nothing"):
        read(gzip.compress(b""), 1)


@pytest.mark.parametrize("content", [b"not gzip at all", b"<html>404</html>"])
def test_not_gzip(content: bytes) -> None:
    with pytest.raises(DataError, match="not a valid gzip file"):
        read(content, 1)


def test_a_flipped_bit_is_noticed(idx_of: Idx) -> None:
    content = bytearray(idx_of(np.zeros((10, 28, 28))))
    content[-6] ^= 1  # in the checksum which ends the stream
    with pytest.raises(DataError, match="not a valid gzip file"):
        read(bytes(content), 3)
