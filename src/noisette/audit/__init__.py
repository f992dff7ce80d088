"""Audits: hypothesis tests and measurements that refute a privacy guarantee which training does not keep."""

from noisette.audit.canary_models import Axes, BehindPublicNorm, Canaries, CanaryModel, LipschitzAxes, Rows
from noisette.audit.certificate import certified_epsilon, certified_mu, epsilon_of
from noisette.audit.membership import Attack, Membership, membership_of
from noisette.audit.neighbours import NeighbourAudit, audit_neighbours
from noisette.audit.one_run import OneRunAudit, audit_guesses, audit_one_run
from noisette.audit.step_audit import StepAudit, Verdict, assert_consistent, audit_bound, audit_step
from noisette.audit.step_game import Scores, run_step_game
from noisette.audit.whole_run import RunAudit, audit_run

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
