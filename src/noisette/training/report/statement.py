"""What a run declares and guarantees, in words: the table of settings of the report, and the privacy statement."""

import json
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from noisette.accounting.events import BallsInBinsGaussian, BandedGaussian, UserLevel, event_of
from noisette.accounting.events import TruncatedPoissonGaussian as Truncated
from noisette.data.columns import Columns
from noisette.nn.models.backbones import learned_from
from noisette.training.recipe import DataSection, Recipe
from noisette.training.report.facts import Facts, OwnFacts, SearchFacts, duration, percent, power_of_ten, shown, upward

_ALWAYS = ("privacy", "training")  # tables of a recipe that are shown with their defaults

Rows = list[tuple[str, str]]  # names and values
AnyRun = Facts | OwnFacts


def settings(facts: Facts) -> dict[str, Rows]:
    """The table of settings in groups: what the recipe sets, by the names of its fields, and what follows from it."""
    defaults = json.loads(json.dumps(asdict(Recipe())))
    recipe = {
        table: {
            table if field == "name" else f"{'public ' * (table == 'public')}{field.replace('_', ' ')}": shown(value)
            for field, value in fields.items()
            if value is not None and (table in _ALWAYS or value != defaults[table][field])
        }
        for table, fields in json.loads(facts.as_json())["recipe"].items()  # which has no folders of the user
    }
    inputs = f"{' × '.join(map(str, facts.input_shape))} {'words' if facts.words else 'numbers'}"
    outputs = "a number to predict" if facts.recipe.data.target else f"{facts.classes} classes"
    known = {
        "declared size": f"{facts.declared_size:,} examples",
        "example": f"{inputs}, {outputs}",
        "trained parameters": f"{facts.parameters:,}",
        **({"first weights": f"public file {facts.public_weights[:8]}"} if facts.public_weights else {}),
    }
    unsaid = f"on {facts.device}; how long is not published, since it tells about the number of runs"
    spent = unsaid if facts.seconds is None else f"{duration(facts.seconds)} on {facts.device}"
    groups = {
        "Data": {**recipe["data"], "data": facts.data, **known},
        "Model": recipe["model"] | recipe["public"] | recipe["augmentation"] | {"model": facts.model_name},
    }
    if facts.private:
        cost = privacy_rows(facts, facts.recipe.privacy.accountant)
        cost["epsilon"] += f" (budget {facts.recipe.privacy.epsilon:g})"
        groups["Privacy"] = recipe["privacy"] | recipe["lipschitz"] | cost
        groups["Projection"] = recipe["projection"]
    groups["Training"] = recipe["training"] | {"steps": facts.progress, "time": spent}
    groups["Search"] = dict(rows_of_search(facts.search)) if facts.search else {}
    return {group: list(rows.items()) for group, rows in groups.items() if rows}


def privacy_rows(facts: AnyRun, accountant: str) -> dict[str, str]:
    """What follows from the settings of privacy, for a table."""
    return {
        "epsilon": upward(facts.epsilon),
        "delta": power_of_ten(facts.terms.delta),
        "neighbours": facts.neighbouring,
        "accountant": f"{accountant.upper()}, {facts.accountant_version}",
        "sampling": f"{facts.sampling}, rate {facts.sampling_rate:.4g}",
        "noise multiplier": f"{facts.noise_multiplier:.4g}",
    }


def statement(facts: AnyRun) -> dict[str, tuple[str, ...]]:
    """The privacy statement of a run: its headings, each with its paragraphs; without a recipe, those that hold."""
    sections: dict[str, tuple[Callable[[Any], Iterator[str]], ...]] = {
        "What is guaranteed": (_guarantee, _of_recipe),
        "How the guarantee is kept": (_records, _model, _privacy, _training, _search),
        "How epsilon was computed": (_cost, _tests),
        "Randomness and arithmetic": (_randomness,),
        "Not covered": (_not_covered,),
    }
    left_out = () if isinstance(facts, Facts) else (_of_recipe, _records, _model, _search, _tests)
    texts = {
        heading: chain.from_iterable(part(facts) for part in parts if part not in left_out)
        for heading, parts in sections.items()
    }
    return {heading: tuple(re.sub(r"\n +", " ", text) for text in of_one) for heading, of_one in texts.items()}


class Statement(str):
    """The statement of a run as text, which a notebook shows with its lines."""

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self)}</pre>"


def as_text(sections: Mapping[str, Sequence[str]], *, title: str) -> str:
    """The statement as plain text, for ``privacy.txt``."""
    blocks = [f"{title}\n{'=' * len(title)}"]
    for heading, paragraphs in sections.items():
        blocks.append(f"{heading}\n{'-' * len(heading)}")
        blocks += [textwrap.fill(paragraph, 88) for paragraph in paragraphs]
    return "\n\n".join(blocks) + "\n"


def as_card(facts: Facts) -> str:
    """The model card in the format of Hugging Face, for ``card.md``: test figures and the statement in Markdown."""
    figures = [f"- {name}: {value}" for name, value in facts.test.rows(facts.class_names)] if facts.test else []
    sections = {"Test figures": [set_of_tests(facts), "\n".join(figures)]} if figures else {}
    blocks = ["---\nlibrary_name: noisette\ntags:\n- differential-privacy\n---"]
    blocks.append(f"# {facts.model_name} trained on {facts.data}")
    for heading, paragraphs in (sections | statement(facts)).items():
        blocks += [f"## {heading}", *paragraphs]
    return escape("\n\n".join(blocks), quote=False) + "\n"


def set_of_tests(facts: Facts) -> str:
    """Of which examples the figures are."""
    data, clipped = facts.recipe.data, ""
    if data.target is not None:
        clipped = f" Errors are of targets clipped to {_bounds(data, '..')}: how far one lies outside does not count."
    if data.holdout is None:
        return f"Computed on the public test examples, exactly.{clipped}"
    return (
        f"Computed exactly, without noise, on the records held out: about {percent(data.holdout)} of all, drawn at "
        f"random and not trained on. These figures are not covered by the guarantee.{clipped}"
    )


def _bounds(data: DataSection, between: str) -> str:
    assert data.target is not None, "a number is predicted"
    low, high = data.target
    return f"{low:g}{between}{high:g} {data.unit}".rstrip()


def rows_of_search(search: SearchFacts) -> Rows:
    """Name and value of each fact, for tables: first the settings that were found."""
    rows = [(name, f"{shown(value)}, from {search.over[name]}") for name, value in search.settings.items()]
    score = "on public test examples"
    if search.score is not None and search.held_out is not None and search.score_deviation is not None:
        over = ", which is above 100 % where there are more records than declared" if search.score > 1 else ""
        score = (
            f"{percent(search.score)} of the declared number held out{over}. This is {percent(search.held_out)} of the "
            "records, which were not trained on; the noise has the standard deviation "
            f"{percent(search.score_deviation)}"
        )
    all_of_them = f"{search.compared} runs would cost epsilon {upward(search.epsilon_of_all)}"
    return [*rows, ("runs", search.runs), ("score", score), ("to release all", all_of_them)]


def advice(search: SearchFacts, epsilon: float) -> str:
    """That releasing all runs would be cheaper, "" where it would not be."""
    if search.epsilon_of_all > epsilon:
        return ""
    return (
        f"Releasing all of {search.compared} runs with the same noise would cost epsilon "
        f"{upward(search.epsilon_of_all)}, no more than this search of {search.mean:g} runs on average, "
        f"{upward(epsilon)}: rather train that many times with noisette train, and choose afterwards as you like."
    )


def _records(facts: Facts) -> Iterator[str]:
    """How each record becomes numbers by itself."""
    data = facts.recipe.data
    alone = """One record is one whole text: a single word of it has no guarantee of its own, and neither have all texts
    of one author together."""
    if data.columns:
        columns = Columns.of(data.columns)
        yield f"""Inputs: {columns.width}, made from {len(columns.names)} columns by the declaration in run.json (names,
        bounds, categories and what a missing or another value counts as), which is taken to be public: if it was
        written by looking at the records, that has no guarantee. Numbers are clipped to their bounds, and nothing was
        learned from the records."""
    if data.image_size is not None:
        width, height = data.image_size
        colour = "grey" if data.grey else "colour"
        yield f"Images: each was scaled and cut to {width} x {height} pixels in {colour} by itself."
    if data.skip_unlabelled:
        yield f"""Records: the rows with a value in the column {data.label!r}; each other row was left out by itself,
        and nothing was computed from it."""
    if facts.words:
        by = f"a fixed hash of the word to one of {facts.words:,} numbers"
        if facts.public_weights and facts.recipe.model.weights is None:
            by = "the tokenizer of a public model"
        yield f"""Words: the first {data.tokens} words of a text are numbered by {by}; no vocabulary was learned from
        the records. {alone}"""
    if data.target is not None:
        yield f"""Target: the number in the column {data.label!r}, clipped to its declared bounds,
        {_bounds(data, " to ")}. The loss is the squared error on a scale on which the bounds are -1 and 1."""


def _model(facts: Facts) -> Iterator[str]:
    """What of the model comes from public examples, and from private principal components."""
    model, public, projection = facts.recipe.model, facts.recipe.public, facts.recipe.projection
    if facts.public_weights and model.backbone:
        name = Path(model.backbone).name
        yield f"""Features: of the public network {name}, whose weights have the SHA-256 {facts.public_weights}. Trained
        on: {learned_from(model.backbone)}. Those examples have no guarantee here: they are taken to be public, and to
        hold none of these records. Features of the records are kept in the user's cache, in files that the owner alone
        can read; delete them with the records."""
    elif facts.public_weights:
        held = "the files of a model in a folder" if model.weights is None else "a file"
        yield f"""First weights: from {held} with the SHA-256 {facts.public_weights}. The records that these weights
        were trained on have no guarantee here: they are taken to be public."""
    for used, user in (
        (model.batch_norm, f'The norm in the place of batch norm ("{model.batch_norm}")'),
        (model.standardised, "The standardisation of the fixed features"),
        (model.whitened, "The whitening of the fixed features"),
    ):
        if used and public.data:
            yield f"""{user} takes statistics from {public.examples} examples of {Path(public.data).name}, chosen by the
            seed {public.seed}. These examples have no guarantee: they are taken to be public."""
    if projection.components:
        yield f"""Before training the records were projected on {projection.components} principal components, found from
        the sum of the outer products of all records, each scaled to norm 1, with Gaussian noise of standard deviation
        {projection.noise_multiplier:g} on every entry. The ledger and epsilon include this release."""


def _privacy(facts: AnyRun) -> Iterator[str]:
    yield f"Sampling: {facts.sampling}. {_batches(facts)} A batch may be empty, and is then released like any other."
    yield from _by_layers(facts) if facts.lipschitz else _by_clipping(facts)
    event = event_of(facts.event)
    if isinstance(event, BandedGaussian) and event.bands > 1:
        before = "step before" if event.bands == 2 else f"{event.bands - 1:,} steps before"
        yield f"""Correlation: the noise of a step partly takes back that of the {before}. It is the noise named above
        times the inverse of a matrix C with {event.bands:,} diagonals, whose columns have norm 1 at most: all steps
        together release as much as C times the sums, with the noise named above; what a record adds to that in one step
        is orthogonal to what it adds in another. The noise of earlier steps is in memory alone. A resumed run starts
        with independent noise."""


def _batches(facts: AnyRun) -> str:
    event = event_of(facts.event)
    each = f"Each record enters the batch of a step independently with probability {facts.sampling_rate:.6g}"
    match event:
        case UserLevel(records=1):
            return each.replace("record", "user", 1) + ", with one record."
        case UserLevel():
            return f"{each}. Epsilon counts that up to {event.records:,} records of one user may enter it."
        case Truncated():
            return f"""{each}. A batch of more than {event.largest_batch:,} records is replaced by as many of them,
            drawn by the secret key. The data set is declared to have at most {event.most_records:,} records."""
        case BallsInBinsGaussian():
            return f"""In each pass of {event.bins:,} steps, each record chooses the batch of one step, uniformly and
            independently. Epsilon counts a pass that was begun as a whole one; a resumed run begins a new pass."""
        case BandedGaussian() if event.bands > 1:
            return f"""Each record belongs to one of {event.bands:,} groups, drawn by the secret key; steps take them in
            turn. Each record of a step's group enters its batch independently with probability
            {event.of_round.sampling_rate:.6g}, so a record is in at most one of {event.bands:,} consecutive batches.
            Epsilon counts a round of {event.bands:,} steps that was begun as a whole one; a resumed run draws new
            groups and begins a new round."""
        case _:
            return f"{each}."


def _by_clipping(facts: AnyRun) -> Iterator[str]:
    """Sensitivity and noise where the gradient of each example is clipped, in the words of the clipping rule."""
    assert facts.max_grad_norm is not None, "something is clipped"
    terms, rule, noise = facts.terms, facts.terms.rule, facts.noise_multiplier
    numbers = {
        "parameters": f"{facts.parameters:,}",
        "groups": facts.groups,
        "norm": f"{facts.max_grad_norm:g}",
        "each": f"{facts.max_grad_norm / math.sqrt(facts.groups):g}",
        "first": terms.first_norm,
    }
    sensitivity = rule.sensitivity.format(**numbers)
    yield f"""Sensitivity: {rule.statement.format(**numbers)}, so one record moves the sum of a batch by at most
    {sensitivity}, in real arithmetic; for rounding, the noise is that of a sensitivity larger by one part in 8,192. The
    clipped sum is computed by the engine {terms.engine}; every engine computes the same sum."""
    if len(bounds := set(getattr(facts, "bounds", ()))) > 1 and not facts.parts:
        yield f"""Noise: Gaussian, on every element of every step's sum, with standard deviation
        {noise * math.sqrt(facts.groups):.6g} times the bound of its group; bounds are from {min(bounds):g} to
        {max(bounds):g}. In units of its noise one record moves all groups together by at most one over the noise
        multiplier, {noise:.6g}."""
        return
    if not facts.parts:
        yield f"""Noise: Gaussian, with standard deviation {noise:.6g} times {sensitivity} (noise multiplier times
        sensitivity), on every element of every step's sum."""
        return
    moved = {part: sensitivity if part.name == "gradient" else f"{part.sensitivity:g}" for part in facts.parts}
    released = [
        f"the {part.name}, which one record moves by at most {most}, with noise of standard deviation "
        f"{noise / math.sqrt(part.share):.6g} times {most}"
        for part, most in moved.items()
    ]
    yield f"""Released: every step releases {len(facts.parts)} sums together: {"; ".join(released)}. The clipping count
    adds one half for each example of the batch whose norm is within C, and subtracts one half for each other one."""
    yield f"""Noise: Gaussian, on every element of every step's sums. In units of its noise one record moves all sums
    together by at most one over the noise multiplier, {noise:.6g}, so the sums of a step cost as much as one sum with
    this noise multiplier."""


def _by_layers(facts: AnyRun) -> Iterator[str]:
    lipschitz, terms = facts.lipschitz, facts.terms
    assert lipschitz is not None, "the layers bound the gradient"
    scores = "Nothing is clipped."
    if terms.logit_clip:
        scores = f"""A record's gradient at the scores is scaled to a norm of at most {terms.logit_clip:g}; below the
        scores nothing is clipped."""
    moved, noised = (
        ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        for values in (lipschitz.sensitivities, lipschitz.deviations)
    )
    yield f"""Sensitivity: the layers bound it. Inputs are scaled to a declared norm. Every layer has a known Lipschitz
    constant, certified after each step, and so has the loss, which is {terms.loss}. {scores} One record moves the sum
    of a batch, for each parameter, by a Euclidean norm of at most: {moved} (at the last step). One part in ten thousand
    of each is slack for rounding. The weights are projected after each step; the projection uses released values
    alone."""
    yield f"""Noise: Gaussian, on every element of every step's sum, with a standard deviation for each parameter:
    {noised} (at the last step). In units of the noise one record moves all parameters together by at most one over the
    noise multiplier, {facts.noise_multiplier:.6g}."""


def _training(facts: AnyRun) -> Iterator[str]:
    if isinstance(facts, Facts) and facts.recipe.augmentation.moves:
        yield f"""Views: the loss of a record is the mean over {facts.recipe.augmentation.views} views of it, mirrored
        or shifted. Their mean gradient is the gradient of that record, which is bounded once."""
    yield f"""Normaliser: the noised sum is divided by {facts.terms.batch_size:g}, a declared constant, however many
    records the batch held."""
    resumed = in_search = ""
    if facts.resumed:
        times = "once, with" if facts.resumed == 1 else f"{facts.resumed} times, each time with"
        resumed = f" The run was continued in another process {times} a new secret key."
    if resumed or facts.steps_lost:
        lost = "1 step was" if facts.steps_lost == 1 else f"{facts.steps_lost:,} steps were"
        resumed += f""" {lost} lost when a process
        ended early: what was lost has no part in the saved weights, and epsilon covers it, carried out or not."""
    if facts.search:
        in_search = " The ledger holds them, with those of the other runs, as one search."
    ledger = f"The ledger is the file {facts.terms.ledger}; the seal of its last line is {facts.ledger_head}."
    if facts.terms.ledger is None:
        ledger = "The ledger is in memory alone, and is gone when the process ends."
    yield f"""Steps: {facts.steps_planned} planned, {facts.steps} reserved in the ledger and covered by epsilon,
    {facts.steps_taken} carried out.{resumed}{in_search} {ledger}"""


def _search(facts: Facts) -> Iterator[str]:
    if (search := facts.search) is None:
        return
    drawn = ", ".join(f"{name} from {text}" for name, text in search.over.items())
    chosen = f"Settings: drawn for each run anew, independently of all records: {drawn}. The run was chosen by "
    if search.held_out is None:
        yield f"""{chosen}its result on the test examples, which are taken to be public and have no guarantee. So the
        test figures of this run are those of the best of several, and better than on new examples."""
    else:
        yield f"""{chosen}a noisy score: the number of right answers, each counting from 0 to 1, on records that were
        held out with probability {search.held_out:g} and not trained on, plus Gaussian noise, over a public number. The
        ledger holds the score as a part of each run, and these records have the same guarantee as the others."""


def _guarantee(facts: AnyRun) -> Iterator[str]:
    terms = facts.terms
    seen = "every step of this run, but not the other runs of the search," if facts.search else "every step"
    epsilon, delta, unit = upward(facts.epsilon), power_of_ten(terms.delta), facts.unit
    if facts.epsilon == math.inf:
        yield "NOT PRIVATE: epsilon is infinite, so what was trained may tell everything about the records."
        return
    whom = "one record, which is one entry of the training set"
    if unit == "user":
        used = "one is" if terms.records_per_user == 1 else f"{terms.records_per_user} are"
        whom = f"""one user, with all records of the training set that have {terms.users}, whatever their number. Of
        each user's records at most {used} used, drawn by the secret key"""
    yield f"""Everything that this run trained on the records of {facts.data} (the saved weights, the weights after
    every step, and the state of the optimizer) is ({epsilon}, {delta})-differentially private: epsilon = {epsilon},
    delta = {delta}."""
    yield f"""Relation: {facts.neighbouring}. Unit: {whom}. For any set of outcomes of the training, its probability
    with the {unit} is at most e^{epsilon} times its probability without the {unit}, plus {delta}; the same holds with
    the two exchanged."""
    others = "the records of all other users" if unit == "user" else "all other records"
    yield f"""The guarantee holds against an attacker who sees {seen} and knows or has forged {others}. It does not
    depend on publishing the last weights only."""
    yield """Contract: the loss is a function of one example, of the model's weights and buffers, and of torch's global
    random generators; it keeps nothing between calls, and no operation of torch in it sees two examples."""
    one_over_size = 1 / (terms.public_users or facts.declared_size)
    if isinstance(facts, OwnFacts) and terms.delta >= one_over_size:
        yield f"""Large delta: it is not below one over the declared size, {power_of_ten(one_over_size)}. With a delta
        above that, publishing one record in the clear would count as private."""


def _of_recipe(facts: Facts) -> Iterator[str]:
    """What a recipe adds to the guarantee: records held out, a search, and switches."""
    privacy, data, unit = facts.recipe.privacy, facts.recipe.data, facts.unit
    if data.holdout is not None:
        yield f"""Records held out: before the first step each {unit} was held out with probability {data.holdout:g},
        drawn by a secret key that is independent of what records say and was forgotten when the run ended. What was
        held out was not trained on. The guarantee above is for the training. The figures on the records held out are
        exact and have none: they may reveal the number of these records, and something about each of them. If they must
        not, publish the weights without report.html and run.json."""
    if facts.search is not None:
        yield f"""Search: this run is the best of a search, and epsilon is the cost of the whole search. The other runs
        were discarded: their weights, settings and scores left no file. The number of runs is {facts.search.runs},
        drawn from a key that was never written down. The guarantee does not hold against somebody who learns how long
        the search took, or saw it at work: that tells about the number of runs, and so about the {unit} in question."""
    switches = "none."
    if privacy.allow_large_delta:
        switches = f"""allow_large_delta, which turns off the rule that delta be below one over the declared size,
        {power_of_ten(1 / facts.declared_size)}. With a delta above that, publishing one record in the clear would count
        as private."""
    yield f"Unsafe switches: {switches}"


def _cost(facts: AnyRun) -> Iterator[str]:
    terms = facts.terms
    yield f"""Accountant: {terms.accountant}, by {facts.accountant_version}, rounded upwards. Epsilon is the larger of
    the values for adding and for removing a {facts.unit}."""
    if facts.declarations > 1 and facts.search is None:
        yield f"""The ledger holds {facts.declarations} declarations, which epsilon covers, and each may have been
        chosen by the results of those before it. The accountant would need all of them to be fixed before the first
        release. So epsilon is that of a Rényi odometer, which holds whatever was chosen; or it is the budget, where
        that is less and a Rényi filter has kept it."""
    elif (others := sum(times for _, times in facts.released) - facts.steps) > 0 and facts.search is None:
        yield f"Epsilon covers further releases ({others:,}), declared together with this run, which alone costs less."
    size = f"{terms.public_users:,} users" if terms.public_users else f"{facts.declared_size:,}"
    follow = " from which the sampling rate and the number of steps follow"
    if isinstance(facts, OwnFacts):
        follow = ", as are the sampling rate and the number of steps"
    yield f"Size of the training set: {size}, a declared and public constant{follow}."


def _tests(facts: Facts) -> Iterator[str]:
    data = facts.recipe.data
    actual = ", which stays private" if data.holdout is None else ", except the figures on records held out"
    yield f"""Nothing that is published was computed from the actual number of
    {"users" if data.public_users else "records"}{actual}."""
    if data.holdout is not None:
        yield "Test figures are exact: they are of the records held out, and have no guarantee."
    else:
        measured = "Test accuracy" if data.target is None else "The test error"
        yield f"{measured} is exact: the test examples are taken to be public and have no guarantee."


def _randomness(facts: AnyRun) -> Iterator[str]:
    run, seed = "each process of this run", ""
    if isinstance(facts, Facts):
        run = run if facts.resumed else "this run alone"
        seed = f" The seed {facts.recipe.training.seed} determines the first weights only."
    yield f"""Noise and sampling come from ChaCha20 keystreams under a key of 256 bits, which the operating system
    generated for {run} and which was never written down.{seed} Gaussian values are computed by the Box-Muller transform
    from 53 bits of radius, or from up to 1,589 where the first 24 are zero, so that the end of the tail adds less than
    1e-30 to delta."""
    yield """Arithmetic: floating point. Rounding of norms and sums is covered by noise that is larger by one part in
    8,192. The noise is a rounded number, not an exact sample from a grid."""


def _not_covered(facts: AnyRun) -> Iterator[str]:
    published = " This run published none." if isinstance(facts, Facts) else ""
    time = " time, which the report states" if isinstance(facts, Facts) and facts.seconds is not None else " time"
    more = "Other runs and searches" if facts.search else "Other runs"
    yield f"{more} on the same records that are not in this ledger, and choosing among them: their costs add up."
    if facts.unit == "user":
        yield "People who are several users: the guarantee is per value of the column that names the user."
    else:
        yield "People with several records: the guarantee is per record, not per person."
    yield """Anything learned from the records before training: vocabularies, means, lists of classes, a filter, or
    hyper-parameters tuned on them."""
    yield f"Values computed on the training records without noise, such as a training loss.{published}"
    yield f"Running{time}, memory, power and network traffic, and whether the run came to an end."
    yield "Attacks on the low bits of floating-point noise."
    yield """Code of the operator that breaks the contract: a loss that keeps something of one example for the next, or
    reads records otherwise than through its arguments."""
    yield "A dishonest operator, a compromised machine, poisoned data; fairness, correctness, and the law."
