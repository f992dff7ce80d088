"""Audits: hypothesis tests and measurements that refute a privacy guarantee which training does not keep."""

from noisette.audit.audited_run import RunAudit as RunAudit
from noisette.audit.audited_run import audit_run as audit_run
from noisette.audit.certificate import certified_epsilon as certified_epsilon
from noisette.audit.certificate import certified_mu as certified_mu
from noisette.audit.certificate import epsilon_of as epsilon_of
from noisette.audit.membership import Attack as Attack
from noisette.audit.membership import Membership as Membership
from noisette.audit.membership import OneRunAudit as OneRunAudit
from noisette.audit.membership import audit_guesses as audit_guesses
from noisette.audit.membership import audit_one_run as audit_one_run
from noisette.audit.membership import membership_of as membership_of
from noisette.audit.step_audit import Axes as Axes
from noisette.audit.step_audit import BehindPublicNorm as BehindPublicNorm
from noisette.audit.step_audit import Canaries as Canaries
from noisette.audit.step_audit import CanaryModel as CanaryModel
from noisette.audit.step_audit import LipschitzAxes as LipschitzAxes
from noisette.audit.step_audit import NeighbourAudit as NeighbourAudit
from noisette.audit.step_audit import Rows as Rows
from noisette.audit.step_audit import Scores as Scores
from noisette.audit.step_audit import StepAudit as StepAudit
from noisette.audit.step_audit import Verdict as Verdict
from noisette.audit.step_audit import assert_consistent as assert_consistent
from noisette.audit.step_audit import audit_bound as audit_bound
from noisette.audit.step_audit import audit_neighbours as audit_neighbours
from noisette.audit.step_audit import audit_step as audit_step
from noisette.audit.step_audit import run_step_game as run_step_game
