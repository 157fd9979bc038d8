"""Clients that send rows while their server is killed again and again, and what its state must then be.

Every block of rows is made from the client's number and its own, so that what was acknowledged can be made again.
"""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

import normscale as ns
from guard.server.running import Client, Server
from normscale._validate import FloatArray

SAMPLE = ns.load_sample()
TRYING_AGAIN = 0.02


class Block(NamedTuple):
    """One request: which client's, which of them, and its rows."""

    client: int
    number: int
    rows: FloatArray

    @property
    def key(self) -> str:
        return f"client {self.client}, request {self.number}"


def make_block(client: int, number: int) -> Block:
    """A single row mostly, many now and then; no two blocks are alike."""
    random = np.random.default_rng([client, number])
    n = 1 if random.random() < 0.7 else int(random.integers(2, 60))
    chosen = SAMPLE.test.logits[random.integers(0, len(SAMPLE.test.logits), n)].astype(np.float64)
    rows = chosen + random.normal(0.0, 0.5, chosen.shape)
    return Block(client, number, rows.astype(np.float32) if number % 2 else rows)


class Sender(threading.Thread):
    """Sends its blocks one after the other until it is told to stop, or has sent ``limit`` of them.

    With keys a block is sent until it is acknowledged. Without, it is sent once; ``unknown`` are those whose answer
    never came.
    """

    def __init__(
        self, number: int, port: Callable[[], int], keyed: bool, limit: int | None = None, source: str | None = None
    ) -> None:
        super().__init__(daemon=True)
        self.source = source
        self.number, self.keyed, self.limit = number, keyed, limit
        self.acknowledged: list[Block] = []
        self.scores: list[FloatArray] = []
        self.unknown: list[Block] = []
        self.refused: list[tuple[int, str]] = []
        """Statuses other than 200, which promise that nothing was taken in unless they say that they do not know."""
        self.replayed = 0
        self.problem: BaseException | None = None
        self._port = port
        self._stop_now = threading.Event()
        self._may_send = threading.Lock()

    def stop(self) -> None:
        """After the block that is under way."""
        self._stop_now.set()

    def pause(self) -> None:
        """Wait until the block that is under way has its answer, and send no other."""
        self._may_send.acquire()

    def go_on(self) -> None:
        """After a pause."""
        self._may_send.release()

    def finish(self) -> None:
        """Wait for the last block, and raise what went wrong."""
        self.join(60)
        assert not self.is_alive(), "a client still waits for its answer"
        if self.problem is not None:
            raise self.problem

    def run(self) -> None:
        try:
            for number in itertools.count():
                if self._stop_now.is_set() or number == self.limit:
                    return
                with self._may_send:
                    self._send(make_block(self.number, number))
                time.sleep(0)  # or a pause would never get its turn
        except BaseException as problem:
            self.problem = problem
        finally:
            self._drop()

    def _send(self, block: Block) -> None:
        key = block.key if self.keyed else None
        while True:
            client = self._client()
            try:
                reply = client.score(block.rows, binary=block.number % 2 == 1, key=key, source=self.source)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                time.sleep(TRYING_AGAIN)
                if self.keyed or isinstance(error, ConnectionRefusedError):  # refused: it was never sent
                    continue
                self.unknown.append(block)
                return
            if reply.status == 200:
                answer = reply.answer
                assert answer["taken_in"] == len(block.rows) == len(answer["ood_score"]), answer
                self.acknowledged.append(block)
                self.scores.append(np.array(answer["ood_score"]))
                self.replayed += "repeated" in answer
                return
            self.refused.append((reply.status, reply.json["error"]))
            assert reply.status in (503, 507), reply
            if not self.keyed and "not known" in reply.json["error"]:
                self.unknown.append(block)
                return
            time.sleep(TRYING_AGAIN)

    _connected: tuple[int, Client] | None = None

    def _client(self) -> Client:
        port = self._port()
        if self._connected is None or self._connected[0] != port:
            self._drop()
            self._connected = port, Client(port, timeout=20)
        return self._connected[1]

    def _drop(self) -> None:
        if self._connected is not None:
            self._connected[1].close()


def wait_for_answers(senders: Sequence[Sender], more: int = 1, *, each: bool = False, seconds: float = 60.0) -> None:
    """Until they have so many more answers, together or each of them."""
    before = [len(sender.acknowledged) for sender in senders]
    deadline = time.monotonic() + seconds
    while True:
        for sender in senders:
            if sender.problem is not None:
                raise sender.problem
        grown = [len(sender.acknowledged) - count for sender, count in zip(senders, before, strict=True)]
        if (min(grown) if each else sum(grown)) >= more:
            return
        assert time.monotonic() < deadline, f"no answers any more: {[sender.refused[-1:] for sender in senders]}"
        time.sleep(0.001)


class Moments(NamedTuple):
    """What a state says of its running statistics."""

    rows: int
    weight: float
    mean: FloatArray
    std: FloatArray

    @classmethod
    def told(cls, state: Any) -> Moments:
        classes = state["classes"]
        mean, std = np.array(classes["running_mean"]), np.array(classes["running_std"])
        return cls(state["rows"], classes["weight"], mean, std)

    @classmethod
    def expected(cls, detector: ns.NormScaling, blocks: Iterable[Block]) -> Moments:
        """Those of a detector in this process that streams the same rows, with a threshold like the guard's."""
        fresh = ns.NormScaling(prior_weight=detector.prior_weight).fit(SAMPLE.train).set_threshold(SAMPLE.validation)
        total = 0
        parts = [block.rows.astype(np.float64) for block in blocks]
        if parts:
            rows = np.concatenate(parts)
            fresh.stream(rows)
            total = len(rows)
        running = fresh.running_
        return cls(total, running.weight, running.mean, running.std)

    def distance(self, other: Moments) -> float:
        """The largest difference in deviations; infinite when the rows are not as many."""
        if self.rows != other.rows or self.weight != other.weight:
            return float("inf")
        difference = np.maximum(np.abs(self.mean - other.mean), np.abs(self.std - other.std))
        return float((difference / other.std).max())


def explain(state: Any, detector: ns.NormScaling, sure: list[Block], unknown: list[Block]) -> tuple[list[Block], float]:
    """Which of the blocks whose answer was lost are in the state besides the acknowledged ones, and how exactly so."""
    found = Moments.told(state)
    best: tuple[float, list[Block]] = (float("inf"), [])
    surplus = found.rows - sum(len(block.rows) for block in sure)
    for count in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, count):
            if sum(len(block.rows) for block in chosen) == surplus:
                distance = found.distance(Moments.expected(detector, [*sure, *chosen]))
                best = min(best, (distance, list(chosen)), key=lambda pair: pair[0])
    return best[1], best[0]


class Restarting:
    """A server on one store that is started again after every kill, each time on a port of its own."""

    def __init__(self, start: Callable[[], Server]) -> None:
        self._start = start
        self.server = start()
        self.restarts: list[float] = []

    def port(self) -> int:
        return self.server.port

    def kill(self) -> None:
        self.server.kill()

    def replay(self) -> None:
        self.server = self._start()
        self.restarts.append(self.server.seconds)
