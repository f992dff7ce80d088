"""Random search over the settings of a recipe, by repeat and select: one price, and only the best run leaves."""

from noisette.training.search.scores import HeldOutScore as HeldOutScore
from noisette.training.search.scores import PublicScore as PublicScore
from noisette.training.search.scores import Score as Score
from noisette.training.search.search import Found as Found
from noisette.training.search.search import Search as Search
from noisette.training.search.space import SearchSpace as SearchSpace
