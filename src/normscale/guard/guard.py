"""The guard itself: answers groups of requests, and carries out what a person decides."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from normscale import _validate
from normscale.detectors.base import Detector
from normscale.detectors.threshold import Threshold
from normscale.errors import InvalidInput
from normscale.guard.drift import DriftMonitor, Reading, RecentRows
from normscale.guard.guard_state import Frozen, GuardState, statistics_of
from normscale.guard.judge import Judge, Ruling
from normscale.guard.policy import Expect, Policy
from normscale.guard.request import (
    Mode,
    Request,
    Verdict,
    checked_outputs,
    owner_of,
    require_numbers,
    required_widths,
)
from normscale.guard.stored_state import Session, StoredState
from normscale.guard.stores import Event, Standing, Store, open_store
from normscale.input_checks.logits import squashed
from normscale.outputs import LOGITS, ModelOutputs, as_outputs


class Guard(StoredState):
    """A detector in production. One thread at a time may use it.

    The ``detector`` is fitted, with a threshold, and left as it is. The ``store`` is of this detector alone. Other
    processes may use it, too.

    Examples
    --------
    >>> import normscale as ns
    >>> from normscale.guard import Guard, open_store
    >>> sample = ns.load_sample()
    >>> detector = ns.NormScaling().fit(sample.train).set_threshold(sample.validation)
    >>> guard = Guard(detector, open_store(":memory:"))
    >>> verdict = guard.score(sample.ood["unseen_digits"][:3], client="camera-7")
    >>> verdict.is_ood.tolist(), verdict.mode, guard.state.rows
    ([True, True, True], 'running', 3)
    >>> guard.store.close()
    """

    def __init__(self, detector: Detector, store: Store, policy: Policy | None = None) -> None:
        self.policy = Policy() if policy is None else policy
        self.detector = detector
        self.widths = required_widths(detector)
        self.n_classes = self.widths[LOGITS]
        assert detector.threshold_ is not None
        survives = detector._survives_unbalanced_stream
        self.drift = DriftMonitor(detector._baseline, self.policy, survives_unbalanced=survives)
        training = detector._baseline  # a mean of probabilities adds up to 1, too
        self._fitted_on_probabilities = training is not None and squashed(training.moments.mean[None]) is not None
        read = {name: self.widths[name] for name in detector.reads}
        if self.policy.expect == Expect.UNBALANCED and detector._runs and not survives:
            raise InvalidInput(
                f"{detector.name} follows the class balance of its stream, and flags in-distribution rows where one "
                "class dominates. For an unbalanced stream use robust_norm_scaling or stream_aware+..., or leave out "
                "--expect: then the guard freezes, and the detector file answers."
            )
        if self.policy.by_client and not detector._runs:
            raise InvalidInput(
                f"{detector.name} has no running statistics, so no client teaches another; leave out --stream-by."
            )
        statistics = statistics_of(detector, read, self.policy)
        start = GuardState(0, 0.0, statistics, RecentRows.empty(self.n_classes), detector.threshold_)
        self.judge = Judge(start, self.drift, detector.class_names)
        super().__init__(store, start, detector, by_client=self.policy.by_client)

    @property
    def mode(self) -> Mode:
        """How rows are scored now."""
        return self.judge.mode_of(self.state)

    @property
    def now(self) -> float:
        """The guard's time, which never goes back."""
        return self.clock.now()

    def score(self, outputs: ModelOutputs | Any, client: str = "local") -> Verdict:
        """Score rows, take them in where the policy allows, and return once they are on disk.

        ``outputs`` have logits and whatever else the detector reads, or are plain logits (n, C).
        """
        (answer,) = self.process([Request(as_outputs(outputs), client)])
        if isinstance(answer, InvalidInput):
            raise answer
        return answer

    def process(self, requests: Sequence[Request]) -> list[Verdict | InvalidInput]:
        """Answer requests as one group: all their rows are on disk when this returns, or none.

        A request that lacks an array, or has NaN, infinity or numbers beyond 1e100 in one, is answered by
        :class:`InvalidInput`, and none of its rows are taken in; the others of its group are. Where the store raises
        :class:`StoreUnavailable`, nothing was taken in.
        """
        answers: dict[int, Verdict | InvalidInput] = {}
        waiting: dict[int, Request] = {}
        for i, request in enumerate(requests):
            try:
                waiting[i] = dataclasses.replace(request, outputs=self.acceptable(request.outputs))
            except InvalidInput as refusal:
                answers[i] = refusal
        with self.session() as session:
            while waiting:
                by_client: dict[str, dict[int, Request]] = {}
                keys: set[tuple[str, str | None]] = set()
                for i, request in waiting.items():
                    key = owner_of(request.client), request.key
                    if request.key is None or key not in keys:
                        known = self._known_answer(session, request)
                        if known is not None:
                            answers[i] = known
                            continue
                        keys.add(key)
                        by_client.setdefault(request.client, {})[i] = request
                for client, mine in by_client.items():
                    answers |= zip(mine, self._answer(session, client, list(mine.values())), strict=True)
                # A key that came twice is answered in the next round, by what was kept of its first answer.
                waiting = {i: request for i, request in waiting.items() if i not in answers}
        return [answers[i] for i in range(len(requests))]

    def acceptable(self, outputs: ModelOutputs | Any) -> ModelOutputs:
        """Choose the arrays that the guard reads, or refuse them (:class:`InvalidInput`)."""
        outputs = checked_outputs(outputs, self.widths, self.detector.name)
        require_numbers(outputs, are_logits=not self._fitted_on_probabilities)
        return outputs

    def _known_answer(self, session: Session, request: Request) -> Verdict | InvalidInput | None:
        earlier = None if request.key is None else session.transaction.answer(owner_of(request.client), request.key)
        if earlier is None:
            return None
        digest, verdict = earlier
        if digest == request.digest:
            return Verdict.unpack(verdict)
        return InvalidInput(
            "this Idempotency-Key was used for other rows; use a new key for each request, and the same key only to "
            "send the same bytes again."
        )

    def _answer(self, session: Session, client: str, requests: list[Request]) -> Sequence[Verdict | InvalidInput]:
        outputs = _joined(requests)
        starts = np.cumsum([0, *(len(request.outputs) for request in requests[:-1])])
        stream = session.stream(client) if self.by_client else None
        try:
            ruling = self.judge.rule(session.state, client, session.now, outputs, starts, stream)
        except InvalidInput as refusal:  # nothing is written yet; whose fault it is shows one by one
            if len(requests) == 1:
                return [refusal]
            return [answer for request in requests for answer in self._answer(session, client, [request])]
        session.state = ruling.after
        if ruling.stream is not None:
            readings = [reading for reading in ruling.readings if math.isfinite(reading.limit)]
            worst = max(readings, key=lambda reading: reading.value / reading.limit, default=None)
            session.streams[client] = ruling.stream, worst
        for event, note, fields in ruling.log:
            session.append(event, note, **fields)
        verdicts = [_cut(ruling, request, start) for request, start in zip(requests, starts.tolist(), strict=True)]
        for request, verdict in zip(requests, verdicts, strict=True):
            if request.key is not None:
                session.remember(owner_of(client), request.key, request.digest, verdict.pack())
        return verdicts

    def _decide(
        self, event: Event, note: dict[str, Any], by: str, *, dropped: Standing | None = None, **changed: Any
    ) -> GuardState:
        """Change the state as a person wants it, drop streams of some standing, and write down ``by`` whom."""
        with self.session() as session:
            session.state = session.state._replace(**changed)
            if dropped is not None:
                session.drop_streams(at_least=dropped)
            session.append(event, note, by=by)
        return self.state

    def set_threshold(self, value: float | None, *, by: str = "") -> GuardState:
        """Flag scores above another value; None: above the detector file's threshold."""
        threshold = self.start.threshold if value is None else Threshold(_validate.real(value, "threshold"))
        if not np.isfinite(threshold.value):
            raise InvalidInput(f"threshold must be finite; got {value!r}.")
        changed: dict[str, Any] = {"threshold": threshold, "threshold_decided": value is not None}
        return self._decide(Event.THRESHOLD, {"value": threshold.value, "own": value is None}, by, **changed)

    def freeze(self, because: str, *, by: str = "") -> GuardState:
        """Score by the detector file's statistics and take nothing in, until :meth:`thaw` or :meth:`reset`."""
        if self.judge.mode == Mode.STATIC:
            raise InvalidInput(f"{self.detector.name} has no running statistics; there is nothing to freeze.")
        return self._decide(Event.FREEZE, {"because": because}, by, frozen=Frozen(self.now, because, by_person=True))

    def thaw(self, *, by: str = "") -> GuardState:
        """Resume taking rows in; what is compared with training begins anew, or it would freeze again."""
        anew: dict[str, Any] = {"frozen": None, "recent": self.start.recent, "alarms": ()}
        return self._decide(Event.THAW, {"because": "a person said so"}, by, dropped=Standing.FROZEN, **anew)

    def reset(self, *, by: str = "") -> GuardState:
        """Forget the stream, or those of all clients: back to the detector file's statistics."""
        anew: dict[str, Any] = self.start.stream._asdict()
        return self._decide(Event.RESET, {}, by, dropped=Standing.RUNNING, **anew)

    def readings(self) -> tuple[Reading, ...]:
        """The drift readings, and those of the running statistics where there is one stream."""
        if self.by_client:
            return self.drift.readings(self.state.recent)
        return self.judge.readings(self.state, self.state.statistics)

    def probe(self) -> None:
        """Write to the store, or raise :class:`StoreUnavailable` as answers would."""
        with self.session() as session:
            session.transaction.probe(self.state_bytes)


def _joined(requests: Sequence[Request]) -> ModelOutputs:
    first = requests[0].outputs
    if len(requests) == 1:
        return first
    return ModelOutputs._trusted(
        {name: np.concatenate([request.outputs.array(name) for request in requests]) for name in first.names}
    )


def _cut(ruling: Ruling, request: Request, start: int) -> Verdict:
    all_rows, rows = ruling.verdict, slice(start, start + len(request.outputs))
    arrays = {name: getattr(all_rows, name)[rows] for name in ("scores", "is_ood", "predicted")}
    return dataclasses.replace(all_rows, **arrays, taken_in=int(np.count_nonzero(ruling.taken[rows])))


def open_guard(detector: Detector, where: str | os.PathLike[str], policy: Policy | None = None) -> Guard:
    """Open the store ``where`` (see :func:`open_store`) and the guard on it.

    A detector that is refused leaves no store behind; a store that is refused is closed.
    """
    required_widths(detector)
    store = open_store(where)
    try:
        return Guard(detector, store, policy)
    except BaseException:
        store.close()
        raise
