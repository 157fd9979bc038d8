"""The guard itself: answers groups of requests, and carries out what a person decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from normscale import _validate
from normscale._kernels import BlockState, combine
from normscale._validate import Rows
from normscale.detectors.base import Detector
from normscale.detectors.threshold import Threshold
from normscale.encoding.json_text import write_json
from normscale.errors import InvalidInput, MissingOutput
from normscale.guard.detector_check import fingerprint, required_widths
from normscale.guard.drift import DriftMonitor, RecentRows
from normscale.guard.entries import Entry, Event, require_numbers
from normscale.guard.guard_state import GuardState, Known
from normscale.guard.journal import Journal, Session
from normscale.guard.judge import Judge, Part, Ruling
from normscale.guard.policy import Policy
from normscale.guard.request import Request, cut_verdicts, joined_outputs, request_starts
from normscale.guard.statistics import statistics_of
from normscale.guard.stores import Quarantined, SqlStore
from normscale.guard.verdict import Mode, Verdict
from normscale.guard.view import View
from normscale.outputs import LOGITS, ModelOutputs, as_outputs


class Cause(StrEnum):
    """Why rows were quarantined."""

    OUTLIER = "outlier"
    """They stay until they are discarded: one of them could ruin a variance for good."""
    FROZEN = "frozen"
    CAP = "cap"


class Guard:
    """A detector in production. One thread at a time may use it.

    Parameters
    ----------
    detector : Detector
        Fitted, with a threshold. It is left as it is.
    store : SqlStore
        Of this detector alone; see :func:`open_store`. Other processes may use it at the same time.
    policy : Policy

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
    """

    def __init__(self, detector: Detector, store: SqlStore, policy: Policy | None = None) -> None:
        """Read the store up to its last entry."""
        self.policy = (Policy() if policy is None else policy).checked()
        self.detector = detector
        self.widths = required_widths(detector)
        self.n_classes = self.widths[LOGITS]
        assert detector.threshold_ is not None
        self.drift = DriftMonitor(detector.baseline_, self.policy)
        read = {name: self.widths[name] for name in detector.reads}
        start = GuardState(0, 0.0, statistics_of(detector, read), RecentRows.empty(self.n_classes), detector.threshold_)
        self._judge = Judge(start, self.drift, detector.class_names)
        counts_clients = self.policy.client_cap is not None or self.policy.minute_cap is not None
        self._journal = Journal(store, start, fingerprint(detector), self.policy.window, counts_clients=counts_clients)

    @property
    def state(self) -> GuardState:
        """As of the last transaction."""
        return self._journal.state

    @property
    def start(self) -> GuardState:
        """The state of an empty journal: what the detector file says."""
        return self._journal.start

    @property
    def view(self) -> View:
        """The recent past, for people."""
        return self._journal.view

    @property
    def store(self) -> SqlStore:
        """Where the journal is kept."""
        return self._journal.store

    @property
    def mode(self) -> Mode:
        """How rows are scored now."""
        return Mode.FROZEN if self.state.frozen is not None else self._judge.mode

    @property
    def now(self) -> float:
        """The guard's time, which never goes back."""
        return self._journal.clock.now()

    # -- rows --------------------------------------------------------------------------------------------------

    def score(self, outputs: ModelOutputs | Any, client: str = "local", *, scaled: bool = False) -> Verdict:
        """Score rows, take them in where the policy allows, and return once they are on disk.

        Parameters
        ----------
        outputs : ModelOutputs
            With logits and whatever else the detector reads; plain logits (n, C) where that is all.
        client : str
            Whose rows they are; caps and quarantine go by client.
        scaled : bool
            Whether the scaled logits are wanted too.

        Raises
        ------
        InvalidInput
            An array is missing, or holds NaN, infinity or numbers beyond 1e100; nothing was taken in.
        StoreUnavailable
            As :meth:`process` does.
        """
        (answer,) = self.process([Request(self.checked(outputs), client, scaled=scaled)])
        if isinstance(answer, InvalidInput):
            raise answer
        return answer

    def checked(self, outputs: ModelOutputs | Any) -> ModelOutputs:
        """Choose the arrays that the guard reads; their shapes are checked here, their numbers when they are scored."""
        outputs = as_outputs(outputs)
        arrays: dict[str, Rows] = {}
        for name, width in self.widths.items():
            array = outputs.get(name)
            if array is None:
                raise MissingOutput(
                    f"{name} is missing: {self.detector.name} needs {' and '.join(self.widths)}; got "
                    f"{' and '.join(outputs.names)}."
                )
            array = _validate.as_rows(array, name, width=width)
            if array.dtype.char not in "fd" or not array.flags.c_contiguous or not array.dtype.isnative:
                array = np.ascontiguousarray(array, np.float32 if array.dtype.char == "e" else np.float64)
            arrays[name] = array
        _validate.require_rows(arrays[LOGITS], LOGITS)
        return ModelOutputs._trusted(arrays)

    def process(self, requests: Sequence[Request]) -> list[Verdict | InvalidInput]:
        """Answer requests as one group: all their rows are on disk when this returns, or none.

        A request that lacks an array, or has NaN, infinity or numbers beyond 1e100 in one, is answered by
        :class:`InvalidInput`, and none of its rows are taken in; the others of its group are.

        Raises
        ------
        StoreUnavailable
            Nothing was taken in (or, for a broken connection, see the message).
        """
        results: dict[int, Verdict | InvalidInput] = {}
        checked = [self._checked_request(request) for request in requests]
        with Session(self._journal) as session:
            repeats, by_client = self._group_by_client(session, checked, results)
            for client, mine in by_client.items():
                members = [checked[i] for i in mine]
                verdicts = self._answer(session, client, members)  # type: ignore[arg-type]
                for i, verdict in zip(mine, verdicts, strict=True):
                    results[i] = verdict
                    key = requests[i].key
                    if key is not None and isinstance(verdict, Verdict):
                        session.remember(client, key, requests[i].digest, verdict.pack())
        for i, first in repeats.items():
            earlier = results[first]
            results[i] = dataclasses.replace(earlier, repeated=True) if isinstance(earlier, Verdict) else earlier
        return [results[i] for i in range(len(requests))]

    def _checked_request(self, request: Request) -> Request | InvalidInput:
        try:
            outputs = self.checked(request.outputs)
            for name in outputs.names[1:]:  # logits come first, and are looked at with their moments
                require_numbers(outputs.array(name), name)
        except InvalidInput as refusal:
            return refusal
        return dataclasses.replace(request, outputs=outputs)

    def _group_by_client(
        self,
        session: Session,
        requests: Sequence[Request | InvalidInput],
        results: dict[int, Verdict | InvalidInput],
    ) -> tuple[dict[int, int], dict[str, list[int]]]:
        """Which requests repeat another of the group, and which are to be answered, by client."""
        first_of: dict[tuple[str, str], int] = {}
        repeats: dict[int, int] = {}
        by_client: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            if isinstance(request, InvalidInput):
                results[i] = request
                continue
            if request.key is not None:
                name = (request.client, request.key)
                first = first_of.get(name)
                earlier = session.transaction.answer(*name) if first is None else None
                digest = requests[first].digest if first is not None else earlier and earlier[0]  # type: ignore[union-attr]
                if digest is not None and digest != request.digest:
                    results[i] = InvalidInput(
                        "this Idempotency-Key was used for other rows; use a new key for each request, and the same "
                        "key only to send the same bytes again."
                    )
                elif earlier is not None:
                    results[i] = Verdict.unpack(earlier[1])
                elif first is not None:
                    repeats[i] = first
                if digest is not None:
                    continue
                first_of[name] = i
            by_client.setdefault(request.client, []).append(i)
        return repeats, by_client

    def _answer(self, session: Session, client: str, requests: list[Request]) -> Sequence[Verdict | InvalidInput]:
        """Score one client's rows, and write what becomes of them to the journal."""
        outputs = joined_outputs(requests)
        wanted = any(request.scaled for request in requests)
        starts = request_starts(requests)
        try:
            ruling = self._judge.rule(session.state, client, session.now, outputs, starts, scaled=wanted)
        except InvalidInput as refusal:  # nothing is written yet; whose fault it is shows one by one
            if len(requests) == 1:
                return [refusal]
            return [answer for request in requests for answer in self._answer(session, client, [request])]
        if ruling.thaw is not None:
            session.append(Event.THAW, note=write_json({"because": ruling.thaw}))
        if ruling.freeze is not None:
            session.append(Event.FREEZE, note=write_json({"because": ruling.freeze}))
        for part in ruling.parts:
            self._write(session, client, ruling, part)
        return cut_verdicts(requests, ruling, session.state)

    def _write(self, session: Session, client: str, ruling: Ruling, part: Part) -> None:
        cause: Cause | None = None
        if part.event == Event.QUARANTINE:
            cause = Cause.OUTLIER if part.outlier else Cause.FROZEN if ruling.mode == Mode.FROZEN else Cause.CAP
        note: dict[str, Any] = {"alarms": ruling.alarms} if ruling.alarms else {}
        if cause is not None:
            note["cause"] = cause
        entry = session.append(
            part.event,
            part.known,
            client=client,
            rows=part.rows,
            flagged=part.flagged,
            predicted=part.predicted.tobytes(),
            mean=part.monitored.mean.tobytes(),
            m2=part.monitored.m2.tobytes(),
            replay_rows=b"" if cause is not None else part.replay_rows,
            display_sample=part.display_sample,
            note=write_json(note) if note else "",
        )
        if cause is not None:
            self._quarantine(session, entry, cause, part)

    def _quarantine(self, session: Session, entry: Entry, cause: Cause, part: Part) -> None:
        """Keep what a person may accept: moments by client and minute, or the rows themselves where order matters."""
        moments, minute = part.moments, int(entry.at // 60.0)
        earlier = None if part.replay_rows else session.transaction.quarantined_in_minute(minute, entry.client, cause)
        if earlier is not None:
            moments = combine(_moments(earlier), moments)
        session.transaction.quarantine(
            Quarantined(
                entry.seq if earlier is None else earlier.seq,
                entry.at if earlier is None else earlier.at,
                minute,
                entry.client,
                cause.value,
                int(moments.weight),
                entry.flagged + (0 if earlier is None else earlier.flagged),
                moments.mean.tobytes(),
                moments.m2.tobytes(),
                part.replay_rows,
            )
        )

    # -- decisions of a person ---------------------------------------------------------------------------------

    def set_threshold(self, value: float | None) -> GuardState:
        """Flag scores above another value; None: above the detector file's threshold."""
        threshold = self.start.threshold if value is None else Threshold(_validate.real(value, "threshold"))
        if not np.isfinite(threshold.value):
            raise InvalidInput(f"threshold must be finite; got {value!r}.")
        return self._decide(Event.THRESHOLD, {"threshold": threshold.to_header(), "own": value is None})

    def freeze(self, because: str) -> GuardState:
        """Score by the detector file's statistics and take nothing in, until :meth:`thaw` or :meth:`reset`."""
        if self._judge.mode == Mode.STATIC:
            raise InvalidInput(f"{self.detector.name} has no running statistics; there is nothing to freeze.")
        return self._decide(Event.FREEZE, {"because": because, "by_person": True})

    def thaw(self) -> GuardState:
        """Resume taking rows in."""
        return self._decide(Event.THAW, {"because": "a person said so"})

    def reset(self) -> GuardState:
        """Forget the stream: back to the detector file's statistics. Quarantined rows stay where they are."""
        return self._decide(Event.RESET, {})

    def accept(self, client: str | None = None) -> GuardState:
        """Take quarantined rows in, of one client or of all; outliers stay in quarantine."""
        return self._settle(Event.ACCEPT, client)

    def discard(self, client: str | None = None) -> GuardState:
        """Drop quarantined rows, of one client or of all."""
        return self._settle(Event.DISCARD, client)

    def quarantine(self) -> list[Quarantined]:
        """List quarantined rows by client and minute, without the rows themselves."""
        with Session(self._journal) as session:
            return session.transaction.list_quarantined()

    def refresh(self) -> GuardState:
        """Read what other processes have written since."""
        with Session(self._journal) as session:
            return session.state

    def save(self) -> None:
        """Write a snapshot, so that the next start has no entries to replay."""
        with Session(self._journal) as session:
            if session.state.seq:
                session.save_snapshot()

    def _decide(self, event: Event, note: dict[str, Any]) -> GuardState:
        with Session(self._journal) as session:
            session.append(event, note=write_json(note))
        return self.state

    def _settle(self, event: Event, client: str | None) -> GuardState:
        with Session(self._journal) as session:
            parts = session.transaction.quarantined(client)
            statistics = session.state.statistics
            if event == Event.ACCEPT:
                parts = [part for part in parts if part.cause != Cause.OUTLIER]
                for part in parts:
                    statistics = statistics.replay(_moments(part), part.replay_rows)
            rows = sum(part.rows for part in parts)
            session.append(event, Known(statistics), rows=rows, note=write_json({"client": client}))
            session.transaction.drop_quarantined(parts)
            session.save_snapshot()  # the quarantine is gone, so the journal alone could not be replayed
        return self.state


def _moments(part: Quarantined) -> BlockState:
    return BlockState(float(part.rows), np.frombuffer(part.mean), np.frombuffer(part.m2))
