"""Texts at work, in training, in resumed runs and in what is left."""

import gzip
import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from command_line import noisette, succeeded
from cut_runs import cut_short, pass_by
from noisette.data import DataSet, Split, load
from noisette.run.private import PrivateRun
from noisette.training.loop import resume, train
from noisette.training.recipe import DataSection, ModelSection, PrivacySection, Recipe, TrainingSection
from noisette.training.report.facts import Point, facts_of
from noisette.training.saved_model import SavedModel

TRAINING = TrainingSection(epochs=4, batch_size=100, lr=4.0)
PRIVACY = PrivacySection(epsilon=8.0, accountant="rdp")
RECIPE = Recipe(DataSection("ag-news-words"), ModelSection("word-counts"), PRIVACY, TRAINING)


def texts(count: int = 500, seed: int = 0) -> DataSet:
    """Texts of 5 words, which are below 20 in one class and from 20 to 39 in the other."""
    random = np.random.default_rng(seed)
    classes = random.integers(0, 2, (2, count))
    splits = [Split(random.integers(0, 20, (count, 5)) + 20 * own[:, None], own) for own in classes]
    return DataSet("toy texts", *splits, classes=2, declared_size=500, words=40)


def test_a_run_on_texts_goes_on_and_knows_them_again(tmp_path):
    saved = cut_short(RECIPE, texts(), tmp_path, step=7)
    with pytest.raises(ValueError, match="data"):
        resume(RECIPE, texts(seed=1), on_step=pass_by, checkpoint=saved)
    outcome = resume(RECIPE, texts(), on_step=pass_by, checkpoint=saved)
    assert outcome.run.steps_taken == 20
    assert (outcome.points[-1].test_accuracy or 0) > 0.9


def test_a_run_does_not_go_on_with_other_public_weights(tmp_path):
    weights = tmp_path / "weights.safetensors"
    recipe = replace(RECIPE, model=ModelSection("word-counts", str(weights), frozen=()))
    first = {"features.weights": torch.ones(40), "head.weight": torch.zeros(2, 40)}
    save_file(first, weights)
    saved = cut_short(recipe, texts(), tmp_path / "other", step=7)
    older = weights.read_bytes()
    save_file(first | {"head.weight": torch.ones(2, 40)}, weights)
    with pytest.raises(ValueError, match="public examples or first weights are not those"):
        resume(recipe, texts(), on_step=pass_by, checkpoint=saved)
    weights.write_bytes(older)
    assert resume(recipe, texts(), on_step=pass_by, checkpoint=saved).run.steps_taken == 20


def test_the_facts_name_the_weights_that_were_read_though_the_file_is_another_by_then(tmp_path):
    weights = tmp_path / "weights.safetensors"
    save_file({"features.weights": torch.ones(40), "head.weight": torch.zeros(2, 40)}, weights)
    read = hashlib.sha256(weights.read_bytes()).hexdigest()
    recipe = replace(RECIPE, model=ModelSection("word-counts", str(weights), frozen=()))

    def overwrite(run: PrivateRun, point: Point) -> None:
        weights.write_bytes(b"another")

    assert facts_of(train(recipe, texts(), ledger_path=None, on_step=overwrite)).public_weights == read


@pytest.fixture
def articles(tmp_path):
    """A folder with articles as in the copy with a part of them: 40 to train on, 10 to test with."""
    (tmp_path / "ag_news").mkdir()
    for name, count in (("train_subset.csv.gz", 40), ("test.csv.gz", 10)):
        words = ("minister", "team", "market", "computer")
        lines = ["label,text", *(f'{index % 4},"The {words[index % 4]}, again."' for index in range(count))]
        (tmp_path / "ag_news" / name).write_bytes(gzip.compress("\n".join(lines).encode()))
    return tmp_path


def test_from_articles_to_a_model_that_reads_new_texts_as_those_trained_on(articles):
    out, rows = articles / "run", articles / "rows.csv"
    options = ["--data", "ag-news-words", "--model", "word-counts", "--epochs", 1, "--batch-size", 6000]
    shown = succeeded(noisette("train", *options, "--data-dir", articles, "--out", out))
    facts = json.loads((out / "run.json").read_text())
    assert (facts["words"], facts["input_shape"], facts["declared_size"]) == (4096, [64], 18_349)
    assert "not comparable with published results" in (out / "report.html").read_text()
    test = load("ag-news-words", data_dir=articles).test
    right = SavedModel.of_run(out).model(torch.as_tensor(test.inputs)).argmax(1).numpy() == test.targets
    assert right.mean() == pytest.approx(facts["test_accuracy"])
    rows.write_text("article\n" + "".join(f'"The {word}, again."\n' for word in ("minister", "team", "the", "")))
    found = SavedModel.of_run(out, text="article").read(rows)
    assert found.shape == (4, *test.inputs.shape[1:])
    np.testing.assert_array_equal(found[:2], test.inputs[:2])
    shown = noisette("predict", out, rows, "--text", "article")
    assert (shown.exit_code, shown.output.count("\n")) == (0, 5)
