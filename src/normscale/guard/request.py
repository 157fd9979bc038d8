"""Requests to a guard: joined to one block of rows, and the ruling on it cut into their verdicts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normscale._validate import IntArray
from normscale.guard.judge import Ruling
from normscale.guard.verdict import Verdict
from normscale.outputs import ModelOutputs


@dataclass(frozen=True, slots=True)
class Request:
    """Rows of one client, to be taken in together."""

    outputs: ModelOutputs
    """At least one row; :meth:`Guard.checked` says what else."""
    client: str = "local"
    key: str | None = None
    """A retry with the same key is answered as the first time, and counted once."""
    digest: bytes = b""
    """Of what the client sent: the same key with other rows is an error."""
    scaled: bool = False
    """Whether the scaled logits are wanted."""
    given: Verdict | None = None
    """What the serving guard answered, where this is for its shadow."""


def joined_outputs(requests: list[Request]) -> ModelOutputs:
    """The rows of all requests below each other; they were checked, so there is nothing to compare."""
    if len(requests) == 1:
        return requests[0].outputs
    names = requests[0].outputs.names
    return ModelOutputs._trusted(
        {name: np.concatenate([request.outputs.array(name) for request in requests]) for name in names}
    )


def request_starts(requests: list[Request]) -> IntArray:
    """Where in the block each request begins."""
    return np.cumsum([0, *(len(request.outputs) for request in requests[:-1])])


def cut_verdicts(requests: list[Request], ruling: Ruling) -> list[Verdict]:
    """The ruling, cut into the requests' own rows."""
    alarms = tuple(alarm.name for alarm in ruling.after.alarms)
    scaled, verdicts, a = ruling.scaled, [], 0
    for request in requests:
        b = a + len(request.outputs)
        verdicts.append(
            Verdict(
                ruling.scores[a:b],
                ruling.flags[a:b],
                ruling.predicted[a:b],
                ruling.mode.value,
                int(np.count_nonzero(ruling.taken[a:b])),
                alarms,
                ruling.after.rows,
                scaled[a:b] if scaled is not None and request.scaled else None,
            )
        )
        a = b
    return verdicts
