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

from normscale._kernels import load_in_background
from normscale.errors import FileFormatError, StoreUnavailable
from normscale.guard import Guard, GuardPair
from normscale.guard import Request as GuardRequest
from normscale.guard.entries import Entry
from normscale.guard.server.answers import encode
from normscale.guard.server.bad_request import BadRequest, shown
from normscale.guard.server.bodies import Decided, Nothing, encode_json
from normscale.guard.server.classifier import Classifier
from normscale.guard.server.group_commit import GroupCommit
from normscale.guard.server.instruments import Instruments
from normscale.guard.server.openapi import Route, openapi_document
from normscale.guard.server.parsing import read_inputs, read_outputs
from normscale.guard.server.request import Handler, HttpRequest, Reply
from normscale.guard.server.settings import ServerSettings
from normscale.guard.server.state_document import live_document, state_document
from normscale.guard.server.tokens import TokenFile, may
from normscale.guard.server.webhook import Watcher, Webhook
from normscale.outputs import ModelOutputs

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
    """What one worker does for one guard; ``openapi.ROUTES`` says which method answers which path.

    The only guard of a server has an empty name; instruments are shared by all of them.
    """

    def __init__(self, name: str, server: ServerSettings, instruments: Instruments) -> None:
        """Read what must be right before anything listens."""
        self.name = name
        self.server = server
        self.settings = server.guards[name]
        self.bounds = server.bounds
        self.instruments = instruments
        self.tokens = TokenFile(self.settings.tokens)
        self.guards: GuardPair
        self.commit: GroupCommit
        self.watcher: Watcher
        self.classifier: Classifier | None = None
        self.shutdown: ShutdownSignal
        self._tasks: list[asyncio.Task[None]] = []
        self._written = -_READY_AGAIN

    async def start(self, shutdown: ShutdownSignal, webhook: Webhook) -> None:
        """Open the store and get ready."""
        load_in_background(after=_READY_FIRST)
        self.guards = self.settings.open()
        self.classifier = self.settings.load_classifier(self.guards.widths)
        self.shutdown = shutdown
        self.watcher = Watcher(self.name, self.instruments, webhook)
        for guard in (self.guards.serving, self.guards.shadow):
            if guard is not None:
                guard.listeners.append(partial(self._on_entry, guard))
        self.commit = GroupCommit(self.guards)
        self._tasks.append(asyncio.create_task(self._watch()))
        if self.server.demo:
            from normscale.guard.server.demo import play

            self._tasks.append(asyncio.create_task(play(self.commit, self.instruments)))

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

    async def score(self, request: HttpRequest) -> Reply:
        """``POST /v1/score``."""
        began = time.perf_counter()
        content_type, max_rows = request.header(b"content-type"), self.bounds.max_rows
        outputs = read_outputs(request.body, content_type, widths=self.guards.widths, max_rows=max_rows, finite=False)
        return await self._answer(request, "/v1/score", outputs, began)

    async def classify(self, request: HttpRequest) -> Reply:
        """``POST /v1/classify``."""
        began = time.perf_counter()
        assert self.classifier is not None  # without a model there is no such route
        inputs = read_inputs(
            request.body,
            request.header(b"content-type"),
            shape=self.classifier.shape,
            dtype=self.classifier.dtype,
            max_elements=self.bounds.max_body,
        )
        if len(inputs) > self.bounds.max_rows:
            raise BadRequest(413, f"{len(inputs)} inputs in one request; at most {self.bounds.max_rows} are taken.")
        try:
            outputs = self.guards.checked(await asyncio.to_thread(self.classifier.outputs, inputs))
        except Exception as error:  # onnxruntime's errors have no common class; the inputs made it fail
            raise BadRequest(422, f"the model refused these inputs ({shown(str(error))}).") from error
        return await self._answer(request, "/v1/classify", outputs, began)

    async def _answer(self, request: HttpRequest, path: str, outputs: ModelOutputs, began: float) -> Reply:
        key, wants_scaled = request.key, request.flag("scaled")
        digest = b""
        if key is not None:  # all that the client asked for, not only its rows
            asked = f"{path} {request.header(b'content-type')}\n".encode()
            digest = hashlib.sha256(asked + request.query + b"\n" + request.body).digest()
        verdict = await self.commit.submit(GuardRequest(outputs, request.client, key, digest, wants_scaled))
        names = self.guards.serving.detector.class_names
        content, content_type, headers = encode(verdict, request.header(b"accept"), names)
        if verdict.repeated:
            headers["Idempotent-Replayed"] = "true"
        prefix = f"/{self.name}" if self.name else ""
        self.instruments.answered(prefix + path, len(verdict.scores), time.perf_counter() - began)
        return Reply(content, content_type, headers)

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
            view["detector_file"], view["workers"] = self.settings.detector, self.server.workers
            now = (view["entry"], view["throughput"], view["timeline"]["start"])
            if now != last:
                yield b"event: view\ndata: " + encode_json(view) + b"\n\n"
                last, silent = now, 0.0
            elif silent >= _KEEP_ALIVE_SECONDS:
                yield b": still here\n\n"
                silent = 0.0

    async def metrics(self, _: HttpRequest) -> Reply:
        """``GET /metrics``: also when the store is down."""
        try:
            async with asyncio.timeout(_STATE_SECONDS):
                state, store_is_up = await self._writable_state(), True
        except (StoreUnavailable, FileFormatError, TimeoutError):
            state, store_is_up = state_document(self.guards), False  # as it was last known
        text = self.instruments.exposition(state, self.name, store_is_up=store_is_up)
        return Reply(text, "text/plain; version=0.0.4; charset=utf-8")

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

    async def health(self, _: HttpRequest) -> Reply:
        """``GET /healthz``: the process is alive."""
        return Reply(encode_json({"status": "alive"}))

    async def ready(self, _: HttpRequest) -> Reply:
        """``GET /readyz``: rows can be taken in, for something was written just now."""
        if not self.commit.alive:
            raise BadRequest(503, "the guard is shutting down.")
        if self.commit.is_failing or time.monotonic() - self._written > _READY_AGAIN:
            try:
                async with asyncio.timeout(_READY_SECONDS):
                    await self.commit.run(lambda guards: guards.run(Guard.probe))
            except TimeoutError:
                raise BadRequest(503, f"the store did not answer within {_READY_SECONDS:g} seconds.") from None
            self._written = time.monotonic()
        return Reply(encode_json({"status": "ready"}))

    async def openapi(self, _: HttpRequest) -> Reply:
        """``GET /openapi.json``."""
        return Reply(encode_json(openapi_document(self.guards.widths, self.settings)))

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
        raise BadRequest(422, f"the body is not what is expected here: {shown(str(error))}.") from error
