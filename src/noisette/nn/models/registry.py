"""The built-in models. To add one, write its factory and a test, and add a line here.

The names and descriptions are known without importing torch; factories are imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class BuiltIn:
    """A built-in model: its factory, one line for help texts, and the factory's keyword arguments.

    The factory is called with (shape of an example, classes, **settings). A factory or setting that is a string,
    ``module:function`` in this folder, is imported when the model is built.
    """

    factory: str | Callable[..., nn.Module]
    description: str
    settings: Mapping[str, str | bool] = field(default_factory=dict)
    of_words: bool = False  # examples are numbers of words, and ``words``, how many there are, is one more argument


_BATCH_NORM = {"norm": "networks:batch_norm"}
_LAYER_NORM = {"norm": "networks:layer_norm"}
_RANKED = {"ranked": True}
_NO_LAST_NORM = {"last_norm": False}
_NORMALISED_LOGITS = {"normalised_logits": True}

REGISTRY: dict[str, BuiltIn] = {
    "linear": BuiltIn("networks:linear", "logistic regression"),
    "mlp": BuiltIn("networks:mlp", "two hidden layers of 128 tanh units"),
    "mlp1000": BuiltIn("networks:mlp1000", "one hidden layer of 1,000 ReLU units (Abadi et al. 2016)"),
    "cnn": BuiltIn("networks:cnn", "two convolutions and two linear layers, with tanh"),
    "scattering": BuiltIn("networks:scattering", "linear layer on fixed wavelet features"),
    "scattering-cnn": BuiltIn("networks:scattering_cnn", "two convolutions on fixed wavelet features"),
    "patches": BuiltIn("on_features:patches", "linear layer on resemblances to patches of synthetic images"),
    "multi-scale-patches": BuiltIn(
        "on_features:multi_scale_patches", "the same for patches of two sizes, averaged over mirror images"
    ),
    "patches-and-scattering": BuiltIn(
        "on_features:patches_and_scattering", "the same beside fixed wavelet features, averaged over mirror images"
    ),
    "lenet-300-100": BuiltIn("of_papers:lenet_300_100", "two hidden layers of 300 and 100 units"),
    "bn-lenet-300-100": BuiltIn("of_papers:lenet_300_100", "lenet-300-100 with batch norm", _BATCH_NORM),
    "ln-lenet-300-100": BuiltIn("of_papers:lenet_300_100", "lenet-300-100 with layer norm", _LAYER_NORM),
    "lenet-5": BuiltIn("of_papers:lenet_5", "two convolutions and three linear layers"),
    "bn-lenet-5": BuiltIn("of_papers:lenet_5", "lenet-5 with batch norm", _BATCH_NORM),
    "ln-lenet-5": BuiltIn("of_papers:lenet_5", "lenet-5 with layer norm", _LAYER_NORM),
    "cifar-tutorial": BuiltIn("of_papers:cifar_tutorial", "the CIFAR-10 network of Abadi et al. 2016"),
    "bn-cifar-tutorial": BuiltIn("of_papers:cifar_tutorial", "cifar-tutorial with batch norm", _BATCH_NORM),
    "ln-cifar-tutorial": BuiltIn("of_papers:cifar_tutorial", "cifar-tutorial with layer norm", _LAYER_NORM),
    "tf-tutorial": BuiltIn("of_papers:tf_tutorial", "the CIFAR-10 network of the TensorFlow tutorial"),
    "bn-tf-tutorial": BuiltIn("of_papers:tf_tutorial", "tf-tutorial with batch norm", _BATCH_NORM),
    "ln-tf-tutorial": BuiltIn("of_papers:tf_tutorial", "tf-tutorial with layer norm", _LAYER_NORM),
    "resnet-18": BuiltIn("networks:resnet", "ResNet-18 for 32 x 32 pixels, with batch norm"),
    "resnet-18-mod": BuiltIn("networks:resnet", "resnet-18 without its last batch norm", _NO_LAST_NORM),
    "bn-resnet-18": BuiltIn("networks:resnet", "resnet-18 with batch norm on the logits too", _NORMALISED_LOGITS),
    "vgg-16": BuiltIn("of_papers:vgg", "VGG-16 for 32 x 32 pixels, with batch norm"),
    "vgg-16-mod": BuiltIn("of_papers:vgg", "vgg-16 without its last batch norm", _NO_LAST_NORM),
    "bn-vgg-16": BuiltIn("of_papers:vgg", "vgg-16 with batch norm on the logits too", _NORMALISED_LOGITS),
    "light-vgg": BuiltIn("of_papers:light_vgg", "eight convolutions and two linear layers"),
    "bn-light-vgg": BuiltIn("of_papers:light_vgg", "light-vgg with batch norm", _BATCH_NORM),
    "ln-light-vgg": BuiltIn("of_papers:light_vgg", "light-vgg with layer norm", _LAYER_NORM),
    "bilstm-dl": BuiltIn("of_papers:bilstm_dl", "bidirectional LSTM for texts"),
    "ln-bilstm-dl": BuiltIn("of_papers:ln_bilstm_dl", "bidirectional LSTM with layer norm"),
    "encoder": BuiltIn("networks:encoder", "Transformer encoder on word vectors (Lee & Kifer 2020)"),
    "transformer": BuiltIn("networks:transformer", "small Transformer for texts", of_words=True),
    "bag-of-words": BuiltIn(
        "networks:bag_of_words", "mean of word vectors for texts, and a linear layer", of_words=True
    ),
    "word-counts": BuiltIn("networks:word_counts", "linear layer on counts of a text's words", of_words=True),
    "ranked-word-counts": BuiltIn(
        "networks:word_counts", "the same, with less weight on common English words", _RANKED, of_words=True
    ),
    "word-counts-and-vectors": BuiltIn(
        "networks:word_counts_and_vectors", "the same, beside public vectors of the words (give weights)", of_words=True
    ),
    "lipschitz-linear": BuiltIn("on_features:lipschitz_linear", "1-Lipschitz linear layer"),
    "lipschitz-dense": BuiltIn("on_features:lipschitz_dense", "1-Lipschitz network with a hidden layer of 128 units"),
    "lipschitz-rows": BuiltIn("on_features:lipschitz_rows", "1-Lipschitz network for tables of numbers"),
    "lipschitz-patch": BuiltIn("on_features:lipschitz_patch", "1-Lipschitz convolution of patches"),
    "lipschitz-mixer": BuiltIn("on_features:lipschitz_mixer", "1-Lipschitz MLP-Mixer"),
    "dct-lipschitz-dense": BuiltIn("on_features:dct_lipschitz_dense", "lipschitz-dense on low image frequencies"),
    "scattering-lipschitz-linear": BuiltIn(
        "on_features:scattering_lipschitz_linear", "lipschitz-linear on fixed wavelet features"
    ),
}


def names() -> tuple[str, ...]:
    """The names of the built-in models."""
    return tuple(REGISTRY)
