"""What every route of one guard does, and who may use it."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from normscale._kernels import load_in_background
from normscale.errors import FileFormatError, StoreUnavailable
from normscale.guard import Guard, GuardPair, Verdict
from normscale.guard import Request as GuardRequest
from normscale.guard.entries import Entry
from normscale.guard.server.bodies import Decided, Nothing, encode_json
from normscale.guard.server.classifier import Classifier
from normscale.guard.server.events import Watcher, Webhook
from normscale.guard.server.group_commit import GroupCommit
from normscale.guard.server.instruments import Instruments
from normscale.guard.server.openapi import Route, routes_of
from normscale.guard.server.request import BadRequest, Handler, HttpRequest, Reply, shown
from normscale.guard.server.settings import NAME, ServerSettings
from normscale.guard.server.state_document import live_document, state_document
from normscale.guard.server.tensors import (
    HEADER,
    InferRequest,
    ModelResponse,
    Parameters,
    TensorSpec,
    encode_answer,
    read_body,
    read_tensors,
)
from normscale.guard.server.tokens import TokenFile, may
from normscale.outputs import ModelOutputs

RESPONSE = "org.kubeflow.serving.inference.response"
"""The type of an event of KServe's logger that holds what a model answered."""
_LONGEST_KEY, _LONGEST_SOURCE, _MOST_SOURCES = 128, 64, 256
_READY_FIRST = 0.3
"""Seconds until the compiled kernels are loaded: answering that the server is ready comes first."""
_LIVE_SECONDS = 1.0
_KEEP_ALIVE_SECONDS = 10.0
_WATCH_SECONDS = 5.0
_STATE_SECONDS = 1.0
"""How long metrics wait for the store; then they are those of before."""
_READY_SECONDS = 10.0
_READY_AGAIN = 1.0
"""Seconds for which the store, once written to, is taken for writable: strangers may ask."""
_STOP_SECONDS = 6.0
"""For the last rows to be written when the server is told to stop."""

Wanted = TypeVar("Wanted")


class ShutdownSignal:
    """Set by SIGTERM and SIGINT: uvicorn says nothing to the application until every stream has ended."""

    def __init__(self) -> None:
        """Call it inside the event loop, once uvicorn has its handlers in place."""
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():  # embedded: no signals reach it
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            earlier = signal.getsignal(number)
            if callable(earlier):
                signal.signal(number, partial(self._set, earlier))

    def _set(self, earlier: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._event.set)
        earlier(number, frame)

    async def within(self, seconds: float) -> bool:
        """Wait for the signal, but no longer than that; whether it came."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        return self._event.is_set()


class Handlers:
    """What one worker does for one guard; ``openapi.GUARD_ROUTES`` says which method answers which path.

    A guard that nobody named has its paths at the root, others below their names.
    """

    def __init__(self, name: str, server: ServerSettings, instruments: Instruments) -> None:
        """Read what must be right before anything listens."""
        self.name = name
        self.server = server
        self.prefix = "" if name == NAME else f"/{name}"
        self.routes = routes_of(server.guards[name], name, self.prefix)
        self.settings = server.guards[name]
        self.bounds = server.bounds
        self.instruments = instruments
        self.tokens = TokenFile(self.settings.tokens)
        self.guards: GuardPair
        self.commit: GroupCommit
        self.watcher: Watcher
        self.classifier: Classifier | None = None
        self.arrays: list[TensorSpec]
        """The tensors that the guard reads ..."""
        self.reads: list[TensorSpec]
        """... those that clients send: the same, or the inputs of the model that the server runs ..."""
        self.gives: list[TensorSpec]
        """... and those they get back."""
        self.shutdown: ShutdownSignal
        self._tasks: list[asyncio.Task[None]] = []
        self._written = -_READY_AGAIN
        self._sources: set[str] = set()

    async def start(self, shutdown: ShutdownSignal, webhook: Webhook) -> None:
        """Open the store and get ready."""
        load_in_background(after=_READY_FIRST)
        self.guards = self.settings.open()
        self.classifier = self.settings.load_classifier(self.guards.widths)
        self.arrays = [TensorSpec(name, "FP32", (None, width)) for name, width in self.guards.widths.items()]
        self.reads = self.arrays if self.classifier is None else self.classifier.inputs
        self.gives = [] if self.classifier is None else list(self.classifier.outputs)
        kind = "INT64" if self.guards.serving.detector.class_names is None else "BYTES"
        types = {"ood_score": "FP64", "is_ood": "BOOL", "predicted": kind}
        self.gives += [TensorSpec(name, datatype, (None,)) for name, datatype in types.items()]
        self.shutdown = shutdown
        self.instruments.begin(self.name, self.guards.serving.drift.limits)
        self.watcher = Watcher(self.name, self.instruments, webhook)
        for guard in (self.guards.serving, self.guards.shadow):
            if guard is not None:
                guard.listeners.append(partial(self._on_entry, guard))
        self.commit = GroupCommit(self.guards)
        self._tasks.append(asyncio.create_task(self._watch()))
        if self.server.demo:
            from normscale.guard.server.demo import play

            self._tasks.append(asyncio.create_task(play(self.commit, self.count)))

    async def stop(self) -> None:
        """Answer what waits, and let go of the store."""
        for task in self._tasks:
            task.cancel()
        if not await asyncio.to_thread(self.commit.stop, _STOP_SECONDS):
            return  # the thread ends with the process; nothing that it holds was acknowledged
        self.guards.close()

    def handler(self, route: Route) -> Handler:
        """What answers a route: the method of its name here or, for a decision, that of the guard."""
        own: Handler | None = getattr(self, route.handler, None)
        return partial(self._decide, route) if own is None else own

    def _on_entry(self, guard: Guard, entry: Entry) -> None:
        self.watcher.report(entry, of_shadow=guard is self.guards.shadow)

    async def _watch(self) -> None:
        """Look at the store every few seconds, so that its troubles are logged also while nobody asks."""
        while not await self.shutdown.within(_WATCH_SECONDS):
            with suppress(StoreUnavailable, FileFormatError):
                await self._writable_state()

    def identify(self, request: HttpRequest, role: str) -> None:
        """Find out whose request it is, and whether they may; before its body is read."""
        request.client = request.address
        if not role or not self.tokens.required:
            return
        try:
            client = self.tokens.current().identify(request.header(b"authorization"))
        except FileFormatError as error:
            raise BadRequest(503, "the server's tokens cannot be read, so nobody is let in.") from error
        if client is None:
            raise BadRequest(401, "this needs a token that is known: send the header Authorization: Bearer TOKEN.")
        request.client = client.name
        if not may(client.role, role):
            raise BadRequest(403, f"a token of role {client.role} may not do this; it needs {role} or admin.")

    # -- rows ----------------------------------------------------------------------------------------------------

    async def infer(self, request: HttpRequest) -> Reply:
        """``POST /v2/models/NAME/infer``: rows or, where the server runs the model, its inputs."""
        began, header = time.perf_counter(), request.header(HEADER.lower().encode())
        asked, binary = read_body(request.body, header)
        asked.require_outputs([spec.name for spec in self.gives])
        arrays = read_tensors(asked.inputs, binary, self.reads, self.bounds.max_rows)
        own: dict[str, Any] = {}
        if self.classifier is not None:
            try:
                arrays, own = await asyncio.to_thread(self.classifier.run, arrays)
                outputs = self.guards.checked(arrays)
            except Exception as error:  # onnxruntime's errors have no common class; the inputs made it fail
                raise BadRequest(422, f"the model refused these inputs ({shown(error)}).") from error
        else:
            outputs = _outputs(arrays)
        key, digest = asked.text("idempotency_key", _LONGEST_KEY), b""
        if key is not None:  # all that the client asked for, not only its rows
            digest = hashlib.sha256(f"{header}\n".encode() + request.body).digest()
        source = asked.text("client", _LONGEST_SOURCE)
        return await self._answer(asked, self._client(request.client, source), outputs, key, digest, began, own)

    async def take_event(self, request: HttpRequest) -> Reply:
        """``POST /v1/events``: rows that another server's model gave, as KServe's inference logger sends them."""
        began = time.perf_counter()
        kind, id, source = (request.header(b"ce-" + name) for name in (b"type", b"id", b"source"))
        if request.header(b"ce-specversion") != "1.0" or not (kind and id and source):
            raise BadRequest(400, "this is no CloudEvent 1.0 in binary mode: its headers ce-... say what it is.")
        if kind != RESPONSE:  # such as the request that the model got
            return Reply(encode_json({"ignored": f"only events of type {RESPONSE} hold rows."}), status=202)
        told, binary = read_body(request.body, request.header(HEADER.lower().encode()), ModelResponse)
        arrays = read_tensors(told.outputs, binary, self.arrays, self.bounds.max_rows, others_too=True)
        # Events are delivered at least once: of one id, source and body the rows count once.
        digest = hashlib.sha256(f"{source}\n{id}\n".encode() + request.body).digest()
        asked = InferRequest(inputs=[], id=id)
        client = self._client(request.client, request.header(b"ce-inferenceservicename"))
        return await self._answer(asked, client, _outputs(arrays), f"ce {digest.hex()}", digest, began, {})

    async def _answer(
        self,
        asked: InferRequest,
        client: str,
        outputs: ModelOutputs,
        key: str | None,
        digest: bytes,
        began: float,
        own: dict[str, Any],
    ) -> Reply:
        verdict = await self.commit.submit(GuardRequest(outputs, client, key, digest))
        self.count(verdict, time.perf_counter() - began)
        names = self.guards.serving.detector.class_names
        predicted: Any = verdict.predicted if names is None else [names[index] for index in verdict.predicted.tolist()]
        given = {**own, "ood_score": verdict.scores, "is_ood": verdict.is_ood, "predicted": predicted}
        about: Parameters = {"mode": str(verdict.mode), "taken_in": verdict.taken_in, "rows": verdict.rows}
        about["alarms"] = ", ".join(verdict.alarms)
        if verdict.repeated:
            about["repeated"] = True
        return encode_answer(self.name, asked, given, about)

    def count(self, verdict: Verdict, seconds: float) -> None:
        """Count an answer for the metrics."""
        guard = self.guards.serving
        threshold = guard.state.threshold
        of_rows = threshold.value if threshold.per_class is None else np.take(threshold.per_class, verdict.predicted)
        names = guard.detector.class_names
        self.instruments.answered(self.name, verdict, verdict.scores - of_rows, names, seconds)

    def _client(self, name: str, source: str | None) -> str:
        """A client that sends rows of several sources may name them; the first 256 names are kept apart."""
        if source is None or (len(self._sources) >= _MOST_SOURCES and source not in self._sources):
            return name
        self._sources.add(source)
        return f"{name}/{shown(source)[:_LONGEST_SOURCE]}"

    # -- looking -------------------------------------------------------------------------------------------------

    async def state(self, _: HttpRequest) -> Reply:
        """``GET /v1/state``."""
        return Reply(encode_json(await self._refreshed(state_document)))

    async def quarantine(self, _: HttpRequest) -> Reply:
        """``GET /v1/quarantine``."""
        parts = await self.commit.run(lambda guards: guards.run(Guard.quarantine))
        fields = ("at", "client", "cause", "rows", "flagged")
        return Reply(encode_json({"quarantine": [{name: getattr(part, name) for name in fields} for part in parts]}))

    async def live(self, _: HttpRequest) -> Reply:
        """``GET /v1/live``."""
        return Reply(self._events(), "text/event-stream", {"X-Accel-Buffering": "no"})

    async def _events(self) -> AsyncIterator[bytes]:
        last: tuple[Any, ...] | None = None
        pause = silent = 0.0
        while not await self.shutdown.within(pause):
            pause = _LIVE_SECONDS
            silent += pause
            try:
                view = await self._refreshed(live_document)
            except (StoreUnavailable, FileFormatError) as error:
                yield b"event: trouble\ndata: " + encode_json({"error": str(error)}) + b"\n\n"
                continue
            view |= self.instruments.summary()
            view |= {"name": self.name, "detector_file": self.settings.detector, "workers": self.server.workers}
            now = (view["entry"], view["throughput"], view["timeline"]["start"])
            if now != last:
                yield b"event: view\ndata: " + encode_json(view) + b"\n\n"
                last, silent = now, 0.0
            elif silent >= _KEEP_ALIVE_SECONDS:
                yield b": still here\n\n"
                silent = 0.0

    async def last_state(self) -> tuple[dict[str, Any], bool]:
        """The state, and whether the store is up; as it was last known where it is not."""
        try:
            async with asyncio.timeout(_STATE_SECONDS):
                return await self._writable_state(), True
        except (StoreUnavailable, FileFormatError, TimeoutError):
            return state_document(self.guards), False

    async def _refreshed(self, describe: Callable[[GuardPair], dict[str, Any]]) -> dict[str, Any]:
        def refreshed(guards: GuardPair) -> dict[str, Any]:
            guards.refresh()
            return describe(guards)

        return await self.commit.run(refreshed)

    async def _writable_state(self) -> dict[str, Any]:
        """The state, of a store that more can be written to; what is wrong with it is logged."""
        try:
            state = await self._refreshed(state_document)
            self.guards.serving.require_room()
        except (StoreUnavailable, FileFormatError) as error:
            self.watcher.store_trouble(str(error))
            raise
        self.watcher.store_trouble(None)
        return state

    async def ready(self, _: HttpRequest) -> Reply:
        """``GET /v2/models/NAME/ready``: rows can be taken in, for something was written just now."""
        if not self.commit.alive:
            raise BadRequest(503, "the guard is shutting down.")
        if self.commit.is_failing or time.monotonic() - self._written > _READY_AGAIN:
            try:
                async with asyncio.timeout(_READY_SECONDS):
                    await self.commit.run(lambda guards: guards.run(Guard.probe))
            except TimeoutError:
                raise BadRequest(503, f"the store did not answer within {_READY_SECONDS:g} seconds.") from None
            self._written = time.monotonic()
        return Reply(encode_json({"name": self.name, "ready": True}))

    async def model_metadata(self, _: HttpRequest) -> Reply:
        """``GET /v2/models/NAME``."""
        tensors = {"inputs": self.reads, "outputs": self.gives}
        documents = {field: [spec.document() for spec in specs] for field, specs in tensors.items()}
        return Reply(encode_json({"name": self.name, "versions": [], "platform": "normscale", **documents}))

    # -- decisions -----------------------------------------------------------------------------------------------

    async def _decide(self, route: Route, request: HttpRequest) -> Reply:
        """Call the guard's method of the route's name with the fields of the body."""
        values = msgspec.structs.astuple(_read_json(request, route.body))

        def decide(guards: GuardPair) -> None:
            guards.run(lambda guard: getattr(guard, route.handler)(*values, by=request.client))

        return await self._changed(decide, Decided.__struct_fields__ if route.answer is Decided else ("threshold",))

    async def switch(self, request: HttpRequest) -> Reply:
        """``POST /v1/switch``."""
        _read_json(request, Nothing)
        return await self._changed(partial(GuardPair.switch, by=request.client), ("shadow", "switched"))

    async def _changed(self, change: Callable[[GuardPair], Any], shown: tuple[str, ...]) -> Reply:
        """Change the guards, and answer some fields of the state after it."""

        def changed(guards: GuardPair) -> dict[str, Any]:
            change(guards)
            return state_document(guards)

        state = await self.commit.run(changed)
        return Reply(encode_json({name: state[name] for name in shown}))


def _read_json(request: HttpRequest, body_type: type[Wanted]) -> Wanted:
    try:
        return msgspec.json.decode(request.body or b"{}", type=body_type)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(422, f"the body is not what is expected here: {shown(error)}.") from error


def _outputs(arrays: dict[str, NDArray[Any]]) -> ModelOutputs:
    """Arrays of any type of numbers as outputs."""
    narrow = {name: array if array.dtype.char in "fd" else _floats(array) for name, array in arrays.items()}
    return ModelOutputs._trusted(narrow)


def _floats(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)
