"""Train PyTorch models with differential privacy: fast, exact, and with a guarantee that can be checked."""

from importlib import import_module

__version__ = "0.1.0"

# Public names by the module that defines them; `__init__.pyi` shows type checkers the same list.
_PUBLIC = {
    "accounting": (
        *("FixedSizeGaussian", "Gaussian", "PoissonGaussian", "RepeatAndSelect", "GroupPrivacy", "Ledger"),
        *("BallsInBinsGaussian", "BandedGaussian", "TruncatedPoissonGaussian", "UserLevel"),
        *("DiscreteGaussian", "DpAmount", "Laplace", "Neighbouring", "ZcdpAmount"),
        *("GdpAccountant", "MomentsAccountant", "PldAccountant", "RdpAccountant"),
        *("TradeOff", "epsilon_for", "noise_multiplier_for", "steps_for"),
    ),
    "capture.captured": ("CaptureWarning",),
    "clipping.engines": ("OneByOneWarning", "engines"),  # `engines` is the module itself
    "run.per_example": ("PerExampleClip",),
    "clipping.rules": ("AdaptiveClip", "AutomaticClipping", "FlatClipping", "GroupwiseClipping", "PerLayerClipping"),
    "core.loss": ("Loss",),
    "core.release": ("BoundedSum", "GradientBound", "GaussianRelease"),
    "core.steps": ("close_run",),
    "errors": ("MissingRuleError", "PrivacyError", "UnsupportedEventError"),
    "integrations.scikit_learn": ("PrivateClassifier", "PrivateRegressor"),
    "lipschitz.bound": ("LipschitzBound",),
    "lipschitz.certified_radius": ("certified_accuracy", "certify"),
    "run.pca": ("PrivatePCA",),
    "ranks": ("Alone", "Ranks"),
    "rules.rule_check": ("rule",),
    "run.collation": ("PaddedBuckets",),
    "run.explain": ("explain",),
    "run.loading": ("OwnRecords",),
    "run.private": ("PrivateRun", "privatize"),
    "run.sampling": ("BallsInBins", "CyclicPoisson", "Poisson", "TruncatedPoisson", "Users"),
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


_FOLDERS = ("audit", "data", "nn")  # with public names of their own


def __getattr__(name: str) -> object:
    # Modules are imported on first use, so that the accounting commands never wait for torch.
    place = name if name in _FOLDERS else _MODULES.get(name)
    if place is None:
        raise AttributeError(f"module 'noisette' has no attribute {name!r}")
    try:
        module = import_module(f"noisette.{place}")
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise ImportError(f"noisette.{name} needs {missing}: pip install 'noisette[cli]'", name=missing) from error
    value = module if name in _FOLDERS else getattr(module, name, module)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_FOLDERS, *__all__]
