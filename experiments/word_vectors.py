"""Make a file of GloVe's vectors for the model word-counts-and-vectors.

    python -m experiments.word_vectors FILE [--words 32768]

Recipes give the file as `[model] weights`. Each number of a word gets the vector of the most frequent word of GloVe
with this hash. Vectors are whitened as if texts had each word with the frequency of its rank by Zipf's law,
1 / (12 rank), and frequent words weigh less by a / (a + frequency) with a = 1e-3: no text is read.

Source: Arora, Liang & Ma 2017, "A simple but tough-to-beat baseline for sentence embeddings", for the weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from noisette.accounting import atomic_files
from noisette.data.words import number_of
from noisette.nn import models
from papers.glove import Vocabulary, glove

DIMS = 50
_ZIPF, _SMOOTHING = 12.0, 1e-3
_RIDGE = 0.1  # of the mean variance, added to each, so that directions without meaning are not enlarged


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--words", type=int, default=32768, help="how many numbers words are hashed to")
    options = parser.parse_args()
    try:
        content = save(state_of(glove(None), options.words))
        options.file.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write(options.file, content)
    except (ValueError, OSError) as error:
        parser.error(str(error))


def state_of(vocabulary: Vocabulary, words: int) -> dict[str, Tensor]:
    """The tensors of the fixed features of the model."""
    features = models.word_counts_and_vectors((1,), 2, words=words).features
    state = {f"features.{name}": value for name, value in features.state_dict().items()}
    return state | {"features.vectors.vectors": vectors_of_numbers(vocabulary, words)}


def vectors_of_numbers(vocabulary: Vocabulary, words: int) -> Tensor:
    """The weighted and whitened vector of each number of a word, (words, 50); zero where there is none."""
    found = np.zeros((words, DIMS), np.float32)
    for word, vector in reversed(list(zip(vocabulary.known, whitened(vocabulary.vectors), strict=True))):
        found[number_of(word, words)] = vector
    return torch.from_numpy(found)


def whitened(vectors: np.ndarray) -> np.ndarray:
    """The vectors, most frequent word first, weighted, centred and whitened: (words, dims) to (words, 50)."""
    frequencies = 1 / (_ZIPF * np.arange(1, len(vectors) + 1))
    weights = _SMOOTHING / (_SMOOTHING + frequencies)
    centred = vectors - np.average(vectors, axis=0, weights=frequencies * weights)
    weighted = weights[:, None] * centred
    variances, directions = np.linalg.eigh((frequencies[:, None] * weighted).T @ weighted / frequencies.sum())
    scales = np.sqrt(variances + _RIDGE * variances.mean())
    return (weighted @ directions / scales)[:, -DIMS:]


if __name__ == "__main__":
    main()
