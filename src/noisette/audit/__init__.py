"""Audits: games and measurements that would show it if training leaked more than it claims."""

from noisette.audit.canary_models import Axes as Axes
from noisette.audit.canary_models import BehindPublicNorm as BehindPublicNorm
from noisette.audit.canary_models import Canaries as Canaries
from noisette.audit.canary_models import CanaryModel as CanaryModel
from noisette.audit.canary_models import LipschitzAxes as LipschitzAxes
from noisette.audit.canary_models import Rows as Rows
from noisette.audit.certificate import certified_epsilon as certified_epsilon
from noisette.audit.certificate import certified_mu as certified_mu
from noisette.audit.certificate import epsilon_of as epsilon_of
from noisette.audit.guesses import OneRunAudit as OneRunAudit
from noisette.audit.guesses import audit_guesses as audit_guesses
from noisette.audit.membership import Attack as Attack
from noisette.audit.membership import Membership as Membership
from noisette.audit.neighbours import NeighbourAudit as NeighbourAudit
from noisette.audit.neighbours import audit_neighbours as audit_neighbours
from noisette.audit.scores import Scores as Scores
from noisette.audit.step_audit import StepAudit as StepAudit
from noisette.audit.step_audit import Verdict as Verdict
from noisette.audit.step_audit import assert_consistent as assert_consistent
from noisette.audit.step_audit import audit_bound as audit_bound
from noisette.audit.step_audit import audit_step as audit_step
from noisette.audit.step_game import play_step as play_step
from noisette.audit.step_game import run_step_game as run_step_game
from noisette.audit.trained import audit_one_run as audit_one_run
from noisette.audit.trained import membership_of as membership_of
from noisette.audit.whole_run import RunAudit as RunAudit
from noisette.audit.whole_run import audit_run as audit_run

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
    "play_step",
    "run_step_game",
]
