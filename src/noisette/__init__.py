"""Train PyTorch models with differential privacy: fast, exact, and with a guarantee that can be checked."""

from importlib import import_module

from noisette._internal.version import __version__ as __version__

# Public names by the module that defines them; `__init__.pyi` shows type checkers the same list.
_PUBLIC = {
    "accounting": (
        *("FixedSizeGaussian", "Gaussian", "PoissonGaussian", "RepeatAndSelect", "GroupPrivacy", "Ledger"),
        *("BallsInBinsGaussian", "BandedGaussian", "TruncatedPoissonGaussian", "UserLevel"),
        *("DiscreteGaussian", "DpAmount", "Laplace", "ZcdpAmount"),
        *(
            "GdpAccountant",
            "MomentsAccountant",
            "NaiveComposition",
            "PldAccountant",
            "RdpAccountant",
            "StrongComposition",
        ),
        *("delta_for", "epsilon_for", "noise_multiplier_for", "sampling_rate_for", "steps_for", "TradeOff"),
    ),
    "clipping.engines": ("engines",),  # the module itself
    "clipping.adaptive": ("AdaptiveClip",),
    "clipping.automatic": ("AutomaticClipping",),
    "capture.captured": ("CaptureWarning",),
    "clipping.custom": ("CustomClipping",),
    "clipping.one_by_one": ("OneByOneWarning",),
    "clipping.flat": ("FlatClipping",),
    "clipping.groupwise": ("GroupwiseClipping",),
    "clipping.per_layer": ("PerLayerClipping",),
    "clipping.per_example": ("PerExampleClip",),
    "errors": ("MissingRuleError", "PrivacyError", "UnsupportedEventError"),
    "estimators.classifier": ("PrivateClassifier",),
    "estimators.regressor": ("PrivateRegressor",),
    "rules.rule_check": ("rule",),
    "lipschitz.bound": ("LipschitzBound",),
    "lipschitz.noise_allocation": ("GlobalAllocation", "OptimalAllocation", "PerLayerAllocation"),
    "core.release": ("BoundedSum", "GradientBound", "GaussianRelease"),
    "mechanisms.pca": ("PrivatePCA", "private_pca"),
    "nn.lipschitz.certified_radius": ("certified_accuracy", "certify"),
    "sampling.buckets": ("PaddedBuckets",),
    "sampling.loading": ("OwnRecords",),
    "sampling.schemes": ("BallsInBins", "CyclicPoisson", "Poisson", "TruncatedPoisson"),
    "sampling.users": ("Users",),
    "ranks": ("Alone", "Ranks"),
    "run.explain": ("explain",),
    "run.private": ("PrivateRun",),
    "core.loss": ("Loss",),
    "core.steps": ("close_run",),
    "run.privatize": ("privatize",),
    "training.adam_bc": ("AdamBC",),
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    # Modules are imported on first use, so that the accounting commands never wait for torch.
    if name not in _MODULES:
        raise AttributeError(f"module 'noisette' has no attribute {name!r}")
    module = import_module(f"noisette.{_MODULES[name]}")
    value = getattr(module, name, module)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
