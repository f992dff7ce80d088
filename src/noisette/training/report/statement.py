"""The privacy statement: what is promised, on what grounds, and what is not."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

from noisette.accounting.accountants.registry import ACCOUNTANTS
from noisette.training.report.facts import Claim, Facts, LayerBounds
from noisette.training.report.numbers import power_of_ten, upward

_WIDTH = 88


@dataclass(frozen=True)
class Section:
    """A heading and its paragraphs."""

    heading: str
    paragraphs: tuple[str, ...]


def statement(facts: Facts) -> tuple[Section, ...]:
    """The privacy statement of a run, section by section."""
    if facts.claim is None:
        return (_no_promise(facts), _mechanism(facts))
    return (
        _promise(facts, facts.claim),
        _mechanism(facts),
        _price(facts, facts.claim),
        _randomness(facts),
        _not_covered(),
    )


def as_text(sections: tuple[Section, ...], *, title: str) -> str:
    """The statement as plain text, for ``privacy.txt``."""
    blocks = [f"{title}\n{'=' * len(title)}"]
    for section in sections:
        blocks.append(f"{section.heading}\n{'-' * len(section.heading)}")
        blocks += [textwrap.fill(paragraph, _WIDTH) for paragraph in section.paragraphs]
    return "\n\n".join(blocks) + "\n"


def _no_promise(facts: Facts) -> Section:
    return Section(
        "What is promised",
        (
            "Nothing. This run has no privacy claim. Its weights and all that is in this folder may tell of single "
            f"records of {facts.data}, and are to be kept as the records are.",
            f"The reason: {facts.no_claim_because}.",
            "So there is no price of this run, neither here nor to be computed from the numbers in this folder: what "
            "the same noise and the same steps cost where examples are kept apart does not hold for it.",
            'For a run with a claim, take batch_norm = "public" and give a budget.',
        ),
    )


def _promise(facts: Facts, claim: Claim) -> Section:
    epsilon, delta = upward(claim.epsilon), power_of_ten(claim.delta)
    paragraphs = [
        f"All that this run trained on the records of {facts.data} (the saved weights, every weight on the way to "
        f"them, and the state of the optimizer) is ({epsilon}, {delta})-differentially private: epsilon = {epsilon}, "
        f"delta = {delta}.",
        f"Relation: {claim.neighbouring}. Unit: one record, that is one entry of the training set. Take any set of "
        f"outcomes of the training. With the record its probability is at most e^{epsilon} "
        f"times what it is without the record, plus {delta}; and the other way round.",
        "This holds against someone who sees every step, knows or chose all other records, the first weights, the "
        "model and the settings, and may choose the record in question. It does not depend on publishing the last "
        "weights only.",
    ]
    switches = "none."
    if claim.allow_large_delta:
        switches = (
            "allow_large_delta, which sets aside the rule that delta be below one over the declared size, "
            f"{power_of_ten(1 / facts.declared_size)}. With a delta above that, publishing one record in the clear "
            "would count as private."
        )
    paragraphs.append(f"Unsafe switches: {switches}")
    if not facts.completed:
        paragraphs.append(
            f"The run was stopped by hand after {facts.steps_taken} of {facts.steps_planned} steps. The epsilon above "
            "pays for the steps taken and presumes that their outcome did not decide when to stop. Whatever led to the "
            f"stop, the budget of the whole run holds: epsilon = {claim.budget:g}."
        )
    return Section("What is promised", tuple(paragraphs))


def _mechanism(facts: Facts) -> Section:
    claim = facts.claim
    return Section(
        "How it is kept" if claim else "What was done",
        (
            *_start(facts),
            *_words(facts),
            *_public(facts),
            *_projection(facts),
            f"Sampling: {facts.sampling}. Each record enters the batch of a step independently with probability "
            f"{facts.sampling_rate:.6g}. Batches may be empty; an empty one is released like any other.",
            *(_by_layers(facts.lipschitz) if facts.lipschitz else _by_clipping(facts)),
            f"Normaliser: the noised sum is divided by {facts.expected_batch_size}, a declared constant, whatever the "
            "batch held.",
            f"Steps: {facts.steps_planned} planned, {claim.steps} reserved in the ledger and paid for by epsilon, "
            f"{facts.steps_taken} carried out.{_resumed(facts)} The ledger is the file ledger.jsonl; its last line is "
            f"sealed by {claim.ledger_head}."
            if claim
            else f"Steps: {facts.steps_planned} planned, {facts.steps_taken} carried out.",
        ),
    )


def _resumed(facts: Facts) -> str:
    if not facts.resumed:
        return ""
    times = "once" if facts.resumed == 1 else f"{facts.resumed} times"
    return (
        f" The run went on in another process {times}, under a fresh key; {facts.steps_lost} steps of a process that "
        "died are paid for, whether or not they were carried out, and did not shape the saved weights."
    )


def _by_clipping(facts: Facts) -> tuple[str, str]:
    """Sensitivity and noise where each example's gradient is scaled."""
    bound = f"{facts.max_grad_norm:g}"
    return (
        f"Sensitivity: {_clipping(facts)}, so one record moves the sum of a batch by at most "
        f"{bound}. As slack for rounding, the scaling aims below that norm, by a millionth in single precision."
        if facts.claim
        else f"Clipping: {_clipping(facts)}. That does not bound what one record changes, see above.",
        f"Noise: Gaussian, with standard deviation {facts.noise_multiplier:.6g} times {bound} (noise multiplier "
        f"times bound), on every element of every step's sum.",
    )


def _by_layers(lipschitz: LayerBounds) -> tuple[str, str]:
    """Sensitivity and noise where layers bound each example's gradient."""
    scores = (
        f"A record's gradient at the scores is scaled to a norm of at most {lipschitz.logit_clip:g}; behind the scores "
        "nothing is clipped."
        if lipschitz.logit_clip
        else "Nothing is clipped."
    )
    moved = ", ".join(f"{name} {value:.4g}" for name, value in lipschitz.sensitivities.items())
    noised = ", ".join(f"{name} {value:.4g}" for name, value in lipschitz.deviations.items())
    return (
        f"Sensitivity: the layers bound it. Inputs are scaled to a declared norm, every layer has a known Lipschitz "
        f"constant, certified after each step, and so has the loss, cross-entropy of the scores times "
        f"{lipschitz.tau:g}, divided by it. {scores} One record moves the sum of a batch, for each parameter, by a "
        f"Euclidean norm of at most: {moved} (at the last step), a "
        "ten-thousandth of which is slack for rounding. Weights are projected after each step, which looks at released "
        "values alone.",
        "Noise: Gaussian, on every element of every step's sum, with a standard deviation for each parameter: "
        f'{noised} (at the last step; allocation "{lipschitz.allocation}"). In units of the noise one record moves all '
        "parameters together by at most one over the noise multiplier.",
    )


def _clipping(facts: Facts) -> str:
    assert facts.max_grad_norm is not None, "something is clipped"
    if facts.layers > 1:
        each = facts.max_grad_norm / math.sqrt(facts.layers)
        return (
            f"the gradient of each example is scaled in each of {facts.layers} layers to a Euclidean norm of at most "
            f"{each:g}, which for all {facts.parameters:,} trained parameters together gives at most "
            f"{facts.max_grad_norm:g}"
        )
    return (
        f"the gradient of each example, over all {facts.parameters:,} trained parameters together, is scaled to a "
        f"Euclidean norm of at most {facts.max_grad_norm:g}"
    )


def _start(facts: Facts) -> list[str]:
    if not facts.public_weights:
        return []
    return [
        f"First weights: from a file with the SHA-256 {facts.public_weights}. Nothing is promised to the records that "
        "it was learnt from: they are taken to be public."
    ]


def _public(facts: Facts) -> list[str]:
    if not facts.public_examples:
        return []
    taking = [
        *([f'Batch norm ("{facts.batch_norm}") takes'] if facts.batch_norm else []),
        *(["The fixed features' standardisation takes"] if facts.standardised else []),
    ]
    return [
        f"{who} statistics from {facts.public_examples} examples of {facts.public_data}, chosen by the seed "
        f"{facts.public_seed}. Nothing is promised to those: they are taken to be public."
        for who in taking
    ]


def _words(facts: Facts) -> list[str]:
    if not facts.word_vectors:
        return []
    words, numbers = facts.word_vectors
    return [
        f"Words: {words:,} vectors of {numbers} numbers each, taken to be public and not trained, stand for the words. "
        "One record is one whole text: nothing is promised to a single word of it, nor to all texts of one author."
    ]


def _projection(facts: Facts) -> list[str]:
    if not facts.components:
        return []
    return [
        f"Before training the records were projected on {facts.components} principal components, found from the sum of "
        "the outer products of all records, each scaled to norm 1, with Gaussian noise of standard deviation "
        f"{facts.components_noise_multiplier:g} on every entry. The ledger and epsilon count it in."
    ]


def _price(facts: Facts, claim: Claim) -> Section:
    method = ACCOUNTANTS[claim.accountant].method
    return Section(
        "How epsilon was computed",
        (
            f"Accountant: {method}, by {claim.accountant_version} under noisette {facts.version}, rounded upwards, for "
            "a record added and a record removed, whichever costs more.",
            f"Of delta, {power_of_ten(claim.tail_delta)} is set aside for the far tail of the Gaussian that the noise "
            "generator cannot reach; the accountant was given the rest.",
            f"Size of the training set: {facts.declared_size:,}, a declared and public constant from which the "
            "sampling rate and the number of steps follow. Nothing published was computed from the number of records, "
            "which stays private.",
            "Test accuracy is exact: the test examples are taken to be public and have no protection.",
        ),
    )


def _randomness(facts: Facts) -> Section:
    return Section(
        "Randomness and arithmetic",
        (
            "Noise and sampling come from ChaCha20 keystreams under a key of 256 bits that the operating system gave "
            f"to {'each process of this run' if facts.resumed else 'this run alone'}; it was never written down. The "
            f"seed {facts.seed} sets the first weights only. Gaussian values are made by Box-Muller from 53 bits of "
            "radius.",
            "Arithmetic: floating point. Rounding of the norms is covered by the slack above, the tail of the "
            "generator by the part of delta above. The noise is a rounded number, not an exact sample from a grid.",
            "Before the first step the claim was tested on the model itself with public inputs: the sum of one example "
            "keeps its bound, and the sum of several is the sum of each alone.",
        ),
    )


def _not_covered() -> Section:
    return Section(
        "Not covered",
        (
            "Other runs on the same records, and choosing the best of several. Their prices add up. This statement "
            "knows of one run.",
            "People with several records: the promise is per record, not per person.",
            "Anything learned from the records before training: vocabularies, means, lists of classes, a filter, or "
            "hyper-parameters tuned on them.",
            "Figures computed on the training records without noise, such as a training loss. This run published none.",
            "Running time, which the report states, memory, power and network traffic, and whether the run came to an "
            "end.",
            "Attacks on the low bits of floating-point noise.",
            "Code of the user's own inside the model that keeps state from one example to the next or reads other "
            "files; the test before the first step finds the common cases only.",
            "A dishonest operator, a compromised machine, poisoned data; fairness, correctness, and the law.",
        ),
    )
