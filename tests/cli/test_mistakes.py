"""Several mistakes are named at once: those of options, recipes, schemas, files and arguments."""

import numpy as np
import pytest
import torch

from command_line import noisette, refusal, tree
from noisette import PerExampleClip, PrivacyError, privatize
from noisette.integrations.scikit_learn import PrivateClassifier, PrivateRegressor

SCHEMA = 'label = "label"\nclasses = ["no", "yes"]\nsize = 60\n[columns.age]\nkind = "number"\nlow = 0\nhigh = 100\n'
FILES = {
    "rows.csv": "age,label\n" + "20,no\n30,yes\n" * 30,
    "bad.csv": "age,label\n20,no\n,yes\n",
    "known.toml": SCHEMA,
    "broken.toml": "classes = [",
    "wrong.toml": 'name = "x"\n'
    + SCHEMA.replace("low = 0", "low = 200").replace("size", "sise")
    + "[columns.b]\nkind = 1",
    "recipe.toml": '[privacy]\nclipping = "flatt"\nepsilom = 1\n[trainng]\nlr = 1\n[training]\nepochs = "many"\n',
    "small.toml": SCHEMA.replace("60", "-4"),
    "plain.toml": '[data]\nname = "digits"\n',
    "file": "",
}
OWN = "train --columns known.toml --data"
COMMANDS = {
    "train --seed x --lr y": ("seed", "'x'", "lr", "'y'"),
    "train --seed x --epsilon -1": ("'x'", "epsilon=-1"),
    "train --holdout 1.5 --epsilon nan": ("holdout=1.5", "epsilon=nan"),
    "train --class-weights no=1,no=2 --delta 2": ("'no=1,no=2'", "delta=2"),
    "train --data nothere.csv --epsilon -1 --columns broken.toml": ("nothere.csv", "epsilon=-1", "broken.toml"),
    "train --data rows.csv --columns wrong.toml --lr -1": (
        *("name is given on the command line", "mean 'size'", "columns: 2 problems", "low < high", "'b'", "lr=-1"),
    ),
    "train --data rows.csv --columns broken.toml --batch-norm public": ("broken.toml", "name their set"),
    f"{OWN} bad.csv --class-weights no=1,ja=2 --delta 0.5": ("'ja' is no class", "delta=0.5"),
    "train --data rows.csv --columns small.toml --delta 2": ("size: expected at least 1, got -4", "delta=2"),
    f"{OWN} bad.csv --batch-size 99 --model os:sep": ("99 exceeds the declared size of 60", "os:sep is of type str"),
    f"{OWN} bad.csv --epsilon 0 --batch-size 0": ("epsilon=0", "batch_size=0"),
    f"{OWN} bad.csv --test bad.csv": ("bad.csv", "in row 3"),
    "train recipe.toml --epochs z --model nope": (
        *("4 problems", "'flatt'", "mean 'epsilon'", "mean 'training'", "epochs = 'many'", "'z'", "no model 'nope'"),
    ),
    "train nothere.toml --epsilon -1": ("nothere.toml", "epsilon=-1"),
    "train --out file --epsilon -1": ("file exists and is not a run", "epsilon=-1"),
    "train --without-privacy --epsilon 1 --batches cyclic --bands 4": ("leave out --epsilon", "batches are Poisson"),
    "train --sign nokey.pem --epsilon -1": ("nokey.pem", "epsilon=-1"),
    "train --target 1,x --epochs 0 --data rows.csv": ("'1,x'", "epochs=0"),
    "train --image-size 16 --seed 1.5": ("'16'", "seed = 1.5"),
    "train --users id --lr nan": ("records_per_user", "lr=nan"),
    f"{OWN} rows.csv --batches truncated --batch-size 1000000": ("largest_batch", "1000000"),
    f"{OWN} rows.csv --test nothere.csv --epsilon -1": ("nothere.csv", "epsilon=-1"),
    f"{OWN} rows.csv --label lable --delta 2": ("'lable'", "delta=2"),
    "train --resume nowhere --epsilon 1": ("leave out --epsilon", "no unfinished run"),
    "train --resume nowhere --sign nokey.pem": ("nokey.pem", "no unfinished run"),
    "curve --epsilon 1,-3 --lr x": ("'1,-3'", "'x'"),
    "curve --epsilon 1,1 --data digitz": ("'1,1'", "'digitz'"),
    "curve --resume here --epochs none": ("leave out --resume", "'none'"),
    "search nothere.toml --over lr=log(0,1) --score-on nowhere": ("nothere.toml", "'nowhere'"),
    "search plain.toml --over lr=log(0,1) --score-on public-set --epsilon x": ("above 0", "'x'"),
    "search plain.toml --score-on test --over lr=log(1,2) --runs 0": ("--score-on to be one of", "--runs from 1"),
    "search recipe.toml --over nothing=1 --score-on held-out --holdout 2": ("'flatt'", "nothing", "holdout=2"),
    "account --epsilon x --delta 2 --steps 10 --sampling-rate 0.1": ("'x'", "delta=2"),
    "account --sampling-rate 2 --steps 1.5 --noise 1 --delta 1": ("sampling_rate=2", "steps=1.5", "delta=1"),
    "account --accountant other --steps -3 --noise 0": ("'other' is not one of pld", "steps", "noise"),
    "calibrate --group-size 200000 --epsilon -1 --delta 1e-5 --sampling-rate .1 --steps 10": ("200000", "epsilon=-1"),
    "plan --size 1000 --epsilon -1": ("delta", "epsilon=-1"),
    "plan --size x --epsilon 3 --delta 2 --batch-sizes a": ("'x'", "delta=2", "'a'"),
    "plan --size 100 --epsilon 0 --delta 0.5": ("epsilon=0", "delta=0.5"),
    "schema rows.csv --number age=1 --category job --ignore nope": ("'1'", "'job'", "'nope'"),
    "schema rows.csv --label nope --classes 1 --size 0": ("'nope'", "classes", "size"),
    "schema nothere.csv --number age=x": ("nothere.csv", "'x'"),
    "predict nowhere nothere.csv --out file": ("nowhere is not", "nothere.csv", "file exists"),
    "search plain.toml --epsilon 0": ("--over", "--score-on", "epsilon=0"),
    "ledger charge file --zcdp a --times q": ("'a'", "'q'"),
    "ledger price nowhere --delta 2 --accountant foo --group-size 0": ("delta=2", "'foo'", "group_size=0", "no ledger"),
    "audit nowhere --steps 0 --pairs -1 --out file": ("no nowhere", "steps=0", "pairs=-1", "file is not a folder"),
    "doctor ./nets.py:net --examples 0 --data q --input-shape 3,x": ("nets:net", "s=0", "'q'", "one of them", "'3,x'"),
    "plan --delta 0.5": ("--size and --epsilon must be given",),
}


@pytest.mark.parametrize("words", COMMANDS)
def test_all_mistakes_of_a_command_are_named(words, tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    assert "of 1 records" not in refusal(noisette(*words.split()), *COMMANDS[words]).output, "that was not declared"
    assert tree(tmp_path) == set(FILES)


def test_no_record_is_read_where_something_else_is_wrong(monkeypatch):
    monkeypatch.setattr("noisette.data.load", lambda name, **_: pytest.fail(f"{name} is read"))
    refusal(noisette("train", "--batch-norm", "group", "--public", "imdb"), "public examples are for")
    refusal(noisette("train", "--epsilon", 0, "--model", "./nets.py:net"), "epsilon=0", "write nets:net")


ROWS, LABELS = np.linspace(-1, 1, 40).reshape(20, 2), np.array(["a", "b"] * 10)
KNOWN = {"size": 20, "bounds": (-1, 1), "classes": ["a", "b"]}
ESTIMATORS = {
    "settings and class weights": (
        lambda: PrivateClassifier(-1, hidden_layer_sizes="32", class_weight={"a": -1}, **KNOWN).fit(ROWS, LABELS),
        *("epsilon=-1", "hidden_layer_sizes[0]='32'", "class_weight['a']=-1"),
    ),
    "settings and what is not declared": (
        lambda: PrivateClassifier(-1, class_weight={"c": 1}, classes=["a", "b"]).fit(ROWS, LABELS),
        *("not declared: size, bounds", "epsilon=-1", "'c'"),
    ),
    "settings and labels": (
        lambda: PrivateClassifier(**KNOWN, learning_rate=-1).fit(ROWS, [*LABELS[:-1], "c"]),
        *("labels that are not among", "learning_rate=-1"),
    ),
    "rows": (lambda: PrivateClassifier(**KNOWN, epochs=0).fit(ROWS * np.nan, LABELS), *("NaN", "epochs=0")),
    "bounds": (
        lambda: PrivateRegressor(size=20, bounds="0,1", target_bounds=(1, 0), epochs=0).fit(ROWS, ROWS[:, 0]),
        *("one for each feature, got '0,1'", "expected target_bounds", "epochs=0"),
    ),
    "bounds in the place of tables, and one text for all classes": (
        lambda: PrivateClassifier(size=20, classes="a,b", columns={"age": (0, 1)}).fit({"age": ROWS[:, 0]}, LABELS),
        *("'age' is no table", "classes='a,b'"),
    ),
    "a model in the place of its bound": (
        lambda: privatize(torch.nn.Linear(2, 2), None, None, expected_batch_size=1),
        *("PerExampleClip(model, max_grad_norm=1.0)", "got bound=Linear("),
    ),
    "a run": (lambda: attach(torch.nn.BatchNorm1d(2), epsilon=-1, steps=1), *("epsilon=-1", "BatchNorm1d", "delta")),
    "no noise": (lambda: attach(torch.nn.Linear(2, 2), noise_multiplier=0, steps=1), "debug without noise", "=1e-9"),
}


def attach(model, **given):
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    data = (torch.zeros(4, 2), torch.zeros(4))
    privatize(PerExampleClip(model, max_grad_norm=1.0), optimizer, data, expected_batch_size=2, public_size=4, **given)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_all_mistakes_of_a_call_are_named(name):
    call, *said = ESTIMATORS[name]
    with pytest.raises((TypeError, ValueError, PrivacyError)) as refused:
        call()
    assert [words for words in said if words not in str(refused.value)] == []
