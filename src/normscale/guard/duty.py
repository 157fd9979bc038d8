"""The guard itself: answers groups of requests, and carries out what a person decides."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._kernels import BlockState, combine
from normscale._validate import IntArray, Rows
from normscale.detectors.base import Detector
from normscale.detectors.decision import Threshold
from normscale.errors import InvalidInput, NotFitted
from normscale.guard.entries import ASIDE, DISCARD, FREEZE, RESET, TAKE_IN, THAW, THRESHOLD, Entry
from normscale.guard.journal import Journal, Session
from normscale.guard.judge import Judge, Part, Ruling
from normscale.guard.ledger import GuardState
from normscale.guard.monitor import Monitor, Yardstick
from normscale.guard.policy import Policy
from normscale.guard.statistics import statistics_of
from normscale.guard.stores import Aside, SqlStore
from normscale.guard.verdict import FROZEN, STATIC, Verdict
from normscale.guard.view import View

_OUTLIER = "outlier"
"""Why rows were set aside that stay there until they are discarded: one of them could ruin a variance for good."""


class Request(NamedTuple):
    """Rows of one client, to be taken in together."""

    rows: Rows
    """(n, C) float32 or float64, n >= 1; :meth:`Guard.checked` sees to it."""
    client: str = "local"
    key: str | None = None
    """A retry with the same key is answered as the first time, and counted once."""
    digest: bytes = b""
    """Of what the client sent: the same key with other rows is an error."""
    scaled: bool = False
    """Whether the scaled logits are wanted."""


class Guard:
    """A detector on duty. One thread at a time may use it.

    Parameters
    ----------
    detector : Detector
        Fitted and calibrated. It is left as it is.
    store : SqlStore
        Of this guard alone; see :func:`open_store`. Other processes may use it at the same time.
    policy : Policy

    Examples
    --------
    >>> import normscale as ns
    >>> from normscale.guard import Guard, Request, open_store
    >>> sample = ns.load_sample()
    >>> detector = ns.NormScaling().fit(sample.train).calibrate(sample.validation)
    >>> guard = Guard(detector, open_store(":memory:"))
    >>> verdict, = guard.process([Request(guard.checked(sample.ood["unseen_digits"].logits[:3]))])
    >>> verdict.is_ood.tolist(), verdict.mode, guard.state.rows
    ([True, True, True], 'running', 3)
    """

    def __init__(self, detector: Detector, store: SqlStore, policy: Policy | None = None) -> None:
        """Read the store up to its last entry."""
        self.policy = (Policy() if policy is None else policy).checked()
        self.detector = detector
        self.n_classes, threshold = _required(detector)
        self.yardstick = Yardstick(detector.reference_, self.policy)
        start = GuardState(0, 0.0, statistics_of(detector), Monitor.empty(self.n_classes), threshold)
        self._judge = Judge(start, self.yardstick, detector.class_names)
        counts_clients = self.policy.client_cap is not None or self.policy.minute_cap is not None
        self._journal = Journal(store, start, fingerprint(detector), self.policy.window, counts_clients=counts_clients)

    @property
    def state(self) -> GuardState:
        """As of the last transaction."""
        return self._journal.state

    @property
    def start(self) -> GuardState:
        """That of an empty journal: the guard file's."""
        return self._journal.start

    @property
    def view(self) -> View:
        """The recent past, for people."""
        return self._journal.view

    @property
    def store(self) -> SqlStore:
        """Where it is written down."""
        return self._journal.store

    @property
    def mode(self) -> str:
        """How rows are scored now."""
        return FROZEN if self.state.frozen is not None else self._judge.mode

    @property
    def now(self) -> float:
        """The guard's time, which never goes back."""
        return self._journal.clock.now()

    # -- rows --------------------------------------------------------------------------------------------------

    def checked(self, rows: Any) -> Rows:
        """Rows in the form that :class:`Request` asks for, or :class:`InvalidInput`; finite they need not be."""
        array = _validate.as_rows(rows, width=self.n_classes)
        if array.dtype.char not in "fd" or not array.flags.c_contiguous or not array.dtype.isnative:
            array = np.ascontiguousarray(array, np.float32 if array.dtype.char == "e" else np.float64)
        _validate.require_rows(array, "logits")
        return array

    def process(self, requests: Sequence[Request]) -> list[Verdict | InvalidInput]:
        """Answer requests as one group: all their rows are on disk when this returns, or none.

        A request with NaN, infinity or numbers beyond 1e100 is answered by :class:`InvalidInput`, and none of its rows
        are taken in; the others of its group are.

        Raises
        ------
        StoreUnavailable
            Nothing was taken in (or, for a broken connection, see the message).
        """
        results: dict[int, Verdict | InvalidInput] = {}
        with Session(self._journal) as session:
            repeats, by_client = self._sort_out(session, requests, results)
            for client, mine in by_client.items():
                verdicts = self._answer(session, client, [requests[i] for i in mine])
                for i, verdict in zip(mine, verdicts, strict=True):
                    results[i] = verdict
                    key = requests[i].key
                    if key is not None and isinstance(verdict, Verdict):
                        session.remember(client, key, requests[i].digest, verdict.pack())
        for i, first in repeats.items():
            earlier = results[first]
            results[i] = earlier._replace(repeated=True) if isinstance(earlier, Verdict) else earlier
        return [results[i] for i in range(len(requests))]

    def _sort_out(
        self, session: Session, requests: Sequence[Request], results: dict[int, Verdict | InvalidInput]
    ) -> tuple[dict[int, int], dict[str, list[int]]]:
        """Which requests repeat another of the group, and which are to be answered, by client."""
        first_of: dict[tuple[str, str], int] = {}
        repeats: dict[int, int] = {}
        by_client: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            if request.key is not None:
                name = (request.client, request.key)
                first = first_of.get(name)
                earlier = session.transaction.answer(*name) if first is None else None
                digest = requests[first].digest if first is not None else earlier and earlier[0]
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
        """Score one client's rows, and write down what becomes of them."""
        rows = requests[0].rows if len(requests) == 1 else np.concatenate([request.rows for request in requests])
        wanted = any(request.scaled for request in requests)
        try:
            ruling = self._judge.rule(session.state, client, session.now, rows, _beginnings(requests), scaled=wanted)
        except InvalidInput as refusal:  # nothing is written yet; whose fault it is shows one by one
            if len(requests) == 1:
                return [refusal]
            return [answer for request in requests for answer in self._answer(session, client, [request])]
        if ruling.thaw is not None:
            session.append(THAW, note=json.dumps({"because": ruling.thaw}))
        if ruling.freeze is not None:
            session.append(FREEZE, note=json.dumps({"because": ruling.freeze}))
        for part in ruling.parts:
            self._write(session, client, ruling, part)
        return _verdicts(requests, ruling, session.state)

    def _write(self, session: Session, client: str, ruling: Ruling, part: Part) -> None:
        cause = ""
        if part.kind == ASIDE:
            cause = _OUTLIER if part.far else "frozen" if ruling.mode == FROZEN else "cap"
        note: dict[str, Any] = {"alarms": ruling.alarms} if ruling.alarms else {}
        if cause:
            note["cause"] = cause
        entry = session.append(
            part.kind,
            part.statistics,
            client=client,
            rows=len(part.rows),
            flagged=part.flagged,
            predicted=part.predicted.tobytes(),
            mean=part.heard.mean.tobytes(),
            m2=part.heard.m2.tobytes(),
            learned=b"" if cause else part.learned,
            glimpse=part.glimpse,
            note=json.dumps(note) if note else "",
        )
        if cause:
            self._set_aside(session, entry, cause, part)

    def _set_aside(self, session: Session, entry: Entry, cause: str, part: Part) -> None:
        """Keep what a person may want to take in: by client and minute, or the rows themselves where order matters."""
        moments, minute = part.moments, int(entry.at // 60.0)
        earlier = None if part.learned else session.transaction.aside_of_minute(minute, entry.client, cause)
        if earlier is not None:
            moments = combine(_moments(earlier), moments)
        session.transaction.set_aside(
            Aside(
                entry.seq if earlier is None else earlier.seq,
                entry.at if earlier is None else earlier.at,
                minute,
                entry.client,
                cause,
                int(moments.weight),
                entry.flagged + (0 if earlier is None else earlier.flagged),
                moments.mean.tobytes(),
                moments.m2.tobytes(),
                part.learned,
            )
        )

    # -- decisions of a person ---------------------------------------------------------------------------------

    def set_threshold(self, value: float | None) -> GuardState:
        """Draw the line elsewhere; None: where the guard file draws it."""
        threshold = self.start.threshold if value is None else Threshold(_validate.real(value, "threshold"))
        if not np.isfinite(threshold.value):
            raise InvalidInput(f"threshold must be finite; got {value!r}.")
        return self._command(THRESHOLD, {"threshold": threshold.to_header(), "own": value is None})

    def freeze(self, because: str) -> GuardState:
        """Score by the guard file's statistics and take nothing in, until :meth:`thaw` or :meth:`reset`."""
        if self._judge.mode == STATIC:
            raise InvalidInput(f"{self.detector.name} has no running statistics; there is nothing to freeze.")
        return self._command(FREEZE, {"because": because, "by_person": True})

    def thaw(self) -> GuardState:
        """Take rows in again."""
        return self._command(THAW, {"because": "a person said so"})

    def reset(self) -> GuardState:
        """Forget the stream: back to the guard file's statistics. What is set aside stays there."""
        return self._command(RESET, {})

    def take_in(self, client: str | None = None) -> GuardState:
        """Take in what was set aside, of one client or of all; rows that lie far out stay aside."""
        return self._settle(TAKE_IN, client)

    def discard(self, client: str | None = None) -> GuardState:
        """Forget what was set aside, of one client or of all."""
        return self._settle(DISCARD, client)

    def aside(self) -> list[Aside]:
        """What is set aside, by client and minute; without the rows themselves."""
        with Session(self._journal) as session:
            return session.transaction.list_aside()

    def refresh(self) -> GuardState:
        """Read what other processes have written since."""
        with Session(self._journal) as session:
            return session.state

    def save(self) -> None:
        """Write a snapshot, so that the next start has nothing to read besides."""
        with Session(self._journal) as session:
            if session.state.seq:
                session.save_snapshot()

    def _command(self, kind: str, note: dict[str, Any]) -> GuardState:
        with Session(self._journal) as session:
            session.append(kind, note=json.dumps(note))
        return self.state

    def _settle(self, kind: str, client: str | None) -> GuardState:
        with Session(self._journal) as session:
            parts = session.transaction.aside(client)
            statistics = session.state.statistics
            if kind == TAKE_IN:
                parts = [part for part in parts if part.cause != _OUTLIER]
                for part in parts:
                    statistics = statistics.again(_moments(part), part.learned)
            session.append(kind, statistics, rows=sum(part.rows for part in parts), note=json.dumps({"client": client}))
            session.transaction.drop_aside(parts)
            session.save_snapshot()  # the journal alone could not say this again
        return self.state


def _required(detector: Detector) -> tuple[int, Threshold]:
    """The number of classes and the threshold, or what is missing."""
    if detector.reads != "logits":
        raise InvalidInput(
            f"a guard reads logits; {detector.name} reads {detector.reads}. Fit another detector, e.g. norm_scaling."
        )
    if detector.width_ is None:
        raise NotFitted(f"{detector.name} is not fitted, so the number of classes is not known; fit it first.")
    if detector.threshold_ is None:
        raise NotFitted(
            f"{detector.name} has no threshold, so the guard could not say yes or no; fit it with "
            "--calibrate VALIDATION, or give a --threshold."
        )
    if not np.isfinite(detector.threshold_.value):
        raise InvalidInput(f"threshold must be finite; got {detector.threshold_.value!r}.")
    return detector.width_, detector.threshold_


def _moments(aside: Aside) -> BlockState:
    return BlockState(float(aside.rows), np.frombuffer(aside.mean), np.frombuffer(aside.m2))


def _beginnings(requests: list[Request]) -> IntArray | None:
    """Where in the block each request begins; None when each is a single row."""
    if all(len(request.rows) == 1 for request in requests):
        return None
    return np.cumsum([0, *(len(request.rows) for request in requests[:-1])])


def _verdicts(requests: list[Request], ruling: Ruling, state: GuardState) -> list[Verdict]:
    """The ruling, cut into the requests' own rows."""
    alarms = tuple(kind for kind, *_ in ruling.alarms)
    taken, scaled = ruling.taken, ruling.scaled
    verdicts, a = [], 0
    for request in requests:
        b = a + len(request.rows)
        verdicts.append(
            Verdict(
                ruling.scores[a:b],
                ruling.flags[a:b],
                ruling.predicted[a:b],
                ruling.mode,
                b - a if taken is None else int(np.count_nonzero(taken[a:b])),
                alarms,
                state.rows,
                scaled[a:b] if scaled is not None and request.scaled else None,
            )
        )
        a = b
    return verdicts


def fingerprint(detector: Detector) -> str:
    """Tells detectors apart by what they learned; the threshold may differ."""
    digest = hashlib.sha256()
    digest.update(json.dumps([detector.name, {k: repr(v) for k, v in detector.get_params().items()}]).encode())
    for name, array in sorted(detector._tensors().items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        # In single precision: fitting the same rows with other kernels differs in the last digits of double precision.
        digest.update(array.astype(np.float32).tobytes() if array.dtype.kind == "f" else array.tobytes())
    return digest.hexdigest()
