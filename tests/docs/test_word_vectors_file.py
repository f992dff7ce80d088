"""The file of word vectors that a recipe takes, made from a small vocabulary."""

import numpy as np
import pytest

from experiments.word_vectors import DIMS, main, vectors_of_numbers, whitened
from noisette.data.words import number_of
from noisette.nn import models
from papers.glove import Vocabulary

WORDS = [f"word{number}" for number in range(300)]


@pytest.fixture
def vocabulary():
    draw = np.random.default_rng(0)
    mixed = draw.normal(size=(len(WORDS), DIMS)) @ draw.normal(size=(DIMS, DIMS)) + 3
    return Vocabulary(known=WORDS, vectors=mixed.astype(np.float32), note="")


def test_texts_by_zipfs_law_have_whitened_sums(vocabulary):
    found, frequencies = whitened(vocabulary.vectors), 1 / np.arange(1, len(WORDS) + 1)
    second = np.cov(found.T, aweights=frequencies, bias=True)
    variances = np.diag(second)
    np.testing.assert_allclose(second / np.sqrt(np.outer(variances, variances)), np.eye(DIMS), atol=1e-6)
    np.testing.assert_allclose(np.average(found, axis=0, weights=frequencies), 0, atol=1e-6)
    assert np.median(variances) > 0.8 * variances.max(), "as good as equal, but for the smallest, which stay small"


def test_a_number_has_the_vector_of_its_most_frequent_word(vocabulary):
    table = vectors_of_numbers(vocabulary, 50)
    first = {number_of(word, 50): row for row, word in reversed(list(enumerate(WORDS)))}
    assert 0 not in first
    for number in range(50):
        expected = whitened(vocabulary.vectors)[first[number]] if number in first else np.zeros(DIMS)
        np.testing.assert_allclose(table[number].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_file_fits_the_model(vocabulary, tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.word_vectors.glove", lambda data_dir: vocabulary)
    monkeypatch.setattr("sys.argv", ["word_vectors", str(tmp_path / "new" / "file.safetensors"), "--words", "50"])
    main()
    model = models.pretrained(
        models.build("word-counts-and-vectors", (6,), 3, 50), tmp_path / "new" / "file.safetensors"
    )
    np.testing.assert_array_equal(
        model.get_buffer("features.vectors.vectors").numpy(), vectors_of_numbers(vocabulary, 50).numpy()
    )
