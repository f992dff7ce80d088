"""Data sets as NumPy arrays: built-in ones by name, and the user's own files, described by a declaration."""

from noisette.data.columns import Declaration as Declaration
from noisette.data.dataset import DataError as DataError
from noisette.data.dataset import DataSet as DataSet
from noisette.data.dataset import Split as Split
from noisette.data.load import load as load
from noisette.data.load import names as names

__all__ = ["DataError", "DataSet", "Declaration", "Split", "load", "names"]
