"""Compiles graphs with torch's inductor in a process of their own, and keeps the results for later runs.

Compiling takes 5 to 60 seconds on two cores. In a process of its own it does not hold up training, and its result is a
file that the next run of the same graph loads within a moment.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet, finalize

import pooch
import torch
from torch import Tensor

from noisette.capture.graph import CaptureError, Graph, reason_of
from noisette.capture.request import Request

Compiled = Callable[..., Sequence[Tensor]]

_LOG = logging.getLogger("noisette.capture")
_RUNNING: WeakSet[Compilation] = WeakSet()


def why_not() -> str | None:
    """Why nothing can be compiled for a processor on this machine; ``None`` if it can."""
    if os.environ.get("NOISETTE_COMPILE") == "0":
        return "NOISETTE_COMPILE=0 is set"
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++")):
        return "there is no C++ compiler on this machine (g++ or clang++)"
    return None


def is_free() -> bool:
    """Whether no graph is being compiled: one at a time leaves processors for training."""
    return not any(compilation.is_running for compilation in _RUNNING)


class Compilation:
    """A graph that is being compiled, or was before.

    Args:
        graph: to be compiled.
        inputs: tensors of the shapes and types that it will be called with, after its constants.

    Attributes:
        failure: why there is no compiled function; ``None`` if there is one or may be one.
    """

    def __init__(self, graph: Graph, inputs: Sequence[Tensor]) -> None:
        self._request = Request.of(graph.module, [*graph.constants, *inputs])
        self._file = _folder() / f"{_key(self._request)}.compiled"
        self._loaded: Compiled | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self.operations = graph.operations
        self.failure: str | None = why_not()

    @property
    def was_kept(self) -> bool:
        """Whether an earlier run has compiled this graph."""
        return self._file.exists()

    @property
    def is_running(self) -> bool:
        """Whether it is being compiled now."""
        return self._process is not None and self._process.poll() is None

    @property
    def seconds(self) -> float:
        """How long it has been compiling."""
        return time.monotonic() - self._began

    def start(self, *, at_full_speed: bool = False) -> None:
        """Begin to compile; otherwise than at full speed, training goes before."""
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._began = time.monotonic()
        _LOG.info("compiling a step of %d operations", self.operations)
        _RUNNING.add(self)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the object
        finalize(self, self._said.close)
        command = [sys.executable, "-m", "noisette.capture.compile_worker", str(self._file)]
        if not at_full_speed and shutil.which("nice"):
            command = ["nice", *command]
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            env=os.environ | {"PYTHONPATH": paths},
        )
        assert self._process.stdin is not None
        with self._process.stdin as pipe:
            pipe.write(self._request.text.encode())

    def ready(self) -> Compiled | None:
        """The compiled function, called with constants and inputs; ``None`` while it is compiled, or if that failed."""
        if self._loaded is None and self.failure is None and self._is_done():
            self._load()
        return self._loaded

    def wait(self) -> Compiled:
        """The compiled function, once it is there.

        Raises:
            CaptureError: the graph cannot be compiled here.
        """
        if self._process is not None:
            self._process.wait()
        if (compiled := self.ready()) is None:
            raise CaptureError(self.failure or "the compiler gave no result")
        return compiled

    def cancel(self) -> None:
        """Stop compiling."""
        if self._process is not None and self.is_running:
            self._process.kill()
            self._process.wait()

    def _is_done(self) -> bool:
        if self._process is None:
            return self.was_kept
        status = self._process.poll()
        if status:
            self._said.seek(0)
            lines = self._said.read().decode(errors="replace").strip().splitlines()
            self.failure = f"the compiler failed: {lines[-1] if lines else f'exit status {status}'}"
        return status == 0

    def _load(self) -> None:
        from torch._inductor.standalone_compile import CompiledArtifact

        try:
            artifact: Any = CompiledArtifact.load(path=str(self._file))
        except Exception as error:  # an old or damaged file: compiled again in the next run
            self._file.unlink(missing_ok=True)
            self.failure = f"the compiled graph cannot be loaded: {reason_of(error)}"
        else:
            self._loaded = artifact
            if self._process is not None:
                _LOG.info("compiled in %.0f seconds", self.seconds)


@atexit.register
def _cancel_all() -> None:
    for compilation in list(_RUNNING):
        compilation.cancel()


def _folder() -> Path:
    """Where compiled graphs are kept between runs."""
    return Path(os.environ.get("NOISETTE_CACHE") or pooch.os_cache("noisette")) / "graphs"


def _key(request: Request) -> str:
    """What the compiled code depends on, as a name."""
    text = repr((request.text, torch.__version__, _processor()))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _processor() -> str:
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return f"{torch.backends.cpu.get_cpu_capability()} {accelerator}"
