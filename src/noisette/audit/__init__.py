"""Audits: hypothesis tests and measurements that refute a privacy guarantee which training does not keep."""

from noisette.audit.audited_run import *  # noqa: F403
from noisette.audit.certificate import *  # noqa: F403
from noisette.audit.step_audit import *  # noqa: F403
