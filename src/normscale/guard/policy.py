"""What a guard puts up with before it stops learning from its stream."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from normscale import _validate
from normscale.errors import InvalidInput

_FINITE = ("window", "evidence", "balance", "flagged", "prior")


class OnDrift(StrEnum):
    """What an alarm does."""

    FREEZE = "freeze"
    """Go back to the detector file's statistics and take nothing in."""
    WARN = "warn"
    IGNORE = "ignore"
    """The stream is trusted: do not look, and score as the detector's own stream does."""


class Expect(StrEnum):
    """How often the classes come, as far as it is known beforehand."""

    BALANCED = "balanced"
    UNBALANCED = "unbalanced"
    """Sorted, or mostly one class: class balance, shift and spread of the recent rows are read and never an alarm."""


class StreamBy(StrEnum):
    """Whose rows teach whom."""

    ALL = "all"
    CLIENT = "client"
    """Every client, and every source that it names, has running statistics, readings and freezes of its own."""


@dataclass(frozen=True)
class Policy:
    """Limits, each with a default that was measured (``docs/guard.md``)."""

    on_drift: str = OnDrift.FREEZE
    expect: str = Expect.BALANCED
    stream_by: str = StreamBy.ALL
    window: float = 1000.0
    """How many recent rows are watched; older ones fade. At least ``evidence``."""
    evidence: float = 500.0
    """Before this many rows the recent ones are not compared with training."""
    balance: float = 0.35
    """Largest share of recent rows that may be predicted otherwise than in training (total variation)."""
    shift: float = 1.0
    """Largest distance of a class's recent mean logit from training, in training standard deviations."""
    spread: float = 0.6
    """Largest change of the spread of a class's recent logits: 0.6 is 1.6 times wider, or narrower, than training."""
    flagged: float = 0.5
    stream_only_flags: float = 0.02
    """Largest share of 250 rows, less five rows, that the running statistics alone may flag without an alarm ..."""
    most_stream_only_flags: float = 0.15
    """... and without a freeze."""
    reference_flags: float = 0.07
    """Largest share of a class's training rows, less two rows, that the running statistics alone may flag."""
    running_shift: float = 0.2
    """Largest distance of a running mean from training, in training standard deviations; 2.5 times it freezes."""
    running_spread: float = 0.15
    """Largest change of a running deviation: 0.15 is 1.15 times wider, or narrower; 2.5 times it freezes."""
    calm: float = 1000.0
    """An alarm is over after this many rows well below its limit, and a freeze with the last alarm; ``inf``: only when
    a person thaws."""
    outlier: float = 30.0
    """A row with a number farther than this from its training mean, in training standard deviations, is flagged."""
    far: float = 6.0
    """A row with a number farther than this from its training mean is never taken in."""
    prior: float = 1000.0
    """Where statistics are moments: how many rows the training counts as; beyond twice as many, the past fades."""

    @property
    def trusting(self) -> bool:
        """Whether the stream is trusted."""
        return self.on_drift == OnDrift.IGNORE

    def __post_init__(self) -> None:
        for name, choices in (("on_drift", OnDrift), ("expect", Expect), ("stream_by", StreamBy)):
            _validate.one_of(getattr(self, name), name, tuple(choice.value for choice in choices))
        for field in dataclasses.fields(self):
            if field.type == "float":
                _validate.positive(getattr(self, field.name), field.name, allow_inf=field.name not in _FINITE)
        if self.window < self.evidence:
            raise InvalidInput(
                f"window must be at least {self.evidence:g} rows (evidence); got {self.window:g}. Over fewer rows a "
                "handful of them would freeze the guard."
            )
