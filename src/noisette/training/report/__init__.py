"""The results of a run: its facts, the report with its figures, and the privacy statement. It loads no matplotlib."""

from noisette.training.report.facts import Facts as Facts
from noisette.training.report.facts import SearchFacts as SearchFacts
from noisette.training.report.facts import duration as duration
from noisette.training.report.facts import facts_of as facts_of
from noisette.training.report.facts import percent as percent
from noisette.training.report.facts import power_of_ten as power_of_ten
from noisette.training.report.facts import upward as upward
from noisette.training.report.statement import rows_of_search as rows_of_search
from noisette.training.report.statement import rows_of_tests as rows_of_tests
