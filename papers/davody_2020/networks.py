"""LeNet-5 with each norm, activation and kind of scores, and narrow networks, as models that a recipe can name."""

from __future__ import annotations

from functools import partial

from torch import nn

from noisette.nn.models import batch_norm, layer_norm
from papers.networks import lenet_5, lenet_300_100, resnet_of_table_3, vgg

plain = lenet_5
plain_tanh = partial(lenet_5, activation=nn.Tanh)

bn = partial(lenet_5, norm=batch_norm)
bn_tanh = partial(bn, activation=nn.Tanh)
bn_raw_scores = partial(bn, normalised_logits=False)
bn_tanh_raw_scores = partial(bn_tanh, normalised_logits=False)

ln = partial(lenet_5, norm=layer_norm)
ln_tanh = partial(ln, activation=nn.Tanh)
ln_raw_scores = partial(ln, normalised_logits=False)
ln_tanh_raw_scores = partial(ln_tanh, normalised_logits=False)

bn_300_100 = partial(lenet_300_100, norm=batch_norm)

# An eighth of the channels in every layer.
vgg_16_eighth = partial(vgg, width=8)
bn_vgg_16_eighth = partial(vgg_16_eighth, normalised_logits=True)
resnet_18_eighth = partial(resnet_of_table_3, width=8)
bn_resnet_18_eighth = partial(resnet_18_eighth, normalised_logits=True)


def narrow(row: str) -> str:
    """The name in a recipe of the network of a row that ends in -eighth."""
    return f"{__name__}:{row.replace('-', '_')}"


def lenet(norm: str, *, tanh: bool, normalised_scores: bool) -> str:
    """The name of one of these models in a recipe; ``norm`` is plain, bn or ln."""
    scores = "" if normalised_scores or norm == "plain" else "_raw_scores"
    return f"{__name__}:{norm}{'_tanh' if tanh else ''}{scores}"
