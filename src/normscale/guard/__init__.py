"""A detector in production, whose statistics survive crashes, resist steering by strangers, and can be watched.

``serve/`` puts it behind HTTP, ``normscale watch`` behind a pipe. Rows are read, judged, scored and written, with the
state after them, inside one transaction of the store, so any number of processes on one store agree to the bit. A log
tells people what happened.
"""

from normscale.guard.guard import Guard, open_guard
from normscale.guard.pair import GuardPair
from normscale.guard.policy import OnDrift, Policy
from normscale.guard.request import Mode, Request, Verdict
from normscale.guard.stores import open_store

__all__ = ["Guard", "GuardPair", "Mode", "OnDrift", "Policy", "Request", "Verdict", "open_guard", "open_store"]
