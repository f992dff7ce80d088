"""Arrays in a mapped file: a process that loads records maps the file again instead of getting its content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class MappedFile:
    """Where an array lies in a file."""

    path: str
    offset: int  # in bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: Any) -> Self | Any:
        """Where this array lies, if it is mapped from a file and shows what is there; otherwise the array itself."""
        if not isinstance(array, np.memmap) or array.filename is None or array.mode == "c" or array.size == 0:
            return array
        if array.strides and min(array.strides) < 0:
            return array
        mapped: Any = getattr(array, "_mmap")  # noqa: B009 - what NumPy maps; views of the array share it
        if mapped is None:
            return array
        whole = np.frombuffer(mapped, dtype=np.uint8)
        begins = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        root: Any = array
        while isinstance(root.base, np.memmap):
            root = root.base
        in_root = root.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        array.flush()
        return cls(str(array.filename), root.offset + begins - in_root, array.dtype, array.shape, array.strides)

    def array(self) -> np.ndarray:
        """The array, mapped read-only."""
        reach = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)) + self.dtype.itemsize
        content = np.memmap(self.path, dtype=np.uint8, mode="r", offset=self.offset, shape=(reach,))
        return np.ndarray(self.shape, self.dtype, content, strides=self.strides)
