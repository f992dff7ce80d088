"""Settings that are known to work on the built-in data sets."""

from __future__ import annotations

from noisette.training.recipe.sections import PrivacySection, TrainingSection

_IMAGES = TrainingSection(epochs=40, batch_size=4096, lr=4.0, momentum=0.9, averaging=0.98)
_FEW_IMAGES = TrainingSection(epochs=40, batch_size=1024, lr=4.0, momentum=0.9, averaging=0.98)
_FEATURES = PrivacySection(max_grad_norm=0.1)
KNOWN_TO_WORK = {
    "digits": (PrivacySection(delta=1e-4), TrainingSection(batch_size=360, cosine=False, averaging=0.95), "cnn"),
    "mnist": (_FEATURES, _IMAGES, "scattering"),
    "fashion-mnist": (_FEATURES, _IMAGES, "scattering"),
    "cifar10": (_FEATURES, _IMAGES, "scattering"),
    "kmnist": (_FEATURES, _FEW_IMAGES, "scattering"),
    "emnist-letters": (_FEATURES, _FEW_IMAGES, "scattering"),
    "adult": (PrivacySection(), TrainingSection(epochs=20, batch_size=1024, lr=2.0), "mlp"),
    "ag-news": (PrivacySection(), TrainingSection(epochs=20, batch_size=1024, lr=2.0, momentum=0.9), "bilstm-dl"),
}
