"""Audits: hypothesis tests and measurements that refute a privacy guarantee which training does not keep."""

from noisette.audit.audited_run import RunAudit, audit_run
from noisette.audit.certificate import certified_epsilon, certified_mu, epsilon_of
from noisette.audit.membership import Attack, Membership, OneRunAudit, audit_guesses, audit_one_run, membership_of
from noisette.audit.step_audit import (
    Axes,
    BehindPublicNorm,
    Canaries,
    CanaryModel,
    LipschitzAxes,
    NeighbourAudit,
    Rows,
    Scores,
    StepAudit,
    Verdict,
    assert_consistent,
    audit_bound,
    audit_neighbours,
    audit_step,
    run_step_game,
)

__all__ = [
    "Attack",
    "Axes",
    "BehindPublicNorm",
    "Canaries",
    "CanaryModel",
    "LipschitzAxes",
    "Membership",
    "NeighbourAudit",
    "OneRunAudit",
    "Rows",
    "RunAudit",
    "Scores",
    "StepAudit",
    "Verdict",
    "assert_consistent",
    "audit_bound",
    "audit_guesses",
    "audit_neighbours",
    "audit_one_run",
    "audit_run",
    "audit_step",
    "certified_epsilon",
    "certified_mu",
    "epsilon_of",
    "membership_of",
    "run_step_game",
]
