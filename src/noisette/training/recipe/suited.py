"""The model that suits a data set, where none is named."""

from __future__ import annotations

from pathlib import Path

from noisette.training.recipe.sections import DataSection

_BUILT_IN = {
    "digits": "cnn",
    **dict.fromkeys(("mnist", "fashion-mnist", "cifar10", "kmnist", "emnist-letters"), "scattering"),
    "adult": "mlp",
    **dict.fromkeys(("sst2", "imdb", "ag-news-words"), "ranked-word-counts"),
    **dict.fromkeys(("ag-news", "sst2-glove"), "bilstm-dl"),
    "imdb-glove": "encoder",
}


def suited_model(data: DataSection) -> str:
    """The name of a model for a built-in data set, or for tables, texts and images of one's own.

    >>> suited_model(DataSection("adult")), suited_model(DataSection("own.csv", text="review"))
    ('mlp', 'ranked-word-counts')
    """
    if built_in := _BUILT_IN.get(data.name):
        return built_in
    return "ranked-word-counts" if data.text is not None else "cnn" if Path(data.name).is_dir() else "mlp"
