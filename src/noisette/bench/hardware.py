"""What a measurement was made on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("torch", "opacus", "numpy", "noisette")


def hardware(threads: int, device: str = "cpu") -> dict[str, Any]:
    """Processor, device, threads and versions, as they stand in a result file."""
    return {
        "processor": _processor(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": threads,
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
