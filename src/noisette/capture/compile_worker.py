"""The process that compiles one graph: it reads a request from its parent, and writes a file.

python -m noisette.capture.compile_worker FILE PARENT

It ends when its parent does, with all compilers that it has started.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # loads parts of torch that graphs need
from torch._inductor import config, standalone_compile

from noisette.capture.request import Request, unfinished_file


def compile_to(request: Request, file: Path) -> None:
    """Compile the graph and write it to a file, which is there as a whole or not at all."""
    module, inputs = request.read()
    settings: Any = config
    examples: Any = inputs
    # Random numbers are drawn by the same generator, in the same order, as without compiling. Inductor's choice of
    # layouts would copy every factor of a convolution to channels-last and back.
    with torch.no_grad(), settings.patch(fallback_random=True, layout_optimization=False):
        artifact = standalone_compile(module, examples)
    unfinished = unfinished_file(file, os.getpid())
    try:
        artifact.save(path=str(unfinished), format="binary")
        unfinished.chmod(0o600)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _end_with(parent: int, unfinished: Path) -> None:
    """Wait until the parent is gone, then end."""
    while os.getppid() == parent:
        time.sleep(1)
    unfinished.unlink(missing_ok=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _main(file: Path, parent: int) -> None:
    threading.Thread(target=_end_with, args=(parent, unfinished_file(file, os.getpid())), daemon=True).start()
    compile_to(Request(sys.stdin.read()), file)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
