"""What the privacy statement says about data of the user's own: how it becomes numbers, and what is held out."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from noisette.accounting.events import (
    BallsInBinsGaussian,
    BandedGaussian,
    TruncatedPoissonGaussian,
    UserLevel,
    event_of,
)
from noisette.accounting.registry import ACCOUNTANTS
from noisette.clipping.registry import CLIPPING_RULES, ENGINES
from noisette.data.columns import Columns
from noisette.training.report.facts import Facts, how_chosen, paragraph
from noisette.training.report.numbers import power_of_ten, upward


def held_out(facts: Facts) -> str:
    """What is guaranteed, and what is not, where records are held out to test with."""
    return (
        f"Records held out: before the first step each {facts.unit} was held out with probability "
        f"{facts.recipe.data.holdout:g}, drawn by a secret key that is independent of what records say and was "
        "forgotten when the run ended. What was held out was not trained on. The guarantee above is for the training; "
        "the figures on the records held out are exact and have none: they may reveal the number of these records, and "
        "something about each of them. If they must not, publish the weights without report.html and run.json."
    )


def of_test_examples(facts: Facts) -> str:
    """What the figures on test examples are computed from."""
    if facts.recipe.data.holdout is None:
        measured = "Test accuracy" if facts.recipe.data.target is None else "The test error"
        return f"{measured} is exact: the test examples are taken to be public and have no guarantee."
    return "Test figures are exact: they are of the records held out, and have no guarantee."


def except_held_out(facts: Facts) -> str:
    """The end of the sentence on what was computed from the actual number of records."""
    return ", which stays private" if facts.recipe.data.holdout is None else ", except the figures on records held out"


def inputs(facts: Facts) -> Iterator[str]:
    """How the values of declared columns, texts and targets become numbers, each record by itself."""
    data = facts.recipe.data
    if data.columns:
        columns = Columns.of(data.columns)
        yield (
            f"Inputs: {columns.width}, made from {len(columns.names)} columns by a declaration (names, bounds, "
            "categories and what a missing or another value counts as), which is in run.json. Numbers are clipped to "
            "their bounds. The declaration is taken to be public, and nothing was learned from the records: if it was "
            "written by looking at them, that has no guarantee."
        )
    if data.image_size is not None:
        width, height = data.image_size
        yield (
            f"Images: each was scaled and cut to {width} x {height} pixels in {'grey' if data.grey else 'colour'} by "
            "itself."
        )
    if data.skip_unlabelled:
        yield (
            f"Records: the rows with a value in the column {data.label!r}. Rows without one were left out, each for "
            "itself, and nothing was computed from them."
        )
    if facts.words:
        tokenized = facts.public_weights and facts.recipe.model.weights is None
        hashed = f"by a fixed hash of the word to one of {facts.words:,} numbers"
        yield (
            f"Words: the first {data.tokens} words of a text are numbered "
            f"{'by the tokenizer of a public model' if tokenized else hashed}; no vocabulary was learned from the "
            "records. One record is one whole text: a single word of it has no guarantee of its own, and neither have "
            "all texts of one author together."
        )
    if data.target is not None:
        low, high = data.target
        bounds = f"{low:g} to {high:g} {data.unit}".rstrip()
        yield (
            f"Target: the number in the column {data.label!r}, clipped to its declared bounds, {bounds}. The loss is "
            "the squared error on a scale on which the bounds are -1 and 1."
        )


_WIDTH = 88
CONTRACT = (
    "Contract: the loss is a function of one example, of the model's weights and buffers, and of torch's global random "
    "generators; it keeps nothing between calls, and no operation of torch in it sees two examples."
)


@dataclass(frozen=True)
class Section:
    """A heading and its paragraphs."""

    heading: str
    paragraphs: tuple[str, ...]


def statement(facts: Facts) -> tuple[Section, ...]:
    """The privacy statement of a run, section by section."""
    return _guarantee(facts), _mechanism(facts), _cost(facts), _randomness(facts), _not_covered(facts)


def as_text(sections: tuple[Section, ...], *, title: str) -> str:
    """The statement as plain text, for ``privacy.txt``."""
    blocks = [f"{title}\n{'=' * len(title)}"]
    for section in sections:
        blocks.append(f"{section.heading}\n{'-' * len(section.heading)}")
        blocks += [textwrap.fill(paragraph, _WIDTH) for paragraph in section.paragraphs]
    return "\n\n".join(blocks) + "\n"


def _guarantee(facts: Facts) -> Section:
    privacy = facts.recipe.privacy
    epsilon, delta = upward(facts.epsilon), power_of_ten(privacy.delta)
    unit = facts.unit
    paragraphs = [
        *_simulation(facts),
        f"Everything that this run trained on the records of {facts.data} (the saved weights, the weights after every "
        f"step, and the state of the optimizer) is ({epsilon}, {delta})-differentially private: epsilon = {epsilon}, "
        f"delta = {delta}.",
        f"Relation: {facts.neighbouring}. Unit: {_unit(facts)}. For any set of "
        f"outcomes of the training, its probability with the {unit} is at most e^{epsilon} times its probability "
        f"without the {unit}, plus {delta}; the same holds with the two exchanged.",
        "The guarantee holds against an attacker who sees every step and knows or has forged all other records. It "
        "does not depend on publishing the last weights only.",
        CONTRACT,
    ]
    if facts.recipe.data.holdout is not None:
        paragraphs.append(held_out(facts))
    if facts.search is not None:
        paragraphs.append(paragraph(facts.search, facts.unit))
    switches = "none."
    if privacy.allow_large_delta:
        switches = (
            "allow_large_delta, which turns off the rule that delta be below one over the declared size, "
            f"{power_of_ten(1 / facts.declared_size)}. With a delta above that, publishing one record in the clear "
            "would count as private."
        )
    paragraphs.append(f"Unsafe switches: {switches}")
    if not facts.completed:
        paragraphs.append(
            f"The run was stopped by hand after {facts.steps_taken} of {facts.steps_planned} steps. The epsilon above "
            "covers the steps taken, and assumes that their outcome did not decide when the run was stopped. Whatever "
            f"the reason, the budget of the whole run holds: epsilon = {privacy.epsilon:g}."
        )
    return Section("What is guaranteed", tuple(paragraphs))


def _simulation(facts: Facts) -> Iterator[str]:
    """That this run is a small one, which stands for a large one."""
    factor, training = facts.recipe.training.simulates, facts.recipe.training
    if factor > 1:
        yield (
            f"SIMULATION: this run stands for one that is {factor} times as large, with batches of "
            f"{factor * training.batch_size} and the noise multiplier {factor * facts.noise_multiplier:.6g}. It is not "
            f"that run and does not have its epsilon: this run costs epsilon = {upward(facts.epsilon)}, which its "
            "ledger has charged. Settings that are chosen by its outcome cost that much."
        )


def _mechanism(facts: Facts) -> Section:
    return Section(
        "How the guarantee is kept",
        (
            *([how_chosen(facts.search)] if facts.search else []),
            *_before_training(facts),
            f"Sampling: {facts.sampling}. {_batches(facts)} A batch may be empty; an empty batch is released like any "
            "other.",
            *_views(facts),
            *(_by_layers(facts) if facts.lipschitz else _by_clipping(facts)),
            f"Normaliser: the noised sum is divided by {facts.recipe.training.batch_size}, a declared constant, "
            "however many records the batch held.",
            f"Steps: {facts.steps_planned} planned, {facts.steps} reserved in the ledger and covered by epsilon, "
            f"{facts.steps_taken} carried out.{_resumed(facts)}{_in_search(facts)} The ledger is the file "
            f"ledger.jsonl; the seal of its last line is {facts.ledger_head}.",
        ),
    )


def _unit(facts: Facts) -> str:
    """Whom the guarantee is for."""
    if facts.unit == "user":
        return (
            "one user, with all its records of the training set, whatever their number. The column "
            f"{facts.recipe.data.users!r} names the user of each record, and of each at most "
            f"{facts.recipe.data.records_per_user} are used, drawn by the secret key"
        )
    return "one record, which is one entry of the training set"


def _batches(facts: Facts) -> str:
    """How the batch of a step is drawn."""
    event = event_of(facts.event)
    rate = f"{facts.sampling_rate:.6g}"
    match event:
        case UserLevel(records=1):
            return f"Each user enters the batch of a step independently with probability {rate}, with one record."
        case TruncatedPoissonGaussian():
            return (
                f"Each record enters the batch of a step independently with probability {rate}. A batch of more than "
                f"{event.largest_batch:,} records is replaced by as many of them, drawn by the secret key; the data "
                f"set has at most {event.most_records:,} records."
            )
        case BallsInBinsGaussian():
            return (
                f"In each pass of {event.bins:,} steps, each record chooses the batch of one step, uniformly and "
                "independently. A resumed run begins a new pass."
            )
        case BandedGaussian():
            return (
                f"Each record belongs to one of {event.bands:,} groups, drawn by the secret key. The steps take the "
                f"groups in turn; each record of a step's group enters its batch independently, with probability "
                f"{event.of_round.sampling_rate:.6g}, so a record is in at most one of {event.bands:,} consecutive "
                f"batches. Epsilon counts each round of {event.bands:,} steps that was begun as a whole one. A resumed "
                "run draws new groups and begins a new round."
            )
        case _:
            return f"Each record enters the batch of a step independently with probability {rate}."


def _views(facts: Facts) -> Iterator[str]:
    """The views of a record, which are one gradient."""
    section = facts.recipe.augmentation
    if section.moves:
        yield (
            f"Views: the loss of a record is the mean over {section.views} views of it, mirrored or shifted. Their "
            "mean gradient is the gradient of that record, which is bounded once."
        )


def _resumed(facts: Facts) -> str:
    if not facts.resumed:
        return ""
    times = "once" if facts.resumed == 1 else f"{facts.resumed} times"
    return (
        f" The run was continued in another process {times}, each time with a new secret key; {facts.steps_lost} steps "
        "were lost when a process ended early. Epsilon covers them, whether or not they were carried out, and they had "
        "no part in the saved weights."
    )


def _in_search(facts: Facts) -> str:
    return "" if facts.search is None else " The ledger holds them, with those of the other runs, as one search."


def _by_clipping(facts: Facts) -> list[str]:
    """Sensitivity and noise where the gradient of each example is clipped, in the words of the clipping rule."""
    assert facts.max_grad_norm is not None, "something is clipped"
    privacy = facts.recipe.privacy
    rule, engine = CLIPPING_RULES[privacy.clipping], ENGINES[privacy.engine]
    numbers = {
        "parameters": f"{facts.parameters:,}",
        "groups": facts.groups,
        "norm": f"{facts.max_grad_norm:g}",
        "each": f"{facts.max_grad_norm / math.sqrt(facts.groups):g}",
        "first": f"{privacy.max_grad_norm:g}",
    }
    sensitivity = rule.sensitivity.format(**numbers)
    return [
        f"Sensitivity: {rule.statement.format(**numbers)}, so one record moves the sum of a batch by at most "
        f"{sensitivity}, in real arithmetic; for rounding, the noise is that of a sensitivity larger by one part in "
        "8,192. "
        f"The clipped sum is computed by the engine {privacy.engine} ({engine.description}); every engine computes the "
        "same sum.",
        *_noise(facts, sensitivity),
    ]


def _noise(facts: Facts, sensitivity: str) -> list[str]:
    """The noise on the gradient, and on everything that a step releases beside it, and how it is correlated."""
    return [*_noise_of_a_step(facts, sensitivity), *_correlation(facts)]


def _correlation(facts: Facts) -> Iterator[str]:
    """How the noise of a step depends on that of earlier ones."""
    event = event_of(facts.event)
    if isinstance(event, BandedGaussian) and event.bands > 1:
        yield (
            f"Correlation: the noise named above is multiplied by the inverse of a matrix C with {event.bands:,} "
            "diagonals whose columns have norm 1 at most, so that the noise of a step partly takes back that of the "
            f"{event.bands - 1:,} steps before. All steps together release as much as C times the sums with the noise "
            "named above, and what a record adds to that is orthogonal for any two of its steps. The noise of earlier "
            "steps is kept in memory, and was never written down; a resumed run starts with independent noise."
        )


def _noise_of_a_step(facts: Facts, sensitivity: str) -> list[str]:
    """The noise on the gradient, and on everything that a step releases beside it."""
    if not facts.parts:
        return [
            f"Noise: Gaussian, with standard deviation {facts.noise_multiplier:.6g} times {sensitivity} (noise "
            "multiplier times sensitivity), on every element of every step's sum."
        ]
    moved = {part.name: sensitivity if part.name == "gradient" else f"{part.sensitivity:g}" for part in facts.parts}
    parts = [
        f"the {part.name}, which one record moves by at most {moved[part.name]}, with noise of standard deviation "
        f"{facts.noise_multiplier / math.sqrt(part.share):.6g} times {moved[part.name]}"
        for part in facts.parts
    ]
    return [
        f"Released: every step releases {len(facts.parts)} sums together: {'; '.join(parts)}. The clipping count adds "
        "one half for each example of the batch whose norm is within C, and subtracts one half for each other one.",
        "Noise: Gaussian, on every element of every step's sums. In units of its noise one record moves all sums "
        f"together by at most one over the noise multiplier, {facts.noise_multiplier:.6g}, so the sums of a step cost "
        "as much as one sum with this noise multiplier.",
    ]


def _by_layers(facts: Facts) -> list[str]:
    """Sensitivity and noise where layers bound the gradient of each example."""
    lipschitz, settings = facts.lipschitz, facts.recipe.lipschitz
    assert lipschitz is not None, "the layers bound the gradient"
    scores = (
        f"A record's gradient at the scores is scaled to a norm of at most {settings.logit_clip:g}; below the scores "
        "nothing is clipped."
        if settings.logit_clip
        else "Nothing is clipped."
    )
    moved = ", ".join(f"{name} {value:.4g}" for name, value in lipschitz.sensitivities.items())
    noised = ", ".join(f"{name} {value:.4g}" for name, value in lipschitz.deviations.items())
    return [
        f"Sensitivity: the layers bound it. Inputs are scaled to a declared norm. Every layer has a known Lipschitz "
        f"constant, certified after each step, and so has the loss, which is the cross-entropy of the scores times "
        f"{settings.tau:g}, divided by {settings.tau:g}. {scores} One record moves the sum of a batch, for each "
        f"parameter, by a Euclidean norm of at most: {moved} (at the last step). One part in ten thousand of each is "
        "slack for rounding. The weights are projected after each step; the projection uses released values alone.",
        "Noise: Gaussian, on every element of every step's sum, with a standard deviation for each parameter: "
        f'{noised} (at the last step; allocation "{settings.allocation}"). In units of the noise one record moves all '
        f"parameters together by at most one over the noise multiplier, {facts.noise_multiplier:.6g}.",
        *_correlation(facts),
    ]


def _before_training(facts: Facts) -> Iterator[str]:
    """What was determined before the first step: public weights, words, public statistics, and the projection."""
    model, public, projection = facts.recipe.model, facts.recipe.public, facts.recipe.projection
    if facts.public_weights:
        yield (
            f"First weights: from {_source(facts)} with the SHA-256 {facts.public_weights}. The records that these "
            "weights were trained on have no guarantee here: they are taken to be public."
        )
    if facts.word_vectors:
        words, length = facts.word_vectors
        yield (
            f"Words: each word is replaced by one of {words:,} vectors of {length} numbers, which are taken to be "
            "public and are not trained. One record is one whole text: a single word of it has no guarantee of its "
            "own, and neither have all texts of one author together."
        )
    yield from inputs(facts)
    if facts.recipe.data.mean:
        yield (
            "Inputs: standardised by declared constants, which are taken to be known and not computed from the records."
        )
    for user, used in (
        (f'The norm in the place of batch norm ("{model.batch_norm}")', model.batch_norm),
        ("The standardisation of the fixed features", model.standardised),
        ("The whitening of the fixed features", model.whitened),
    ):
        if public.data and used:
            yield (
                f"{user} takes statistics from {public.examples} examples of {Path(public.data).name}, chosen by the "
                f"seed {public.seed}. These examples have no guarantee: they are taken to be public."
            )
    if projection.components:
        yield (
            f"Before training the records were projected on {projection.components} principal components, which were "
            "found from the sum of the outer products of all records, each scaled to norm 1, with Gaussian noise of "
            f"standard deviation {projection.noise_multiplier:g} on every entry. The ledger and epsilon include this "
            "release."
        )


def _source(facts: Facts) -> str:
    """What held the first weights."""
    return "a file" if facts.recipe.model.weights is not None else "the files of a model in a folder"


def _cost(facts: Facts) -> Section:
    return Section(
        "How epsilon was computed",
        (
            f"Accountant: {ACCOUNTANTS[facts.recipe.privacy.accountant].method}, by {facts.accountant_version}, "
            "rounded upwards. Epsilon is the larger of the values for adding and for removing a record.",
            *_declarations(facts),
            f"Size of the training set: {facts.declared_size:,}, a declared and public constant from which the "
            "sampling rate and the number of steps follow. Nothing that is published was computed from the actual "
            f"number of records{except_held_out(facts)}.",
            of_test_examples(facts),
        ),
    )


def _declarations(facts: Facts) -> Iterator[str]:
    """Which epsilon it is where releases may have been chosen by the results of earlier ones."""
    if facts.declarations > 1 and facts.search is None:
        yield (
            f"The ledger holds {facts.declarations} declarations, each of which may have been chosen by the results of "
            "those before it. So epsilon is not that of this accountant, which would need all of them to be fixed "
            "before the first release, but that of a Rényi odometer, or the budget, if that is less and a Rényi filter "
            "at orders that depend on the budget alone has kept it."
        )


def _randomness(facts: Facts) -> Section:
    return Section(
        "Randomness and arithmetic",
        (
            "Noise and sampling come from ChaCha20 keystreams under a key of 256 bits, which the operating system "
            f"generated for {'each process of this run' if facts.resumed else 'this run alone'} and which was never "
            f"written down. The seed {facts.recipe.training.seed} determines the first weights only. Gaussian values "
            "are computed by the Box-Muller transform from 53 bits of radius, or from up to 1,589 where the first 24 "
            "are zero, so that the end of the tail adds less than 1e-30 to delta.",
            "Arithmetic: floating point. Rounding of norms and sums is covered by noise that is larger by one part in "
            "8,192. The noise is a rounded number, not an exact sample from a grid.",
        ),
    )


def _not_covered(facts: Facts) -> Section:
    others = (
        "Other runs on the same records, and choosing the best of several. Their privacy costs add up. This statement "
        "is about one run."
        if facts.search is None
        else "Other runs and searches on the same records, and choosing among them. Their privacy costs add up."
    )
    return Section(
        "Not covered",
        (
            others,
            "People with several records: the guarantee is per record, not per person.",
            "Anything learned from the records before training: vocabularies, means, lists of classes, a filter, or "
            "hyper-parameters tuned on them.",
            "Values computed on the training records without noise, such as a training loss. This run published none.",
            f"Running time{'' if facts.seconds is None else ', which the report states'}, memory, power and network "
            "traffic, and whether the run came to an end.",
            "Attacks on the low bits of floating-point noise.",
            "Code of the operator that breaks the contract: a loss that keeps something of one example for the next, "
            "or reads records otherwise than through its arguments.",
            "A dishonest operator, a compromised machine, poisoned data; fairness, correctness, and the law.",
        ),
    )
