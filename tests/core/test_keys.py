"""The keystream is ChaCha20, a pure function of its address, and its key stays secret."""

import copy
import os
import pickle
import struct
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from noisette.core.noise import SecretKey
from noisette.core.steps import seed_torch
from small_loop import square, take_steps
from small_loop import start as start_run

SECRET = bytes(range(32))
ADDRESS = {"purpose": "noise", "name": "weight", "step": 3}


def words(key: SecretKey, count: int = 64, **address: object) -> np.ndarray:
    out = np.empty(count, dtype=np.uint64)
    key.fill(out, **(ADDRESS | address))
    return out


def quarter_round(s: list[int], a: int, b: int, c: int, d: int) -> None:
    for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        s[x] = (s[x] + s[y]) & 0xFFFFFFFF
        s[z] ^= s[x]
        s[z] = (s[z] << turn | s[z] >> (32 - turn)) & 0xFFFFFFFF


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439, section 2.3."""
    start = [
        *struct.unpack("<4I", b"expand 32-byte k"),
        *struct.unpack("<8I", key),
        counter,
        *struct.unpack("<3I", nonce),
    ]
    s = list(start)
    for _ in range(10):
        for column in range(4):
            quarter_round(s, *range(column, 16, 4))
        for column in range(4):
            quarter_round(s, *(4 * row + (column + row) % 4 for row in range(4)))
    return struct.pack("<16I", *((x + y) & 0xFFFFFFFF for x, y in zip(s, start, strict=True)))


def test_block_of_the_standard() -> None:
    """RFC 8439, section 2.3.2: key 00..1f, counter 1, nonce 00000009 0000004a 00000000."""
    expected = bytes.fromhex(
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    nonce = bytes.fromhex("000000090000004a00000000")
    assert chacha20_block(SECRET, 1, nonce) == expected
    library = Cipher(ChaCha20(SECRET, (1).to_bytes(4, "little") + nonce), mode=None).encryptor()
    assert library.update(bytes(64)) == expected


@pytest.mark.parametrize("step", [0, 3, 2**40])
@pytest.mark.parametrize("start", [0, 1, 7, 8, 1001])
def test_fill_writes_the_blocks_of_its_address(step: int, start: int) -> None:
    key = SecretKey(SECRET)
    stream_key = key._derive("noise", "weight")
    blocks = b"".join(chacha20_block(stream_key, (start // 8) + k, step.to_bytes(12, "little")) for k in range(4))
    expected = np.frombuffer(blocks, dtype="<u8")[start % 8 :][:20]
    np.testing.assert_array_equal(words(key, 20, step=step, start=start), expected)


def test_threads_that_share_a_stream_get_its_words() -> None:
    key = SecretKey(SECRET)
    expected = {step: words(SecretKey(SECRET), 200_000, step=step) for step in range(4)}

    def fill(step: int) -> bool:
        return all(np.array_equal(words(key, 200_000, step=step), expected[step]) for _ in range(40))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(fill, expected))


def test_pieces_are_parts_of_the_whole() -> None:
    """Also across the place after which the zeros are used again."""
    key = SecretKey(SECRET)
    whole = words(key, 300_000)
    for start, count in ((0, 5), (3, 8), (17, 100_000), (131_000, 500), (299_999, 1)):
        np.testing.assert_array_equal(words(key, count, start=start), whole[start : start + count])


@pytest.mark.parametrize(
    "other", [{"purpose": "sampling"}, {"name": "bias"}, {"step": 4}, {"purpose": "noisew", "name": "eight"}]
)
def test_every_part_of_the_address_matters(other: dict) -> None:
    key = SecretKey(SECRET)
    assert not np.intersect1d(words(key, 1000), words(key, 1000, **other)).size


def test_keys_differ() -> None:
    assert not np.intersect1d(words(SecretKey(), 1000), words(SecretKey(), 1000)).size


def test_key_is_never_shown_or_copied() -> None:
    key = SecretKey(SECRET)
    assert repr(key) == str(key) == "SecretKey(hidden)"
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled"):
            leak(key)


def test_key_is_in_nothing_a_run_could_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noisette.ranks.launch.SecretKey", partial(SecretKey, SECRET))
    model = torch.nn.Linear(3, 1)
    run = start_run(model, torch.randn(9, 3), optimizer=torch.optim.Adam(model.parameters()), expected_batch_size=9)
    take_steps(run, square)
    kept = [pickle.dumps(thing) for thing in (model, model.state_dict(), run.optimizer.state_dict(), run.event)]
    kept += [repr(shown).encode() for shown in (run, vars(run), vars(run.ledger), vars(run._release))]
    for text in kept:
        assert SECRET not in text
        assert SECRET.hex().encode() not in text
        assert repr(SECRET).encode() not in text
    with pytest.raises((TypeError, AttributeError)):
        pickle.dumps(run)
    run.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_process_may_not_use_the_key() -> None:
    key, child = SecretKey(SECRET), os.fork()
    if not child:
        refused = 0
        for use in (lambda: words(key), lambda: key.stream_key(purpose="noise", name="a", end=1)):
            try:
                use()
            except RuntimeError:
                refused += 1
        os._exit(7 if refused == 2 else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_exhausted_counter_is_refused() -> None:
    key, last = SecretKey(SECRET), 8 * 2**32
    words(key, 8, start=last - 8)
    for start, count in ((last - 8, 9), (last - 1, 2), (last, 1)):
        with pytest.raises(RuntimeError, match="exhausted"):
            words(key, count, start=start)


def test_all_bits_of_a_long_seed_count() -> None:
    """``torch.manual_seed`` uses 32 bits on a processor, so few that others could try them."""
    states = []
    for seed in (7, 7 + 2**64, 7 + 2**200, 7 + 2**64):
        seed_torch(seed)
        states.append(torch.rand(4))
    assert torch.equal(states[1], states[3])
    assert len({tuple(state.tolist()) for state in states}) == 3
    torch.manual_seed(7)
    assert torch.equal(torch.rand(4), states[0]), "a short one is that of torch"
