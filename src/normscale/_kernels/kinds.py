"""What both back ends share: the numbers of the score kinds, and constants."""

from __future__ import annotations

LOG_ODDS, MAX, LOG_SUM_EXP = 0, 1, 2
KINDS = {"log_odds": LOG_ODDS, "max": MAX, "log_sum_exp": LOG_SUM_EXP}
"""Log-odds of the prediction being wrong; minus the largest; minus the log-sum-exp."""

TINY_VARIANCE = 1e-300
"""Floor of a variance. A class that never varied has deviation 0 and variance 0; with the floor it scales to 0."""
