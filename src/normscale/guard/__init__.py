"""A detector in production: durable running statistics, limits on what a stream may teach, drift alarms.

``server/`` puts it behind HTTP, ``normscale watch`` behind a pipe. One transaction of the store reads, judges, scores
and writes rows with the state after them, so any number of processes on one store agree to the bit.
"""

from normscale.guard.guard import Guard, Request, open_guard
from normscale.guard.judge import Mode, Verdict
from normscale.guard.policy import OnDrift, Policy, StreamBy
from normscale.guard.stores import open_store

__all__ = ["Guard", "Mode", "OnDrift", "Policy", "Request", "StreamBy", "Verdict", "open_guard", "open_store"]
