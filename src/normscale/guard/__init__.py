"""A detector on duty: running statistics that survive a crash, cannot be steered by a stranger, and can be watched.

``serve/`` puts it behind HTTP, ``normscale watch`` behind a pipe. Everything that happens is an entry of a journal; the
state is a fold over it. Rows are scored, judged and written inside one transaction of the store, so any number of
processes on one store agree to the bit.
"""

from normscale.guard.duty import Guard, Request
from normscale.guard.policy import Policy
from normscale.guard.stores import open_store
from normscale.guard.verdict import Verdict

__all__ = ["Guard", "Policy", "Request", "Verdict", "open_store"]
