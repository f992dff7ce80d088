"""Training loops of other libraries with noisette's guarantee. Each module needs its library, an optional extra.

>>> from importlib.util import find_spec
>>> find_spec("noisette.integrations.transformers") is not None
True
"""
