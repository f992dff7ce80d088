"""The privacy statement of every kind of run: its decisive sentences, and what it must not say."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from finished_runs import with_recipe
from noisette.accounting import BallsInBinsGaussian, BandedGaussian, Event, PoissonGaussian, UserLevel
from noisette.accounting import TruncatedPoissonGaussian as Truncated
from noisette.accounting.events import facts_of
from noisette.training.report.facts import Facts, LayerBounds, ReleasedPart, SearchFacts
from noisette.training.report.statement import as_card, as_text, statement

LAYERS = LayerBounds({"2.weight": 0.10001, "4.weight": 0.2}, {"2.weight": 0.5, "4.weight": 1.25})
SEARCH = SearchFacts({"lr": "log(0.1,10)"}, {"lr": 1.25}, 10.0, "1", 7, 22, 0.05, 3, 2.5, 0.93, 0.1, 0.01)
STEP = PoissonGaussian(0.15, 3.2)


def words(facts: Facts) -> str:
    return " ".join(as_text(statement(facts), title="Privacy statement").split())


def of_event(event: Event, **data: object) -> Callable[[Facts], Facts]:
    def made(facts: Facts) -> Facts:
        changed = replace(facts, event=facts_of(event), sampling=event.sampling, neighbouring=event.relation)
        return with_recipe(changed, data=data)

    return made


def by_layers(logit_clip: float) -> Callable[[Facts], Facts]:
    def made(facts: Facts) -> Facts:
        facts = with_recipe(facts, lipschitz={"tau": 30.0, "logit_clip": logit_clip}, privacy={"max_grad_norm": 1.0})
        return replace(facts, max_grad_norm=None, lipschitz=LAYERS)

    return made


def with_(**sections: dict[str, object]) -> Callable[[Facts], Facts]:
    return lambda facts: with_recipe(facts, **sections)


def changed(**values: object) -> Callable[[Facts], Facts]:
    return lambda facts: replace(facts, **values)


def adaptive(facts: Facts) -> Facts:
    parts = (ReleasedPart("gradient", 1.5, 0.97), ReleasedPart("clipping count", 0.5, 0.03))
    return replace(with_recipe(facts, privacy={"clipping": "adaptive"}), parts=parts)


PATIENTS = {"users": "patient", "records_per_user": 3}
OF_RECORDS = "per record, not per person ... forged all other records ... removing a record ... one record, which is"
OF_USERS = """Relation: add or remove all records of one user. Unit: one user, with all records of the training set that
have the same value in the column 'patient', whatever their number. ... its probability with the user is at most e^2.76
times its probability without the user, plus 1e-4 ... knows or has forged the records of all other users ... the larger
of the values for adding and for removing a user ... People who are several users: the guarantee is per value of the
column that names the user."""
# For each kind of run: what is changed in the plain one, what is said, and what is not; dots are for what is between.
KINDS: dict[str, tuple[Any, ...]] = {
    "plain": (
        lambda facts: facts,
        """Relation: add or remove one record. Unit: one record ... is (2.76, 1e-4)-differentially private: epsilon =
        2.76, delta = 1e-4. ... an attacker who sees every step and knows or has forged all other records ...
        Contract: the loss is a function of one example ... Sampling: Poisson. Each record enters the batch of a
        step independently with probability 0.15. A batch ... a Euclidean norm of at most 1.5, so one record moves
        the sum of a batch by at most 1.5 ... for rounding, the noise is that of a sensitivity larger by one part in
        8,192 ... computed by the engine book-keeping (one backward pass) ... standard deviation 3.2 times 1.5 ...
        divided by 216, a declared constant ... 240 planned, 240 reserved in the ledger and covered by epsilon, 240
        carried out. The ledger is ... the seal of its last line is 0123abcd ... by noisette 0.1.0, rounded upwards.
        Epsilon is the larger of the values for adding and for removing a record ... Size of the training set:
        1,437, a declared and public constant ... the test examples are taken to be public ... Other runs on the
        same records that are not in this ledger, and choosing among them: their costs add up. ... People with
        several records: the guarantee is per record, not per person. ... Running time, which the report states""",
        "odometer ... stopped by hand ... batch norm ... user ... Correlation ... Search",
    ),
    "truncated": (
        of_event(Truncated(0.15, 3.2, largest_batch=300, most_records=1500)),
        OF_RECORDS
        + """ ... with probability 0.15. A batch of more than 300 records is replaced by as many of them, drawn by the
        secret key. The data set is declared to have at most 1,500 records.""",
    ),
    "balls in bins": (
        of_event(BallsInBinsGaussian(10, 3.2)),
        OF_RECORDS + " ... In each pass of 10 steps, each record chooses the batch of one step",
        "enters the batch of a step independently",
    ),
    "cyclic": (
        of_event(BandedGaussian(0.15, 3.2, 1)),
        "Each record enters the batch of a step independently with probability 0.15. A batch",
        "1 groups ... 1 consecutive ... Correlation ... rounds",
    ),
    "two bands": (
        of_event(BandedGaussian(0.15, 3.2, 2)),
        """Each record belongs to one of 2 groups, drawn by the secret key; steps take them in turn. ... with
        probability 0.3, so a record is in at most one of 2 consecutive batches. ... the noise of a step partly
        takes back that of the step before.""",
        "1 steps",
    ),
    "five bands": (
        of_event(BandedGaussian(0.15, 3.2, 5)),
        "takes back that of the 4 steps before. ... a matrix C with 5 diagonals ... a round of 5 steps that was begun",
    ),
    "users, by records": (
        of_event(UserLevel(STEP, 3), **PATIENTS),
        OF_USERS
        + """ ... Of each user's records at most 3 are used, drawn by the secret key ... Each record enters the batch of
        a step independently with probability 0.15. Epsilon counts that up to 3 records of one user may enter it.
        ... Size of the training set: 1,437, a declared""",
        OF_RECORDS,
    ),
    "users, one record of each": (
        of_event(UserLevel(STEP, 1), users="patient", records_per_user=1),
        OF_USERS
        + " ... Of each user's records at most one is used ... Each user enters the batch ... with one record.",
        OF_RECORDS,
    ),
    "users, of a public number": (
        of_event(UserLevel(STEP, 1), **PATIENTS, public_users=400),
        OF_USERS
        + " ... Size of the training set: 400 users, a declared ... the actual number of users, which stays private",
        OF_RECORDS,
    ),
    "by layers": (
        by_layers(0.1),
        """Every layer has a known Lipschitz constant, certified after each step ... entropy of the scores times 30,
        divided by 30 ... gradient at the scores is scaled to a norm of at most 0.1; below the scores nothing is
        clipped ... at most: 2.weight 0.1, 4.weight 0.2 (at the last step) ... standard deviation for each
        parameter: 2.weight 0.5, 4.weight 1.25 (at the last step)""",
        "scaled to a Euclidean norm",
    ),
    "by layers, unclipped": (by_layers(0.0), "Nothing is clipped.", "gradient at the scores"),
    "clipping norm that follows a quantile": (
        adaptive,
        """every step releases 2 sums together: the gradient, which one record moves by at most C, with noise of
        standard deviation 3.24911 times C; the clipping count, which one record moves by at most 0.5, with noise of
        standard deviation 18.4752 times 0.5. ... the sums of a step cost as much as one sum with this noise
        multiplier.""",
    ),
    "layers clipped apart": (
        lambda facts: replace(with_recipe(facts, privacy={"clipping": "per-layer"}), groups=4),
        "in each of 4 layers to a Euclidean norm of at most 0.75 ... together gives at most 1.5, so one record moves",
    ),
    "search, on records held out": (
        changed(search=SEARCH, seconds=None, declarations=2),
        """epsilon is the cost of the whole search. ... sees every step of this run, but not the other runs of the
        search, and knows ... 10 on average, half of the time at most 7 ... lr from log(0.1,10). The run was chosen
        by a noisy score: the number of right answers, each counting from 0 to 1, on records that were held out with
        probability 0.1 and not trained on, plus Gaussian noise ... The ledger holds them, with those of the other
        runs, as one search. ... Other runs and searches on the same records that are not in this ledger ... Running
        time, memory""",
        "odometer",
    ),
    "search, on public examples": (
        changed(search=replace(SEARCH, score=None, held_out=None, score_deviation=None)),
        "those of the best of several, and better than on new examples",
        "noisy score",
    ),
    "projection": (
        with_(projection={"components": 40, "noise_multiplier": 7.0}),
        "projected on 40 principal components ... deviation 7 on every entry. The ledger and epsilon include this",
    ),
    "several declarations": (
        changed(declarations=3),
        """The ledger holds 3 declarations, which epsilon covers, and each may have been chosen by the results of those
        before it. ... So epsilon is that of a Rényi odometer, which holds whatever was chosen; or it is the budget""",
        "This statement is about one run",
    ),
    "resumed once": (
        changed(resumed=1, steps_lost=1),
        """continued in another process once, with a new secret key. 1 step was lost when a process ended early: what
        was lost has no part in the saved weights, and epsilon covers it ... generated for each process of this run""",
        "for this run alone",
    ),
    "resumed twice": (changed(resumed=2, steps_lost=0), "2 times, each time with a new secret key. 0 steps were"),
    "records held out": (
        with_(data={"holdout": 0.25}),
        """each record was held out with probability 0.25 ... Test figures are exact: they are of the records held out,
        and have no guarantee. ... except the figures on records held out.""",
        "which stays private ... taken to be public",
    ),
    "public weights": (
        changed(public_weights="a1b2c3d4"),
        "a1b2c3d4 ... The records that these weights were trained on have no guarantee here",
    ),
    "large delta": (
        with_(privacy={"delta": 0.01, "allow_large_delta": True}),
        """Unsafe switches: allow_large_delta, which turns off the rule that delta be below one over the declared ...
        7e-4""",
        "switches: none",
    ),
    "norms with public statistics": (
        with_(model={"batch_norm": "public"}, public={"data": "kmnist", "examples": 64, "seed": 5}),
        """("public") takes statistics from 64 examples of kmnist, chosen by the seed 5. These examples have no
        guarantee""",
    ),
    "standardised features": (
        with_(model={"standardised": True}, public={"data": "kmnist", "examples": 5000, "seed": 1}),
        "The standardisation of the fixed features takes statistics from 5000 examples of kmnist, chosen by the seed",
        "batch norm",
    ),
    "epsilon with many digits": (changed(epsilon=2.9910001), "(3.00, 1e-4) ... e^3.00 times", "2.99"),
}


def parts(quoted: str = "") -> list[str]:
    return " ".join(quoted.split()).split(" ... ") if quoted else []


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_statement_says(kind, facts):
    make, said, *unsaid = KINDS[kind]
    text = words(make(facts))
    assert [sentence for sentence in parts(said) if sentence not in text] == []
    assert [sentence for sentence in parts(*unsaid) if sentence in text] == []


def test_the_card_is_one_of_hugging_face(facts):
    _, header, body = as_card(with_recipe(facts, data={"name": "a<b.csv"})).split("---\n", 2)
    assert header == "library_name: noisette\ntags:\n- differential-privacy\n"
    assert body.startswith(f"\n# {facts.model_name} trained on ")
    assert all(f"\n## {heading}\n" in body for heading in ("Test figures", *statement(facts)))
    assert "<" not in body


def test_the_text_fits_a_terminal(facts):
    assert max(map(len, as_text(statement(facts), title="Privacy statement").splitlines())) <= 88
