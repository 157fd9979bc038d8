"""The guard itself: answers groups of requests, and carries out what a person decides."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from normscale import _validate
from normscale.detectors.base import Detector
from normscale.detectors.threshold import Threshold
from normscale.errors import InvalidInput
from normscale.guard.acceptable import checked_outputs, require_numbers, required_widths
from normscale.guard.drift import DriftMonitor, Reading, RecentRows
from normscale.guard.guard_state import Frozen, GuardState
from normscale.guard.judge import Judge, Ruling
from normscale.guard.log import Event
from normscale.guard.policy import Expect, Policy
from normscale.guard.request import Mode, Request, Verdict
from normscale.guard.statistics import statistics_of
from normscale.guard.stored_state import Session, StoredState
from normscale.guard.stores import Store, open_store
from normscale.input_checks.logits import squashed
from normscale.outputs import LOGITS, ModelOutputs, as_outputs


class Guard(StoredState):
    """A detector in production. One thread at a time may use it.

    The ``detector`` is fitted, with a threshold, and left as it is. The ``store`` is of this detector alone; with
    ``adopt`` one of another detector with the same classes is taken over. Other processes may use it, too.

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

    def __init__(self, detector: Detector, store: Store, policy: Policy | None = None, *, adopt: bool = False) -> None:
        self.policy = Policy() if policy is None else policy
        self.detector = detector
        self.widths = required_widths(detector)
        self.n_classes = self.widths[LOGITS]
        assert detector.threshold_ is not None
        survives = detector.survives_unbalanced_stream
        self.drift = DriftMonitor(detector.baseline_, self.policy, survives_unbalanced=survives)
        training = detector.baseline_  # a mean of probabilities adds up to 1, too
        self._fitted_on_probabilities = training is not None and squashed(training.moments.mean[None]) is not None
        read = {name: self.widths[name] for name in detector.reads}
        if self.policy.expect == Expect.UNBALANCED and detector.has_running_statistics and not survives:
            raise InvalidInput(
                f"{detector.name} follows the class balance of its stream, and flags in-distribution rows where one "
                "class dominates. For an unbalanced stream use robust_norm_scaling or stream_aware+..., or leave out "
                "--expect: then the guard freezes, and the detector file answers."
            )
        statistics = statistics_of(detector, read, self.policy)
        start = GuardState(0, 0.0, statistics, RecentRows.empty(self.n_classes), detector.threshold_)
        self.judge = Judge(start, self.drift, detector.class_names)
        if detector.threshold_.keep is None:  # somebody's number, and not one that rows gave
            _require_some_flagged(detector.threshold_.value, self._largest_score)
        super().__init__(store, start, detector, adopt=adopt)

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
                    if request.key is None or (request.client, request.key) not in keys:
                        known = self._known_answer(session, request)
                        if known is not None:
                            answers[i] = known
                            continue
                        keys.add((request.client, request.key))
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
        earlier = None if request.key is None else session.transaction.answer(request.client, request.key)
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
        try:
            ruling = self.judge.rule(session.state, client, session.now, outputs, starts)
        except InvalidInput as refusal:  # nothing is written yet; whose fault it is shows one by one
            if len(requests) == 1:
                return [refusal]
            return [answer for request in requests for answer in self._answer(session, client, [request])]
        session.state = ruling.after
        for event, note in ruling.events:
            session.append(event, note)
        for cause, counts in ruling.fates:
            event, note = (Event.ROWS, {}) if cause is None else (Event.KEPT_OUT, {"cause": cause})
            session.append(event, note, client=client, **counts)
        verdicts = [_cut(ruling, request, start) for request, start in zip(requests, starts.tolist(), strict=True)]
        for request, verdict in zip(requests, verdicts, strict=True):
            if request.key is not None:
                session.remember(client, request.key, request.digest, verdict.pack())
        return verdicts

    def _decide(self, event: Event, note: dict[str, Any], by: str, **changed: Any) -> GuardState:
        """Change the state as a person wants it, and write down ``by`` whom."""
        with self.session() as session:
            session.state = session.state._replace(**changed)
            session.append(event, note, by=by)
        return self.state

    def set_threshold(self, value: float | None, *, by: str = "") -> GuardState:
        """Flag scores above another value; None: above the detector file's threshold."""
        threshold = self.start.threshold if value is None else Threshold(_validate.real(value, "threshold"))
        if not np.isfinite(threshold.value):
            raise InvalidInput(f"threshold must be finite; got {value!r}.")
        if value is not None:
            _require_some_flagged(threshold.value, max(self._largest_score, self.refresh().largest_score))
        changed = {"threshold": threshold, "threshold_decided": value is not None}
        return self._decide(Event.THRESHOLD, {"value": threshold.value, "own": value is None}, by, **changed)

    def freeze(self, because: str, *, by: str = "") -> GuardState:
        """Score by the detector file's statistics and take nothing in, until :meth:`thaw` or :meth:`reset`."""
        if self.judge.mode == Mode.STATIC:
            raise InvalidInput(f"{self.detector.name} has no running statistics; there is nothing to freeze.")
        return self._decide(Event.FREEZE, {"because": because}, by, frozen=Frozen(self.now, because, by_person=True))

    def thaw(self, *, by: str = "") -> GuardState:
        """Resume taking rows in; what is compared with training begins anew, or it would freeze again."""
        anew = {"frozen": None, "recent": self.start.recent, "alarms": ()}
        return self._decide(Event.THAW, {"because": "a person said so"}, by, **anew)

    def reset(self, *, by: str = "") -> GuardState:
        """Forget the stream: back to the detector file's statistics."""
        names = ("statistics", "recent", "rows", "counted", "frozen", "alarms")
        return self._decide(Event.RESET, {}, by, **{name: getattr(self.start, name) for name in names})

    def readings(self) -> tuple[Reading, ...]:
        """The drift readings, and those of the running statistics."""
        return self.judge.readings(self.state, self.state.statistics)

    def refresh(self) -> GuardState:
        """Read what other processes have written since."""
        with self.session() as session:
            return session.state

    def probe(self) -> None:
        """Write to the store, or raise :class:`StoreUnavailable` as answers would."""
        with self.session() as session:
            session.transaction.probe(len(session.state.pack()))
        self.require_room()

    def require_room(self) -> None:
        """Raise :class:`StoreUnavailable` where the store's disk has no room for another state."""
        self.store.require_room(self.state_bytes)

    @cached_property
    def _largest_score(self) -> float:
        """Of the training mean and of rows far out, by the detector file, and the threshold that it was fitted with."""
        baseline, random = self.detector.baseline_, np.random.default_rng(0)
        threshold = self.judge.start.threshold
        largest = threshold.value if baseline is None or threshold.keep is not None else -math.inf
        if baseline is not None:
            reach = np.concatenate([np.zeros(1), np.repeat(self.policy.far, 64)])[:, None]
            arrays = {}
            for name, width in self.widths.items():
                moments = baseline.moments if name == LOGITS else baseline.others[name]
                arrays[name] = moments.mean + moments.std * reach * random.uniform(-1.0, 1.0, (65, width))
            largest = max(largest, float(self.judge.start.statistics.score(ModelOutputs._trusted(arrays)).max()))
        return largest


def _require_some_flagged(threshold: float, largest: float) -> None:
    if threshold > largest:
        raise InvalidInput(
            f"a threshold of {threshold:g} would flag nothing: no score so far, nor of rows far from training, was "
            f"above {largest:g}. Choose a smaller one."
        )


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


def open_guard(
    detector: Detector, where: str | os.PathLike[str], policy: Policy | None = None, *, adopt: bool = False
) -> Guard:
    """Open the store ``where`` (see :func:`open_store`) and the guard on it.

    With ``adopt`` a store of another detector with the same classes is taken over. A detector that is refused leaves no
    store behind; a store that is refused is closed.
    """
    required_widths(detector)
    store = open_store(where)
    try:
        return Guard(detector, store, policy, adopt=adopt)
    except BaseException:
        store.close()
        raise
