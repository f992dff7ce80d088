"""Empty caches of compiled code, so that compiling takes as long as on a machine that never did it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory


@contextmanager
def empty_compile_caches(threads: int) -> Iterator[None]:
    """Within it, torch and noisette keep compiled code in a new folder, and compile with this many processes."""
    with TemporaryDirectory(prefix="noisette-bench-", ignore_cleanup_errors=True) as folder:
        places = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch"}
        with _environment({**places, "TORCHINDUCTOR_COMPILE_THREADS": str(threads)}):
            yield


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
