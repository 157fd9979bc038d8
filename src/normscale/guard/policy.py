"""What a guard puts up with before it stops learning from its stream."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from normscale import _validate
from normscale.errors import InvalidInput


class OnDrift(StrEnum):
    """What an alarm does."""

    FREEZE = "freeze"
    """Go back to the detector file's statistics and take nothing in."""
    WARN = "warn"
    """Say so and go on."""
    IGNORE = "ignore"
    """Do not look."""


@dataclass(frozen=True)
class Policy:
    """Limits, each with a default that was measured (``docs/guard.md``)."""

    on_drift: str = OnDrift.FREEZE
    window: float = 1000.0
    """How many recent rows are watched; older ones fade."""
    evidence: float = 100.0
    """No alarm before this many rows were seen."""
    balance: float = 0.35
    """Largest share of recent rows that may be predicted otherwise than in training (total variation)."""
    shift: float = 1.0
    """Largest distance of a class's recent mean logit from training, in training deviations."""
    spread: float = 0.6
    """Largest change of the spread of a class's recent logits: 0.6 is 1.6 times wider, or narrower, than training."""
    flagged: float = 0.5
    """Largest share of recent rows that may be flagged."""
    calm: float = 2000.0
    """A frozen guard thaws after this many rows without an alarm; ``inf``: only when told."""
    outlier: float = 30.0
    """A row with a logit farther than this from its training mean, in training deviations, is never taken in."""
    client_cap: int | None = None
    """Rows of one client that are taken in within one minute."""
    minute_cap: int | None = None
    """Rows of all clients that are taken in within one minute."""

    def checked(self) -> Self:
        """Return the policy itself, or raise :class:`InvalidInput` naming what is wrong with it."""
        _validate.one_of(self.on_drift, "on_drift", tuple(choice.value for choice in OnDrift))
        for name in ("window", "evidence", "balance", "shift", "spread", "flagged", "calm", "outlier"):
            _validate.positive(getattr(self, name), name, allow_inf=name in ("calm", "outlier", "shift", "spread"))
        if self.evidence >= self.window:  # what fades only ever comes near to the window
            raise InvalidInput(
                f"evidence ({self.evidence:g} rows) must be less than window ({self.window:g} rows): it would never "
                "come."
            )
        for name in ("client_cap", "minute_cap"):
            if getattr(self, name) is not None:
                _validate.at_least(getattr(self, name), name, 1)
        return self
