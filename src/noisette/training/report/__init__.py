"""The results of a run: the run folder, the report with its figures, and the privacy statement."""

from noisette.training.report.facts import Facts as Facts
from noisette.training.report.facts import SearchFacts as SearchFacts
from noisette.training.report.facts import facts_of as facts_of
from noisette.training.report.facts import rows_of_search as rows_of_search
from noisette.training.report.numbers import duration as duration
from noisette.training.report.numbers import percent as percent
from noisette.training.report.numbers import power_of_ten as power_of_ten
from noisette.training.report.numbers import upward as upward
from noisette.training.report.page import rows_of_tests as rows_of_tests
from noisette.training.report.run_folder import RunFolder as RunFolder
from noisette.training.report.run_folder import documents as documents
