"""Compiles graphs with torch's inductor in a process of their own, and keeps the results for later runs.

Compiling takes 5 to 60 seconds on two cores. In a process of its own it does not hold up training, and its result is a
file that the next run of the same graph loads within a moment.

To load such a file is to run code. So the folder, made for its owner alone, and the file must belong to the user of
this process, and nobody else may write to them; otherwise nothing is loaded from there and nothing is compiled.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from weakref import WeakSet, finalize

import pooch
import torch
from torch import Tensor

from noisette.capture.graph import CaptureError, Graph, reason_of
from noisette.capture.request import Request, unfinished_file

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
        self.failure: str | None = why_not()
        try:
            self._request = Request.of(graph.module, [*graph.constants, *inputs])
        except CaptureError as error:
            self._request, self.failure = Request(""), str(error)
        self._file = _folder() / f"{_key(self._request)}.compiled"
        self._loaded: Compiled | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the object
        finalize(self, self._said.close)
        self._began = 0.0
        self.operations = graph.operations

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
        try:
            self._start(at_full_speed)
        except OSError as error:
            self._said.close()
            self.failure = f"the compiler cannot be started: {reason_of(error)}"

    def _start(self, at_full_speed: bool) -> None:
        _make_private(self._file.parent)
        if (problem := _why_distrusted(self._file.parent)) is not None:
            self.failure = problem
            return
        self._began = time.monotonic()
        _LOG.info("compiling a step of %d operations", self.operations)
        command = [sys.executable, "-m", "noisette.capture.compile_worker", str(self._file), str(os.getpid())]
        if not at_full_speed and shutil.which("nice"):
            command = ["nice", *command]
        paths = os.pathsep.join([os.path.abspath(path) for path in sys.path])
        with tempfile.TemporaryFile() as request:  # a pipe would hold up training until the process reads it
            request.write(self._request.text.encode())
            request.seek(0)
            self._process = subprocess.Popen(
                command,
                stdin=request,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env=os.environ | {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"},
                start_new_session=True,  # to be stopped together with the compilers that it starts
            )
        _RUNNING.add(self)
        finalize(self, _stop, self._process, self._file, os.getpid())

    def ready(self) -> Compiled | None:
        """The compiled function, called with constants and inputs; ``None`` while it is compiled, or if that failed."""
        if self._loaded is None and self.failure is None and self._is_done():
            self._load()
        return self._loaded

    def wait(self) -> Compiled | None:
        """The compiled function, once it is there; ``None`` if it cannot be compiled here."""
        if self._process is not None:
            try:
                self._process.wait()
            except BaseException:  # Ctrl-C
                self.cancel()
                raise
        return self.ready()

    def cancel(self) -> None:
        """Stop compiling."""
        if self._process is not None:
            _stop(self._process, self._file, os.getpid())

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

        problem = _why_distrusted(self._file.parent) or _why_distrusted(self._file)
        if problem is not None:
            self.failure = problem
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch's own code
                artifact: Any = CompiledArtifact.load(path=str(self._file))
        except Exception as error:  # an old or damaged file is compiled again
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
            if self._process is not None or self._file.exists():
                self.failure = f"the compiled graph cannot be loaded: {reason_of(error)}"
        else:
            self._loaded = artifact
            if self._process is not None:
                _LOG.info("compiled in %.0f seconds", self.seconds)


def _stop(process: subprocess.Popen[bytes], file: Path, owner: int) -> None:
    """Kill a compilation with all that it has started, and remove what it has written half."""
    if os.getpid() == owner and process.poll() is None:  # not in a forked copy of the process that waits for it
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        with suppress(OSError):
            unfinished_file(file, process.pid).unlink(missing_ok=True)


def _make_private(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)


def _why_distrusted(place: Path) -> str | None:
    """Why a folder or file may hold code of somebody else; ``None`` if it may not."""
    try:
        found = place.lstat()
    except OSError as error:
        return reason_of(error)
    kind_is_right = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    if not kind_is_right or found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{place} belongs to somebody else, or others may write to it, and compiled graphs are code"
    return None


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
