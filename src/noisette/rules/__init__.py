"""Per-example gradients, one file per family of operations. Importing this package registers all rules."""

from importlib import import_module
from pkgutil import iter_modules

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
