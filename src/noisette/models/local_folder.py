"""Folders of Hugging Face, as far as they are looked at without torch."""

from __future__ import annotations

import hashlib
from pathlib import Path


def is_folder_of_model(name: str) -> bool:
    """Whether this is a folder with the configuration of a model."""
    return (Path(name) / "config.json").is_file()


def sha256_of_weights(folder: Path) -> str:
    """The SHA-256 of all files of weights in a folder, in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
