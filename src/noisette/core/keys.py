"""Secret random bits as a pure function of (key, purpose, name, step, position): a ChaCha20 keystream (RFC 8439).

It is the only source of noise and sampling, so no global seed reaches them. The same key gives the same bits on any
device, however the work is split.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

KEY_BYTES = 32
WORDS_PER_BLOCK = 8  # a block of the cipher holds 64 bytes
_MAX_BLOCK = 2**32  # its counter has 32 bits
_ZEROS = memoryview(bytes(2**20))  # the keystream is the encryption of zeros


class SecretKey:
    """Thirty-two secret bytes, fresh from the operating system unless given. Never printed, pickled or copied to disk.

    >>> SecretKey()
    SecretKey(hidden)
    """

    def __init__(self, secret: bytes | None = None) -> None:
        secret = os.urandom(KEY_BYTES) if secret is None else secret
        if len(secret) != KEY_BYTES:
            raise ValueError(f"expected a key of {KEY_BYTES} bytes, got {len(secret)}")
        self._secret = secret
        self._process = os.getpid()
        self._stream_key = lru_cache(maxsize=None)(self._derive)

    def __repr__(self) -> str:
        return "SecretKey(hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is never pickled or copied; each process makes its own")

    def _derive(self, purpose: str, name: str) -> bytes:
        """A key of its own for each stream, so that no two streams can ever share a counter."""
        label = f"{len(purpose)}:{purpose}{name}".encode()
        return hashlib.blake2b(label, key=self._secret, digest_size=KEY_BYTES, person=b"noisette").digest()

    def stream_key(self, *, purpose: str, name: str, end: int) -> bytes:
        """The key of one stream, for a device that computes its words up to this one itself, with the step as nonce.

        Raises:
            RuntimeError: as by :meth:`fill`.
        """
        if os.getpid() != self._process:
            raise RuntimeError("this key belongs to the process that made it: a forked copy would repeat its noise")
        if -(-end // WORDS_PER_BLOCK) > _MAX_BLOCK:
            raise RuntimeError(f"stream {purpose!r} of {name!r} is exhausted: over {_MAX_BLOCK} blocks in one step")
        return self._stream_key(purpose, name)

    def fill_each(self, parts: Iterable[tuple[np.ndarray, str, int]], *, purpose: str, step: int) -> None:
        """:meth:`fill` for several streams of a purpose: the words, the stream's name and the first word of each."""
        for words, name, start in parts:
            self.fill(words, purpose=purpose, name=name, step=step, start=start)

    def fill(self, words: np.ndarray, *, purpose: str, name: str, step: int, start: int = 0) -> None:
        """Write the words ``start, start + 1, ...`` of this stream's step into a contiguous uint64 array.

        Raises:
            RuntimeError: the process was forked after the key was made, or the stream's counter is exhausted.
        """
        first, skipped = divmod(start, WORDS_PER_BLOCK)
        secret = self.stream_key(purpose=purpose, name=name, end=start + words.size)
        counter_and_nonce = first.to_bytes(4, "little") + step.to_bytes(12, "little")
        encryptor = Cipher(ChaCha20(secret, counter_and_nonce), mode=None).encryptor()
        if skipped:
            encryptor.update(bytes(8 * skipped))
        stream = words.view(np.uint8).data
        for at in range(0, len(stream), len(_ZEROS)):
            part = stream[at : at + len(_ZEROS)]
            encryptor.update_into(_ZEROS[: len(part)], part)
