"""Features of public networks, which take long to compute, are kept on disk for later runs."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path

import pooch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from noisette.accounting.atomic_files import write

_KEY_BYTES = 32


def cached_features(
    network: nn.Module, inputs: Tensor, compute: Callable[[], Tensor], folder: Path | None = None
) -> Tensor:
    """The features (n, ...) of inputs (n, ...): those of an earlier call, or ``compute()``, which are then kept.

    A network is known by its printed form and its weights, inputs by their values. ``folder`` holds the files; it is
    ``noisette/features`` in the user's cache if left out.

    Guarantee: features of records are as private as the records. The owner alone can read the files (mode 600). Their
    names are digests with a secret key that lies beside them, so a name tells nothing about the records.
    """
    folder = folder or Path(pooch.os_cache("noisette")) / "features"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.blake2b(str(network).encode(), key=_key(folder / "key"), digest_size=16)
    for tensor in (*network.parameters(), *network.buffers(), inputs):
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    file = folder / f"{digest.hexdigest()}.safetensors"
    if not file.is_file():
        write(file, save({"features": compute().cpu()}), mode=0o600)
    return load_file(file)["features"]


def _key(file: Path) -> bytes:
    """The secret key of the names, made on first use."""
    if not file.is_file():
        write(file, secrets.token_bytes(_KEY_BYTES), mode=0o600)
    return file.read_bytes()
