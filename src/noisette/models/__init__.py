"""Models that come with noisette, one family a file, and what models are put together from."""

from noisette.models.bilstm import LayerNormLSTM as LayerNormLSTM
from noisette.models.bilstm import bilstm_dl as bilstm_dl
from noisette.models.bilstm import ln_bilstm_dl as ln_bilstm_dl
from noisette.models.fixed_features import FixedFeatures as FixedFeatures
from noisette.models.lenet import lenet_5 as lenet_5
from noisette.models.lenet import lenet_300_100 as lenet_300_100
from noisette.models.norms import Norm as Norm
from noisette.models.norms import batch_norm as batch_norm
from noisette.models.norms import layer_norm as layer_norm
from noisette.models.public_weights import pretrained as pretrained
from noisette.models.registry import build as build
from noisette.models.registry import names as names
from noisette.models.registry import projected as projected
from noisette.models.resnets import resnet as resnet
from noisette.models.shapes import Shape as Shape
from noisette.models.small import Centred as Centred
from noisette.models.small import cnn as cnn
from noisette.models.small import linear as linear
from noisette.models.small import mlp as mlp
from noisette.models.small import mlp1000 as mlp1000
from noisette.models.small import scattering as scattering
from noisette.models.tutorial import CentreCrop as CentreCrop
from noisette.models.tutorial import cifar_tutorial as cifar_tutorial
from noisette.models.tutorial import tf_tutorial as tf_tutorial
from noisette.models.vggs import light_vgg as light_vgg
from noisette.models.vggs import vgg as vgg
