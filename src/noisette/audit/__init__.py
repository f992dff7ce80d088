"""Audits: hypothesis tests and measurements that refute a privacy guarantee which training does not keep."""

from noisette.audit.audited_run import RunAudit as RunAudit
from noisette.audit.audited_run import audit_run as audit_run
from noisette.audit.certificate import Verdict as Verdict
from noisette.audit.certificate import certified_epsilon as certified_epsilon
from noisette.audit.certificate import certified_mu as certified_mu
from noisette.audit.certificate import epsilon_of as epsilon_of
from noisette.audit.cost import CostAudit as CostAudit
from noisette.audit.cost import audit_cost as audit_cost
from noisette.audit.step_audit import Axes as Axes
from noisette.audit.step_audit import BehindPublicNorm as BehindPublicNorm
from noisette.audit.step_audit import Canaries as Canaries
from noisette.audit.step_audit import CanaryModel as CanaryModel
from noisette.audit.step_audit import LipschitzAxes as LipschitzAxes
from noisette.audit.step_audit import NeighbourAudit as NeighbourAudit
from noisette.audit.step_audit import Rows as Rows
from noisette.audit.step_audit import Scores as Scores
from noisette.audit.step_audit import StepAudit as StepAudit
from noisette.audit.step_audit import assert_consistent as assert_consistent
from noisette.audit.step_audit import audit_bound as audit_bound
from noisette.audit.step_audit import audit_neighbours as audit_neighbours
from noisette.audit.step_audit import audit_step as audit_step
