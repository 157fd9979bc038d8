"""What a guard puts up with before it stops learning from its stream."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from enum import StrEnum

from normscale import _validate

_FINITE = ("window", "evidence", "balance", "flagged", "prior")
"""Limits that cannot be lifted."""


class OnDrift(StrEnum):
    """What an alarm does."""

    FREEZE = "freeze"
    """Go back to the detector file's statistics and take nothing in."""
    WARN = "warn"
    """Say so and go on."""
    IGNORE = "ignore"
    """The stream is trusted: do not look, and score as the detector's own stream does."""


@dataclass(frozen=True)
class Policy:
    """Limits, each with a default that was measured (``docs/guard.md``)."""

    on_drift: str = OnDrift.FREEZE
    window: float = 1000.0
    """How many recent rows are watched; older ones fade."""
    evidence: float = 500.0
    """Before this many rows, or half of the window, the recent ones are not compared with training."""
    balance: float = 0.35
    """Largest share of recent rows that may be predicted otherwise than in training (total variation)."""
    shift: float = 1.0
    """Largest distance of a class's recent mean logit from training, in training deviations."""
    spread: float = 0.6
    """Largest change of the spread of a class's recent logits: 0.6 is 1.6 times wider, or narrower, than training."""
    flagged: float = 0.5
    """Largest share of recent rows that may be flagged."""
    added: float = 0.02
    """Largest share of the latest rows, less five, that the stream alone may flag without an alarm ..."""
    most_added: float = 0.15
    """... and without being frozen."""
    running_shift: float = 0.2
    """Largest distance of a running mean from training, in training deviations; 2.5 times it freezes."""
    running_spread: float = 0.15
    """Largest change of a running deviation: 0.15 is 1.15 times wider, or narrower; 2.5 times it freezes."""
    calm: float = 2000.0
    """A frozen guard thaws after this many rows without an alarm, twice as many each time; ``inf``: only when told."""
    outlier: float = 30.0
    """A row with a number farther than this from its training mean, in training deviations, is flagged."""
    far: float = 6.0
    """A row with a number farther than this from its training mean is never taken in."""
    prior: float = 1000.0
    """Where statistics are moments: how many rows the training counts as; beyond twice as many, the past fades."""
    client_cap: int | None = None
    """Rows of one client that are taken in within one minute."""
    minute_cap: int | None = None
    """Rows of all clients that are taken in within one minute."""

    @property
    def trusting(self) -> bool:
        """Whether the stream is trusted."""
        return self.on_drift == OnDrift.IGNORE

    @property
    def enough(self) -> float:
        """Rows after which the recent ones are compared with training."""
        return min(self.evidence, 0.5 * self.window)

    @property
    def enough_weight(self) -> float:
        """What so many recent rows weigh, since each fades from its arrival on."""
        return self.window * (1.0 - math.exp(-self.enough / self.window)) * (1.0 - 1e-9)

    def __post_init__(self) -> None:
        """Raise :class:`InvalidInput` naming what is wrong with it."""
        _validate.one_of(self.on_drift, "on_drift", tuple(choice.value for choice in OnDrift))
        for field in dataclasses.fields(self):
            if field.type == "float":
                _validate.positive(getattr(self, field.name), field.name, allow_inf=field.name not in _FINITE)
        for name in ("client_cap", "minute_cap"):
            if getattr(self, name) is not None:
                _validate.at_least(getattr(self, name), name, 1)
