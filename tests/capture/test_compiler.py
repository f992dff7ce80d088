"""A graph is compiled in a process of its own; whatever happens to that process, or to its file, harms nothing."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor

from noisette.capture.compiler import Compilation, is_free, why_not
from noisette.capture.graph import Graph, trace

pytestmark = pytest.mark.skipif(why_not() is not None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOISETTE_CACHE", str(tmp_path))
    return tmp_path / "graphs"


def small_graph(factor: float = 2.0) -> tuple[Graph, list[Tensor]]:
    weight, x = torch.randn(3), torch.randn(4, 3)
    return trace(lambda x: [(x * weight * factor).sum(0)], [x]), [x]


def replaced_worker(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A process that does this instead of compiling."""
    popen = subprocess.Popen

    def start(command: list[str], **given: object) -> subprocess.Popen[bytes]:
        at = command.index("-m")
        return popen([*command[:at], "-c", script, *command[at + 2 :]], **given)  # type: ignore[call-overload]

    monkeypatch.setattr("noisette.capture.compiler.subprocess.Popen", start)


SLEEPS = (
    "import sys, time, os, pathlib; pathlib.Path(sys.argv[1]).with_suffix(f'.{os.getpid()}').touch(); time.sleep(60)"
)


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def process_of(compilation: Compilation) -> int:
    assert compilation._process is not None
    return compilation._process.pid


@pytest.mark.slow
def test_compiled_once_and_loaded_by_the_next_run(cache: Path) -> None:
    graph, [x] = small_graph()
    first = Compilation(graph, [x])
    assert first.ready() is None
    assert not first.was_kept
    first.start(at_full_speed=True)
    compiled = first.wait()
    assert compiled is not None, first.failure
    weight = torch.randn(3)  # another than in the trace
    torch.testing.assert_close(compiled(weight, x)[0], (x * weight * 2).sum(0))
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    [file] = cache.iterdir()
    assert file.suffix == ".compiled"
    again = Compilation(graph, [x])
    assert again.was_kept
    assert again.ready() is not None
    assert not Compilation(small_graph(3.0)[0], [x]).was_kept
    damaged = file.read_bytes()
    file.write_bytes(damaged[: len(damaged) // 2])
    third = Compilation(graph, [x])
    assert third.ready() is None
    assert third.failure is None, "it is compiled again"
    assert not file.exists()


@pytest.mark.parametrize("change", [lambda patch: patch.setattr(torch, "__version__", "1.0"),
                                    lambda patch: patch.setattr(torch, "get_num_threads", lambda: 33)])  # fmt: skip
def test_other_versions_and_numbers_of_threads_have_files_of_their_own(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    graph, inputs = small_graph()
    cache.mkdir(mode=0o700)
    Compilation(graph, inputs)._file.touch()
    assert Compilation(graph, inputs).was_kept
    change(monkeypatch)
    assert not Compilation(graph, inputs).was_kept


@pytest.mark.parametrize(
    ("script", "said"),
    [("raise ValueError('no room')", "ValueError: no room"), ("import os; os.kill(os.getpid(), 9)", "exit status -9")],
)
def test_a_process_that_fails_is_told_in_words(
    script: str, said: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    replaced_worker(monkeypatch, script)
    compilation = Compilation(*small_graph())
    compilation.start(at_full_speed=True)
    assert compilation.wait() is None
    assert compilation.failure is not None
    assert said in compilation.failure
    assert list(cache.iterdir()) == []
    assert is_free()


def test_a_folder_that_cannot_be_written_is_told_in_words(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = cache.parent / "file"
    blocked.touch()
    monkeypatch.setenv("NOISETTE_CACHE", str(blocked))
    compilation = Compilation(*small_graph())
    compilation.start()
    assert compilation.wait() is None
    assert compilation.failure is not None
    assert compilation.failure.startswith("the compiler cannot be started: ")


def test_a_process_that_cannot_be_started_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("out of memory")

    monkeypatch.setattr("noisette.capture.compiler.subprocess.Popen", fails)
    compilation = Compilation(*small_graph())
    compilation.start()
    assert compilation.failure == "the compiler cannot be started: OSError: out of memory"


def folder_of_others(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)


def folder_others_may_write_to(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.chmod(0o777)


def file_others_may_write_to(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in cache.iterdir():
        file.chmod(0o666)


def linked_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in list(cache.iterdir()):
        file.rename(cache.parent / "elsewhere")
        file.symlink_to(cache.parent / "elsewhere")


@pytest.mark.parametrize(
    "change", [folder_of_others, folder_others_may_write_to, file_others_may_write_to, linked_file]
)
def test_code_of_somebody_else_is_never_loaded(
    change: Callable[[Path, pytest.MonkeyPatch], None], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(**_: object) -> None:
        pytest.fail("it was loaded")

    standalone = import_module("torch._inductor.standalone_compile")  # torch._inductor has a function of this name
    monkeypatch.setattr(standalone.CompiledArtifact, "load", load)
    graph, inputs = small_graph()
    cache.mkdir(mode=0o700)
    file = Compilation(graph, inputs)._file
    file.touch(mode=0o600)
    change(cache, monkeypatch)
    compilation = Compilation(graph, inputs)
    assert compilation.ready() is None
    assert compilation.failure is not None
    assert "compiled graphs are code" in compilation.failure


def test_nothing_is_compiled_into_a_folder_of_others(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    compilation = Compilation(*small_graph())
    compilation.start()
    assert compilation._process is None
    assert compilation.failure is not None


def test_ctrl_c_while_it_waits_leaves_neither_a_process_nor_half_a_file(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    replaced_worker(monkeypatch, SLEEPS)
    compilation = Compilation(*small_graph())
    compilation.start()
    wait_for(lambda: any(cache.iterdir()))
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(KeyboardInterrupt):
        compilation.wait()
    assert not is_alive(process_of(compilation))
    assert list(cache.iterdir()) == []


def test_a_compilation_that_nobody_holds_is_stopped(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    replaced_worker(monkeypatch, SLEEPS)
    compilation = Compilation(*small_graph())
    compilation.start()
    process = process_of(compilation)
    wait_for(lambda: any(cache.iterdir()))
    assert not is_free()
    del compilation
    assert not is_alive(process)
    assert is_free()
    assert list(cache.iterdir()) == []


def test_compilers_that_the_process_has_started_are_stopped(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    inner = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '61']); "
        "open(sys.argv[1], 'w').write(str(p.pid)); p.wait()"
    )
    replaced_worker(monkeypatch, inner)
    compilation = Compilation(*small_graph())
    compilation.start()
    wait_for(lambda: any(file.stat().st_size for file in cache.iterdir()))
    child = int(next(cache.iterdir()).read_text())
    compilation.cancel()
    wait_for(lambda: not is_alive(child))


PARENT = '''
import os, sys, time
from noisette.capture.compiler import Compilation
import subprocess, torch
from noisette.capture.graph import trace
popen = subprocess.Popen
import noisette.capture.compiler as compiler
x = torch.randn(4, 3)
work = """
import pathlib, sys, time
import noisette.capture.compile_worker as worker
worker.compile_to = lambda *_: time.sleep(60)
worker._main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
"""
compiler.subprocess.Popen = lambda command, **given: popen([command[-5], "-c", work, *command[-2:]], **given)
compilation = Compilation(trace(lambda x: [x.sum(0)], [x]), [x])
compilation.start()
print(compilation._process.pid, flush=True)
time.sleep(60)
'''


@pytest.mark.slow
def test_a_parent_that_is_killed_leaves_no_process() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        time.sleep(4)
        assert is_alive(process)
        parent.kill()
    wait_for(lambda: not is_alive(process))


@pytest.mark.slow
def test_two_processes_compile_the_same_graph_at_once(cache: Path) -> None:
    graph, inputs = small_graph()
    both = [Compilation(graph, inputs), Compilation(graph, inputs)]
    for compilation in both:
        compilation.start()
    assert [(compilation.wait() is not None, compilation.failure) for compilation in both] == [(True, None)] * 2
    assert len(list(cache.iterdir())) == 1


@pytest.mark.slow
def test_no_compiler_is_told_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    compilation = Compilation(*small_graph())
    assert compilation.failure == "there is no C++ compiler on this machine (g++ or clang++)"


def test_an_operation_that_cannot_be_written_down_is_told_in_words() -> None:
    x = torch.randn(4)
    compilation = Compilation(trace(lambda x: [x * 2j], [x]), [x])
    compilation.start()
    assert compilation.wait() is None
    assert compilation.failure == "the compiler cannot be given a complex"


def test_no_value_of_a_tensor_is_sent() -> None:
    secret, x = torch.tensor([1234.5678]), torch.tensor([8765.4321])
    compilation = Compilation(trace(lambda x: [x * secret], [x]), [x])
    assert "1234" not in compilation._request.text
    assert "8765" not in compilation._request.text
