"""The container, the recipe of conda and the release workflow agree with pyproject.toml and with the README."""

import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import noisette

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
# Where conda's packages have other names.
IN_CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def parsed(path: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def python_versions() -> list[str]:
    return [of[-4:] for of in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", of)]


def test_the_container_has_a_python_and_extras_of_the_project():
    arguments = dict(re.findall(r'^ARG (\w+)="?([^"\n]*)"?$', DOCKERFILE, re.MULTILINE))
    assert arguments["PYTHON"] in python_versions()
    assert set(arguments["EXTRAS"].split(",")) <= PROJECT["optional-dependencies"].keys()
    assert arguments["TORCH_INDEX"] == ""
    [entry] = re.findall(r'^ENTRYPOINT \["(.*)"\]$', DOCKERFILE, re.MULTILINE)
    assert entry in PROJECT["scripts"]
    assert f"--tag noisette:{noisette.__version__} ." in DOCKERFILE


def test_the_container_copies_files_that_its_context_has():
    _, *rules = (ROOT / ".dockerignore").read_text().split()
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()]
    assert sorted(copied) == sorted(rule[1:] for rule in rules if rule.startswith("!"))
    assert all((ROOT / name).exists() for name in copied)
    assert not any(fnmatch("src/noisette", rule) for rule in rules if not rule.startswith("!"))


def test_commands_of_the_container_are_of_its_shell(tmp_path):
    commands = re.findall(r"^RUN (.*)$", DOCKERFILE, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        subprocess.run(["sh", "-n"], input=command, text=True, check=True)
    [torch] = [command for command in commands if "^torch==" in command]
    (tmp_path / "constraints.txt").write_text((ROOT / "constraints.txt").read_text())
    said = torch.replace("pip", "echo", 1).replace("/build", str(tmp_path))
    for index, expected in {"": "", "ADDRESS": "--index-url ADDRESS "}.items():
        shown = subprocess.run(
            ["sh", "-c", said], env={"TORCH_INDEX": index, "PATH": "/bin:/usr/bin"}, capture_output=True
        )
        assert re.fullmatch(rf"install --no-cache-dir {expected}torch==[\d.]+\n", shown.stdout.decode())


def test_the_recipe_of_conda_needs_what_the_command_line_needs():
    recipe = parsed("packaging/conda/recipe.yaml")
    assert recipe["context"]["version"] == noisette.__version__
    both = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["cli"]
    needed = [re.fullmatch(r"([\w-]+)(.*)", of) for of in both]
    expected = {f"{IN_CONDA.get(of[1], of[1])} {of[2]}" for of in needed if of}
    python = {of for of in recipe["requirements"]["run"] if of.startswith("python ")}
    assert set(recipe["requirements"]["run"]) - python == expected
    assert set(python.pop().removeprefix("python ").split(",")) == set(PROJECT["requires-python"].split(","))
    assert recipe["build"]["python"]["entry_points"] == [f"{k} = {v}" for k, v in PROJECT["scripts"].items()]
    assert (recipe["about"]["summary"], recipe["about"]["license"]) == (PROJECT["description"], PROJECT["license"])
    assert (ROOT / "packaging/conda" / recipe["source"]["path"]).resolve() == ROOT


def test_a_release_is_tried_by_the_first_command_of_the_readme_before_it_is_published():
    workflow = parsed(".github/workflows/release.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # `on` is a truth value of YAML
    jobs = workflow["jobs"]
    assert [(name, job.get("needs")) for name, job in jobs.items()] == [
        ("build", None),
        ("try", "build"),
        ("publish", "try"),
    ]
    first = re.search(r"^(noisette train .*?)\s+#", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert first
    commands = [step["run"] for step in jobs["try"]["steps"] if "run" in step]
    assert (commands[-1], re.findall(r"\[(\w+)\]", commands[0])) == (first[1], ["cli"])
    assert not any("checkout" in step.get("uses", "") for step in jobs["try"]["steps"]), "the files alone are tried"
    assert jobs["try"]["strategy"]["matrix"]["python"] == python_versions()
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_commands_of_the_workflows_are_of_the_shell(path):
    jobs = parsed(str(path.relative_to(ROOT)))["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    for command in [re.sub(r"\$\{\{.*?\}\}", "x", command) for command in commands]:
        subprocess.run(["bash", "-n"], input=command, text=True, check=True)
