"""The run folder: written under a temporary name, renamed when complete, sealed by digests, reopened. Without torch."""

import hashlib
import itertools
import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import pydantic

from noisette.accounting import Ledger, atomic_files
from noisette.accounting.ledger import LEDGER_FILE
from noisette.data import DataSet, Split
from noisette.data.columns import declared
from noisette.data.dataset import Target
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

CHECKPOINT = "checkpoint"
NAME = re.compile(r"(.+)\.unfinished-\d+")
_SAVED = "checkpoint.safetensors"  # written by noisette.run.checkpoint, whose import brings torch
_SETTINGS = "settings.json"
_RESUME = "noisette train --resume"
_FILES = {LEDGER_FILE, RUN_FILE, "card.md", *_SEALED, CHECKPOINT}


def can_continue(folder: Path) -> bool:
    """Whether the folder holds a checkpoint."""
    return (folder / CHECKPOINT / _SAVED).is_file()


def unfinished_runs(out: Path) -> list[Path]:
    """The folders of runs for this ``out`` that have not ended, and that hold a checkpoint or a ledger."""
    out = out.resolve()
    found = out.parent.iterdir() if out.parent.is_dir() else []
    named = {folder: NAME.fullmatch(folder.name) for folder in found}
    return sorted(
        folder
        for folder, name in named.items()
        if name and name[1] == out.name and (can_continue(folder) or (folder / LEDGER_FILE).is_file())
    )


def in_words(folder: Path) -> str:
    """What an unfinished run has left in its folder, and how to continue it."""
    place = shlex.quote(str(folder))
    if can_continue(folder):
        return f"{folder} has not ended: it is still trained, or was cut off. To continue it: {_RESUME} {place}"
    spent = f"What it spent is shown by: noisette ledger show {place}"
    return f"{folder} was cut off before its first checkpoint, so it cannot be continued. {spent}"


def check_folder(out: Path) -> None:
    """Check that files can be written into this folder, or that it can be made; a ``ValueError`` if not."""
    nearest = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise ValueError(f"{nearest} is not a folder that you can write to; choose another --out")


class RunFolder:
    """The folder of a run, see ``docs/reference/run-folder.md``. Use it in a ``with`` block around the training.

    An older run at ``out`` is kept as ``out.replaced-1``: its ledger may be about the same records. A block that ends
    without :meth:`complete` leaves nothing if no privacy was spent, and the ledger and the checkpoints otherwise.

    Raises:
        ValueError: ``out`` exists, and is not a run or holds other files too; or no folder can be made there.
    """

    def __init__(self, out: Path) -> None:
        self.out = out.resolve()
        self.replaced: Path | None = None  # where the older run is kept, once there is one
        self._making: Path | None = None
        self._resumed = self._whole = False
        if self.out.exists():
            _check_is_run(self.out, str(out))
        check_folder(self.out.parent)

    @classmethod
    def unfinished(cls, place: Path) -> Self:
        """The unfinished run with this folder or this ``out``, to continue it; a ``ValueError`` unless there is one."""
        place = place.resolve()
        named = NAME.fullmatch(place.name)
        folder, out = (place, place.with_name(named[1])) if named else (_only_one_unfinished(place), place)
        if not can_continue(folder):
            said = f" {in_words(folder)}" if (folder / LEDGER_FILE).is_file() else ""
            raise ValueError(f"{folder} holds no checkpoint to continue from; start a new run.{said}")
        run = cls(out)
        run._making, run._resumed = folder, True
        return run

    def __enter__(self) -> Self:
        self._parents = [parent for parent in self.out.parents if not parent.exists()]
        if self._making is None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._making = _fresh_sibling(self.out, "unfinished")
        return self

    @property
    def place(self) -> Path:
        """The folder under its present, temporary name."""
        assert self._making is not None, "used in a with block"
        return self._making

    @property
    def ledger(self) -> Path:
        return self.place / LEDGER_FILE

    @property
    def checkpoint(self) -> Path:
        return self.place / CHECKPOINT

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that :meth:`keep_settings` wrote; a ``ValueError`` if the file was truncated or altered."""
        path = self.checkpoint / _SETTINGS
        try:
            if path.exists() and not path.is_file():
                raise ValueError("it is a pipe or a device")
            return dict(json.loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} was cut or altered: {error}") from error

    def keep_settings(self, settings: Mapping[str, Any]) -> None:
        """Write the settings that the run begins with, which are plain values, for continuing it."""
        self.checkpoint.mkdir(mode=0o700)
        atomic_files.write(self.checkpoint / _SETTINGS, json.dumps(settings, indent=2).encode() + b"\n", mode=0o600)

    def complete(self, files: Mapping[str, bytes]) -> None:
        """Write these files and exchange the folders, or restore them on a failure."""
        for name, content in files.items():
            atomic_files.write(self.place / name, content)
        ended = _fresh_sibling(self.out, "ended")
        older = _fresh_sibling(self.out, "replaced") if self.out.exists() else None
        with ExitStack() as undo:
            undo.callback(lambda: [folder.rmdir() for folder in (ended, older) if folder and folder.exists()])

            def move(source: Path, target: Path) -> None:
                os.replace(source, target)
                undo.callback(os.replace, target, source)

            if older:
                move(self.out, older)
                _check_is_run(older, str(self.out))  # another process may have added files
            move(self.place, self.out)
            if (self.out / CHECKPOINT).exists():  # last, so that a crash keeps it
                move(self.out / CHECKPOINT, ended / CHECKPOINT)
            undo.pop_all()
        self._whole, self.replaced = True, older
        atomic_files.sync(self.out.parent)
        shutil.rmtree(ended)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._whole:
            return
        if not self._resumed:
            self._tidy()
        if error and self.place.exists():
            if self.ledger.exists():
                error.add_note(f"The privacy spent until then is recorded in {self.ledger}")
            if self.checkpoint.exists():
                error.add_note(f"To continue the run: {_RESUME} {shlex.quote(str(self.place))}")

    def _tidy(self) -> None:
        """Delete everything except the ledger and the checkpoints, and these too if no privacy was spent."""
        kept = {self.ledger, self.checkpoint} if self.ledger.is_file() and _spent(self.ledger) else set()
        for entry in set(self.place.iterdir()) - kept:
            shutil.rmtree(entry) if entry == self.checkpoint else entry.unlink()
        with suppress(OSError):  # not empty: the ledger stays
            for folder in (self.place, *self._parents):
                folder.rmdir()


def _check_is_run(folder: Path, name: str) -> None:
    if not folder.is_dir() or not (folder / "run.json").is_file():
        raise ValueError(f"{name} exists and is not a run; choose another --out, or move it away")
    if foreign := sorted({entry.name for entry in folder.iterdir()} - _FILES):
        other = f"{name} holds other files than those of a run, such as {foreign[0]}"
        raise ValueError(f"{other}; choose another --out, or move them")


def _only_one_unfinished(out: Path) -> Path:
    begun = unfinished_runs(out)
    found = [folder for folder in begun if can_continue(folder)] or begun
    if not found:
        finished = "it is finished" if (out / "run.json").is_file() else "there is no such run"
        raise ValueError(f"there is no unfinished run for {out}: {finished}")
    if len(found) > 1:
        raise ValueError(f"there are several unfinished runs for {out}; name one of {', '.join(map(str, found))}")
    return found[0]


def _fresh_sibling(out: Path, word: str) -> Path:
    for number in itertools.count(1):
        folder = out.with_name(f"{out.name}.{word}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("there is always another number")


def _spent(ledger: Path) -> bool:
    """Whether the ledger records steps; a ledger that cannot be read counts as one that does."""
    try:
        return ledger.stat().st_size > 0 and bool(Ledger.read(ledger).events)
    except (KeyError, TypeError, ValueError):
        return True


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
    kind, arguments = "private", "genpkey -algorithm ed25519 -out NEW.pem"
    if public:
        kind, arguments = "public", "pkey -in PRIVATE.pem -pubout -out PUBLIC.pem"
    raise ValueError(f"{path} holds no {kind} Ed25519 key in PEM without a password; make one: openssl {arguments}")


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
    if not path.is_file():  # a pipe would be waited for
        begun = [folder] if can_continue(folder) else unfinished_runs(folder)
        said = f"{folder} is not the folder of a finished run: it contains no {RUN_FILE}; give that of one"
        raise ValueError("\n".join([said, *map(in_words, begun)]))
    try:
        facts = json.loads(content := path.read_bytes())
    except (OSError, RecursionError, ValueError) as error:
        raise ValueError(f"{path} is truncated or altered: {error}") from error
    if not isinstance(facts, dict) or content != _text(facts).encode():  # a name twice is read in two ways
        raise ValueError(f"{path} is truncated or altered: expected a JSON object as it was written")
    if not isinstance(digests := facts.pop("sealed", None), dict):
        raise ValueError(f"{path} lacks 'sealed', the digests of the files, so it does not describe a finished run")
    signature = {"signature": facts.pop("signature")} if "signature" in facts else {}
    changed = [name for name in _SEALED if digests.get(name) != _digest(folder / name)]
    if digests.get(RUN_FILE) != hashlib.sha256(_text(facts).encode()).hexdigest():
        changed.append(RUN_FILE)
    head, ledger = str(facts.get("ledger_head") or ""), folder / LEDGER_FILE
    is_there = head and ledger.is_file() and head.encode() in ledger.read_bytes()  # no repair brings it back
    if facts.get("private") and not (is_there and Ledger.read(ledger).holds(head)):
        changed.append(f"{LEDGER_FILE} (lines are missing; what the run itself cost is in privacy.txt)")
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

    def records(self, number: int) -> DataSet:
        """So many records of zeros in the place of those of the run: their shape and its public numbers are known."""
        data = self.told_recipe.data
        inputs = np.zeros((number, *self.input_shape), np.int64 if self.words else np.float32)
        split = Split(inputs, np.zeros(number, np.float32 if data.target else np.int64))
        target = None if data.target is None else Target(*data.target, data.unit)
        return DataSet(self.data, split, None, self.classes, self.declared_size, "", self.words, target)

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
