"""Private training as scikit-learn estimators, for tables of numbers."""

from noisette.estimators.classifier import PrivateClassifier as PrivateClassifier
from noisette.estimators.regressor import PrivateRegressor as PrivateRegressor
