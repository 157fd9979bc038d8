"""A detector in production, whose statistics survive crashes, resist steering by strangers, and can be watched.

``serve/`` puts it behind HTTP, ``normscale watch`` behind a pipe. Everything that happens is an entry of a journal; the
state is a fold over it. Rows are scored, judged and written inside one transaction of the store, so any number of
processes on one store agree to the bit.
"""

from normscale.guard.guard import Guard
from normscale.guard.opening import open_guard
from normscale.guard.policy import OnDrift, Policy
from normscale.guard.request import Request
from normscale.guard.stores import open_store
from normscale.guard.verdict import Mode, Verdict

__all__ = ["Guard", "Mode", "OnDrift", "Policy", "Request", "Verdict", "open_guard", "open_store"]
