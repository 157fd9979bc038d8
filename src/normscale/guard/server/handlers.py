"""What every route of one guard does, and who may use it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
import numpy as np

from normscale._kernels import load_in_background
from normscale.errors import FileFormatError, StoreUnavailable
from normscale.guard import Guard, Verdict
from normscale.guard import Request as GuardRequest
from normscale.guard.server.events import Watcher, Webhook
from normscale.guard.server.group_commit import GroupCommit
from normscale.guard.server.instruments import Instruments
from normscale.guard.server.request import BadRequest, Handler, HttpRequest, Reply, shown
from normscale.guard.server.routes import GUARD_ROUTES, Route
from normscale.guard.server.settings import NAME, ServerSettings
from normscale.guard.server.tensors import (
    HEADER,
    InferRequest,
    ModelResponse,
    Parameters,
    TensorSpec,
    encode_answer,
    encode_json,
    read_body,
    read_tensors,
)
from normscale.guard.server.tokens import Tokens
from normscale.guard.server.view import View, state_document
from normscale.outputs import ModelOutputs

RESPONSE = "org.kubeflow.serving.inference.response"
"""The type of an event of KServe's logger that holds what a model answered."""
_LONGEST_KEY, _LONGEST_SOURCE = 128, 64
_READY_FIRST = 0.3  # seconds until the compiled kernels are loaded: answering that the server is ready comes first
_LIVE_SECONDS, _KEEP_ALIVE_SECONDS = 1.0, 10.0
_STATE_SECONDS = 1.0  # how long metrics wait for the store; then they are those of before
_READY_SECONDS = 10.0
_READY_AGAIN = 1.0  # seconds for which the store, once written to, is taken for writable: strangers may ask
_STOP_SECONDS = 6.0  # for the last rows to be written when the server is told to stop
_DECIDED = ("mode", "rows", "kept_out", "frozen_because", "threshold", "notes")  # what a decision is answered by
_OUTPUTS = {"ood_score": "FP64", "is_ood": "BOOL", "predicted": "INT64"}


class Handlers:
    """What one worker does for one guard; ``routes.GUARD_ROUTES`` says which method answers which path.

    A guard that nobody named has its paths at the root, others below their names.
    """

    def __init__(self, name: str, server: ServerSettings, instruments: Instruments) -> None:
        self.name = name
        self.server = server
        self.prefix = "" if name == NAME else f"/{name}"
        self.routes = [route.at(name, self.prefix) for route in GUARD_ROUTES]
        self.settings = server.guards[name]
        self.instruments = instruments
        self.tokens = Tokens(self.settings.tokens)
        self._demo: asyncio.Task[None] | None = None
        self._written = -_READY_AGAIN

    async def start(self, webhook: Webhook) -> None:
        """Open the store and get ready."""
        load_in_background(after=_READY_FIRST)
        self.guard, self.classifier = self.settings.open()
        guard = self.guard
        # The tensors that the guard reads, those that clients send, and those they get back.
        self.arrays = [TensorSpec(name, "FP32", (None, width)) for name, width in guard.widths.items()]
        self.reads = self.arrays if self.classifier is None else self.classifier.inputs
        self.gives: list[TensorSpec] = [] if self.classifier is None else list(self.classifier.outputs)
        types = _OUTPUTS if guard.detector.class_names is None else {**_OUTPUTS, "predicted": "BYTES"}
        self.gives += [TensorSpec(name, datatype, (None,)) for name, datatype in types.items()]
        self.instruments.begin(self.name, guard.drift.limits)
        self.watcher = Watcher(self.name, self.instruments, webhook)
        self.view = View()
        self.view.feed(guard.log())
        guard.listeners += [self.watcher.report, lambda others, own: self.view.feed(others + own)]
        self.commit = GroupCommit(guard)
        if self.server.demo:
            from normscale.guard.server.demo import play

            self._demo = asyncio.create_task(play(self.commit, self.count))

    async def stop(self) -> None:
        """Answer what waits, and let go of the store."""
        if self._demo is not None:
            self._demo.cancel()
        if await asyncio.to_thread(self.commit.stop, _STOP_SECONDS):
            self.guard.store.close()  # else the thread ends with the process; nothing that it holds was acknowledged

    def handler(self, route: Route) -> Handler:
        """What answers a route: the method of its name here or, for a decision, that of the guard."""
        own: Handler | None = getattr(self, route.handler, None)
        return partial(self._decide, route) if own is None else own

    def identify(self, request: HttpRequest, role: str) -> None:
        """Find out whose request it is, and whether they may; before its body is read."""
        request.client = request.address
        if not role or not self.tokens.required:
            return
        try:
            client = self.tokens.identify(request.header(b"authorization"))
        except FileFormatError as error:
            raise BadRequest(503, "the server's tokens cannot be read, so nobody is let in.") from error
        if client is None:
            raise BadRequest(401, "this needs a token that is known: send the header Authorization: Bearer TOKEN.")
        request.client = client.name
        if not client.may(role):
            raise BadRequest(403, f"a token of role {client.role} may not do this; it needs {role} or admin.")

    def store_failed(self, error: Exception) -> None:
        """Count and log a request that the store failed."""
        self.instruments.store_errors.labels(self.name).inc()
        self.watcher.store_trouble(str(error))

    async def infer(self, request: HttpRequest) -> Reply:
        """``POST /v2/models/NAME/infer``: rows or, where the server runs the model, its inputs."""
        began, header = time.perf_counter(), request.header(HEADER.lower().encode())
        asked, binary = read_body(request.body, header)
        asked.require_outputs([spec.name for spec in self.gives])
        arrays = read_tensors(asked.inputs, binary, self.reads, self.server.bounds.max_rows)
        own: dict[str, Any] = {}
        if self.classifier is not None:
            try:
                arrays, own = await asyncio.to_thread(self.classifier.run, arrays)
                outputs = self.guard.acceptable(arrays)
            except Exception as error:  # onnxruntime's errors have no common class; the inputs made it fail
                raise BadRequest(422, f"the model refused these inputs ({shown(error)}).") from error
        else:
            outputs = ModelOutputs._trusted(arrays)
        key, digest = asked.text("idempotency_key", _LONGEST_KEY), b""
        if key is not None:  # all that the client asked for, not only its rows
            digest = hashlib.sha256(f"{header}\n".encode() + request.body).digest()
        client = _named(request.client, asked.text("client", _LONGEST_SOURCE))
        return await self._answer(asked, GuardRequest(outputs, client, key, digest), began, own)

    async def take_event(self, request: HttpRequest) -> Reply:
        """``POST /v1/events``: rows that another server's model gave, as KServe's inference logger sends them."""
        began = time.perf_counter()
        kind, id, source = (request.header(b"ce-" + name) for name in (b"type", b"id", b"source"))
        if request.header(b"ce-specversion") != "1.0" or not (kind and id and source):
            raise BadRequest(400, "this is no CloudEvent 1.0 in binary mode: its headers ce-... say what it is.")
        if kind != RESPONSE:  # such as the request that the model got
            return Reply(encode_json({"ignored": f"only events of type {RESPONSE} hold rows."}), status=202)
        told, binary = read_body(request.body, request.header(HEADER.lower().encode()), ModelResponse)
        arrays = read_tensors(told.outputs, binary, self.arrays, self.server.bounds.max_rows, others_too=True)
        # Events are delivered at least once: of one id, source and body the rows count once.
        digest = hashlib.sha256(f"{source}\n{id}\n".encode() + request.body).digest()
        client = _named(request.client, request.header(b"ce-inferenceservicename"))
        rows = GuardRequest(ModelOutputs._trusted(arrays), client, f"ce {digest.hex()}", digest)
        return await self._answer(InferRequest(inputs=[], id=id), rows, began, {})

    async def _answer(self, asked: InferRequest, rows: GuardRequest, began: float, own: dict[str, Any]) -> Reply:
        verdict: Verdict = await self.commit.run(rows)
        self.count(verdict, time.perf_counter() - began)
        names = self.guard.detector.class_names
        predicted: Any = verdict.predicted if names is None else [names[index] for index in verdict.predicted.tolist()]
        given = {**own, "ood_score": verdict.scores, "is_ood": verdict.is_ood, "predicted": predicted}
        about: Parameters = {"mode": str(verdict.mode), "taken_in": verdict.taken_in, "rows": verdict.rows}
        about["alarms"] = ", ".join(verdict.alarms)
        if verdict.repeated:
            about["repeated"] = True
        return encode_answer(self.name, asked, given, about)

    def count(self, verdict: Verdict, seconds: float) -> None:
        """Count an answer for the metrics."""
        threshold, names = self.guard.state.threshold, self.guard.detector.class_names
        of_rows = threshold.value if threshold.per_class is None else np.take(threshold.per_class, verdict.predicted)
        self.instruments.answered(self.name, verdict, verdict.scores - of_rows, names, seconds)

    async def state(self, _: HttpRequest) -> Reply:
        """``GET /v1/state``."""
        return Reply(encode_json(await self._refreshed()))

    async def live(self, _: HttpRequest) -> Reply:
        """``GET /v1/live``."""
        return Reply(self._events(), "text/event-stream", {"X-Accel-Buffering": "no"})

    async def _events(self) -> AsyncIterator[bytes]:
        last: tuple[Any, ...] | None = None
        silent = 0.0
        while True:
            try:
                view = await self._refreshed(with_past=True)
            except (StoreUnavailable, FileFormatError) as error:
                yield b"event: trouble\ndata: " + encode_json({"error": str(error)}) + b"\n\n"
            else:
                view |= self.instruments.summary()
                view |= {"name": self.name, "detector_file": self.settings.detector, "workers": self.server.workers}
                now = (view["entry"], view["throughput"], view["timeline"]["start"])
                if now != last:
                    yield b"event: view\ndata: " + encode_json(view) + b"\n\n"
                    last, silent = now, 0.0
                elif silent >= _KEEP_ALIVE_SECONDS:
                    yield b": still here\n\n"
                    silent = 0.0
            await asyncio.sleep(_LIVE_SECONDS)
            silent += _LIVE_SECONDS

    async def last_state(self) -> tuple[dict[str, Any], bool]:
        """The state, and whether the store is up; as it was last known where it is not."""
        try:
            async with asyncio.timeout(_STATE_SECONDS):
                return await self._refreshed(), True
        except (StoreUnavailable, FileFormatError, TimeoutError):
            return state_document(self.guard), False

    async def _refreshed(self, *, with_past: bool = False) -> dict[str, Any]:
        """The state as it is in the store; what is wrong with the store is logged."""

        def refreshed(guard: Guard) -> dict[str, Any]:
            guard.refresh()
            return {**state_document(guard), **(self.view.document(guard.now) if with_past else {})}

        try:
            state: dict[str, Any] = await self.commit.run(refreshed)
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
                    await self.commit.run(Guard.probe)
            except TimeoutError:
                raise BadRequest(503, f"the store did not answer within {_READY_SECONDS:g} seconds.") from None
            self._written = time.monotonic()
        return Reply(encode_json({"name": self.name, "ready": True}))

    async def model_metadata(self, _: HttpRequest) -> Reply:
        """``GET /v2/models/NAME``."""
        tensors = {"inputs": self.reads, "outputs": self.gives}
        documents = {field: [spec.document() for spec in specs] for field, specs in tensors.items()}
        return Reply(encode_json({"name": self.name, "versions": [], "platform": "normscale", **documents}))

    async def _decide(self, route: Route, request: HttpRequest) -> Reply:
        try:
            body = msgspec.json.decode(request.body or b"{}", type=route.body)
        except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
            raise BadRequest(422, f"the body is not what is expected here: {shown(error)}.") from error

        def decide(guard: Guard) -> dict[str, Any]:
            getattr(guard, route.handler)(*msgspec.structs.astuple(body), by=request.client)
            return state_document(guard)

        state: dict[str, Any] = await self.commit.run(decide)
        return Reply(encode_json({name: state[name] for name in _DECIDED}))


def _named(client: str, source: str | None) -> str:
    """A client that sends rows of several sources may name them."""
    return client if source is None else f"{client}/{shown(source)[:_LONGEST_SOURCE]}"
