"""The public names are sorted and the same at run time, for type checkers and in ``dir``."""

import ast
import inspect
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import noisette

STUB = ast.parse(Path(noisette.__file__).with_suffix(".pyi").read_text())


def typed_names() -> dict[str, str]:
    imports = [node for node in STUB.body if isinstance(node, ast.ImportFrom) and node.module != "noisette"]
    assert all(alias.name in ("*", alias.asname) for node in imports for alias in node.names)
    return {
        name: node.module or ""
        for node in imports
        for alias in node.names
        for name in (import_module(node.module or "").__all__ if alias.name == "*" else [alias.name])
    }


def test_all_is_sorted_and_as_typed():
    assert list(noisette.__all__) == sorted(noisette.__all__)
    assert set(noisette.__all__) == set(typed_names())


@pytest.mark.parametrize(("name", "module"), typed_names().items())
def test_name_is_the_object_of_its_module_with_a_docstring_and_no_keyword_dictionary(name, module):
    thing = getattr(noisette, name)
    assert thing is getattr(import_module(module), name)
    assert name in dir(noisette)
    assert inspect.getdoc(thing)
    if inspect.isfunction(thing):
        assert inspect.Parameter.VAR_KEYWORD not in {p.kind for p in inspect.signature(thing).parameters.values()}


def test_folders_with_public_names_need_no_import_of_their_own(monkeypatch):
    for folder in ("data", "nn", "audit"):
        monkeypatch.delattr(noisette, folder, raising=False)  # as before the first import
        assert getattr(noisette, folder).__name__ == f"noisette.{folder}"


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'Opacus'"):
        noisette.Opacus  # noqa: B018


# What the extra `cli` brings is as if it were not installed.
_BARE = "import runpy, sys; sys.modules.update(dict.fromkeys(%r))"
_TRAINING = """
import torch, noisette
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = noisette.privatize(
    noisette.PerExampleClip(model, 1.0), optimizer, torch.rand(20, 4), ledger=sys.argv[1] + "/ledger.jsonl",
    sampling_rate=0.5, expected_batch_size=10, steps=3, epsilon=8.0, delta=1e-3,
)
with run:
    for batch in run.batches():
        for x in batch.microbatches(10):
            run.accumulate(lambda model, x: model(x).square().mean(), x)
        optimizer.step()
    run.save(sys.argv[1])
    print(run.epsilon(delta=1e-3) <= 8)
import noisette.integrations.lightning, noisette.integrations.opacus, noisette.integrations.transformers
for name in ("PrivateClassifier", "PrivatePCA", "data", "audit"):
    try:
        getattr(noisette, name)
    except ImportError as error:
        print(error)
"""


def _extra() -> list[str]:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    imported = {"pillow": "PIL", "scikit-learn": "sklearn"}
    found: list[str] = [requirement.partition(">")[0] for requirement in project["optional-dependencies"]["cli"]]
    return [imported.get(name, name) for name in found if name != "jinja2"]  # which torch needs


def _bare(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _BARE % _extra() + "\n" + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_training_needs_none_of_what_the_command_line_needs(tmp_path):
    done = _bare(_TRAINING, str(tmp_path))
    assert done.stdout.splitlines() == [
        "True",
        "noisette.PrivateClassifier needs sklearn: pip install 'noisette[cli]'",
        "noisette.PrivatePCA needs sklearn: pip install 'noisette[cli]'",
        "noisette.data needs pydantic: pip install 'noisette[cli]'",
        "noisette.audit needs pydantic: pip install 'noisette[cli]'",
    ], done.stderr[-2000:]


def test_the_command_without_its_extra_says_what_to_install():
    done = _bare("sys.argv = ['noisette', 'train']; runpy.run_module('noisette', run_name='__main__')")
    assert (done.returncode, done.stderr) == (
        1,
        "noisette: the command line needs typer: pip install 'noisette[cli]'\n",
    )
