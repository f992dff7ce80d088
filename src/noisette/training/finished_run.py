"""What a finished run folder says of itself: ``run.json``, checked, and the seal of its files. It imports no torch."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Self

import pydantic

from noisette.accounting import Ledger, atomic_files
from noisette.accounting.ledger import LEDGER_FILE
from noisette.data.columns import declared
from noisette.nn.models import names as model_names
from noisette.nn.models.backbones import PACKAGES
from noisette.training.recipe import Recipe

RUN_FILE, WEIGHTS_FILE = "run.json", "model.safetensors"
_SEALED = (WEIGHTS_FILE, "privacy.txt", "report.html")
_LARGEST = 2**28  # numbers of one example
_LEAST_LIMIT = 2**20  # on what is counted, where the file of weights is smaller
_LONGEST_NAME = 255
_LIST = pydantic.Strict(False)  # a list of JSON becomes a tuple
_Count = Annotated[int, pydantic.Field(gt=0, le=10**15)]
_Sizes = Annotated[tuple[_Count, ...], _LIST]
_Release = Annotated[tuple[Mapping[str, Any], _Count], _LIST]


def sealed(facts: Mapping[str, Any], files: Mapping[str, bytes]) -> str:
    """The text of ``run.json``: these facts, with the SHA-256 of themselves and of the other files."""
    contents = {**files, RUN_FILE: _text(facts).encode()}
    return _text({**facts, "sealed": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}})


def _text(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=2) + "\n"


def key_in(path: Path, *, public: bool = False) -> Any:
    """The Ed25519 key in a file, by which runs are signed, or verified; a ``ValueError`` if it holds another one."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    content = path.read_bytes()
    with suppress(ValueError, TypeError, UnsupportedAlgorithm):
        load = serialization.load_pem_private_key
        key = serialization.load_pem_public_key(content) if public else load(content, password=None)
        if isinstance(key, Ed25519PrivateKey | Ed25519PublicKey):
            return key
    commands = "openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out public.pem"
    kind = "public" if public else "private"
    raise ValueError(f"{path} holds no {kind} Ed25519 key in PEM without a password; make both by: {commands}")


def sign(folder: Path, key: Any) -> None:
    """Add the signature of the digests to ``run.json``."""
    content = json.loads((folder / RUN_FILE).read_bytes())
    content["signature"] = key.sign(_text(content["sealed"]).encode()).hex()
    atomic_files.write(folder / RUN_FILE, _text(content).encode())


def verify(folder: Path, public: Path) -> dict[str, Any]:
    """The facts of :func:`sealed_facts`; a ``ValueError`` too if the holder of this key did not sign them."""
    from cryptography.exceptions import InvalidSignature

    facts, key = sealed_facts(folder), key_in(public, public=True)
    content = json.loads((folder / RUN_FILE).read_bytes())
    try:
        key.verify(bytes.fromhex(content["signature"]), _text(content["sealed"]).encode())
    except (InvalidSignature, KeyError, TypeError, ValueError) as error:
        said = "the signature is of another key or another run" if "signature" in content else "the run is not signed"
        raise ValueError(f"{folder}: {said}; ask who trained the model for the run and the key") from error
    return facts


def signature_in_words(facts: Mapping[str, Any]) -> str:
    """Whether the run of these :func:`sealed_facts` is signed."""
    return "there; check it by: noisette ledger verify RUN --key PUBLIC.pem" if "signature" in facts else "none"


def sealed_facts(folder: Path) -> dict[str, Any]:
    """The content of ``run.json``, or a ``ValueError`` if it is none or a file was changed since the run ended.

    A ledger may have become longer: by what was charged later. Signatures are not verified.
    """
    path = folder / RUN_FILE
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        said = f"{folder} is not the folder of a finished run: it contains no {RUN_FILE}; give the folder of one"
        raise ValueError(said) from error
    except (OSError, RecursionError, ValueError) as error:
        raise ValueError(f"{path} is truncated or altered: {error}") from error
    if not isinstance(facts, dict):
        raise ValueError(f"{path} is truncated or altered: expected a JSON object")
    if not isinstance(digests := facts.pop("sealed", None), dict):
        raise ValueError(f"{path} lacks 'sealed', the digests of the files, so it does not describe a finished run")
    signature = {"signature": facts.pop("signature")} if "signature" in facts else {}
    changed = [name for name in _SEALED if digests.get(name) != _digest(folder / name)]
    if digests.get(RUN_FILE) != hashlib.sha256(_text(facts).encode()).hexdigest():
        changed.append(RUN_FILE)
    head, ledger = facts.get("ledger_head"), folder / LEDGER_FILE
    if facts.get("private") and (not head or not ledger.is_file() or not Ledger.read(ledger).holds(str(head))):
        changed.append(f"{LEDGER_FILE} (lines are missing)")
    if changed:
        raise ValueError(f"{folder} was changed after the run: {', '.join(changed)}; restore it from a copy")
    return facts | signature


def _digest(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@declared
class FinishedRun:
    """What a run folder says of a run: those of its facts that the model, the audit and the cost are computed from."""

    recipe: Mapping[str, Any]
    data: str
    declared_size: _Count
    input_shape: _Sizes
    word_vectors: _Sizes
    classes: _Count
    words: Annotated[int, pydantic.Field(ge=0)]
    features: Annotated[tuple[str, ...], _LIST]
    public_weights: str
    # of a run with privacy
    event: Mapping[str, Any] | None = None
    released: Annotated[tuple[_Release, ...], _LIST] = ()
    steps: Annotated[int, pydantic.Field(ge=0, le=10**15)] = 0
    epsilon: Annotated[float, pydantic.Field(ge=0)] = math.inf

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The run in this folder; a ``ValueError`` also if a fact is absent, of another type or out of proportion."""
        facts, path = sealed_facts(folder), folder / RUN_FILE
        known = {own.name: facts[own.name] for own in fields(cls) if own.name in facts}
        if missing := [own.name for own in fields(cls) if own.default is MISSING and own.name not in facts]:
            raise ValueError(f"{path} lacks {', '.join(map(repr, missing))}, so it does not describe a run")
        try:
            run = cls(**known)
            run._check_sizes((folder / WEIGHTS_FILE).stat().st_size)
        except (ArithmeticError, RecursionError, ValueError) as error:
            raise ValueError(f"{path} is altered: {error}") from error
        return run

    def _check_sizes(self, weights: int) -> None:
        """Check that the model needs memory in proportion to this size of its file, and that files have plain names."""
        recipe, image = self.told_recipe, self.told_recipe.data.image_size or ()
        most = max(weights, _LEAST_LIMIT)
        for name, count, limit in (
            ("classes", self.classes, most),
            ("words", self.words, most),
            ("word_vectors", math.prod(self.word_vectors), most),
            ("whitened", recipe.model.whitened, most),
            ("components", recipe.projection.components, most),
            ("tokens", recipe.data.tokens, most),
            ("input_shape", math.prod(self.input_shape), _LARGEST),
            ("image_size", math.prod(image), _LARGEST),
        ):
            if count > limit:
                raise ValueError(f"{name} is larger than the model in {WEIGHTS_FILE} can be made for")
        data, model = recipe.data, recipe.model
        for name in (data.name, data.test, model.weights, recipe.public.data, model.name, model.backbone):
            if name and (Path(name).name != name or "\0" in name or len(name) > _LONGEST_NAME):
                raise ValueError(f"expected the name of a file without its folder, got {name[:_LONGEST_NAME]!r}")

    @property
    def told_recipe(self) -> Recipe:
        return Recipe.of(self.recipe, RUN_FILE)

    def recipe_with(self, model: str | Path | None, folder: Path) -> Recipe:
        """The recipe of the run in this folder; ``model`` as for :meth:`SavedModel.of_run`, which the caller trusts."""
        recipe, given = self.told_recipe, None if model is None else str(model)
        name = recipe.model.name
        if ":" in name:
            if given != name:
                hint = f"if you trust it, give --model {name}" if given is None else f"{given!r} is another one"
                raise ValueError(f"the model of the run is code of its author, {name!r}, which would be run; {hint}")
            _import_elsewhere(name, folder)
        elif self.is_built_in:
            if given is not None:
                raise ValueError(f"the run has the built-in model {name!r}; leave --model out")
        elif given is None:
            began = recipe.model.backbone or name
            raise ValueError(f"the run began with the model in a folder {began!r}; give this folder with --model")
        elif not Path(given).is_dir():
            raise ValueError(f"{given} is not the folder of a model")
        began_with = "backbone" if recipe.model.backbone and ":" not in name else "name"
        return recipe if given is None else recipe.changed({"model": {began_with: given}}, "the run")

    @property
    def is_built_in(self) -> bool:
        """Whether the model needs neither code nor a folder of others."""
        model = self.told_recipe.model
        return model.name in model_names() and (model.backbone is None or model.backbone in PACKAGES)


def _import_elsewhere(name: str, folder: Path) -> None:
    """Import a module, so that later it is known, without searching it in this folder."""
    path, own = list(sys.path), folder.resolve()
    sys.path[:] = [place for place in path if not Path(place or ".").resolve().is_relative_to(own)]
    try:
        import_module(name.partition(":")[0])
    except (ImportError, ValueError) as error:
        raise ValueError(f"no model {name!r}: {error}; the folder of the run is not searched for it") from error
    finally:
        sys.path[:] = path
