"""What every route does, and who may use it."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from normscale._kernels import load_in_background
from normscale.errors import StoreUnavailable
from normscale.guard import Guard
from normscale.guard import Request as GuardRequest
from normscale.guard.detector_check import replays_rows
from normscale.outputs import ModelOutputs
from normscale.serve.answers import encode
from normscale.serve.bad_request import BadRequest, shown
from normscale.serve.classifier import Classifier
from normscale.serve.fast_path import BytesResponse
from normscale.serve.group_commit import GroupCommit
from normscale.serve.instruments import Instruments
from normscale.serve.limits import BODY
from normscale.serve.page_files import page_files
from normscale.serve.parsing import read_inputs, read_outputs
from normscale.serve.settings import ServerSettings
from normscale.serve.shutdown import ShutdownSignal
from normscale.serve.state_document import live_document, state_document, threshold_document
from normscale.serve.tokens import Tokens, load_tokens, may

_READY_FIRST = 0.3
"""Seconds until the compiled kernels are loaded: answering that the server is ready comes first."""
_LIVE_SECONDS = 1.0
_KEEP_ALIVE_SECONDS = 10.0
_LONGEST_KEY = 128

Wanted = TypeVar("Wanted")
_encode_json = msgspec.json.Encoder().encode


class Handlers:
    """What one worker does for every route; ``openapi.ROUTES`` names the methods."""

    def __init__(self, settings: ServerSettings) -> None:
        """Read what must be right before anything listens."""
        self.settings = settings
        self.tokens: Tokens = load_tokens(settings.tokens)
        self.instruments = Instruments()
        self.files = page_files()
        self.guard: Guard
        self.commit: GroupCommit
        self.shutdown: ShutdownSignal
        self.classifier: Classifier | None = None
        self.demo: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the store and get ready."""
        detector = self.settings.load_detector()
        if not replays_rows(detector):  # a replay must always be done by the same kernels
            load_in_background(after=_READY_FIRST)
        self.guard = self.settings.open_guard(detector)
        if self.settings.model is not None:
            self.classifier = Classifier(self.settings.model, self.guard.widths)
        self.commit = GroupCommit(self.guard)
        self.shutdown = ShutdownSignal()
        gc.collect()
        gc.freeze()  # what is loaded by now stays; looking through it again and again is felt in the answers' times
        if self.settings.demo:
            from normscale.serve.demo import play

            self.demo = asyncio.create_task(play(self.commit, self.instruments))

    async def stop(self) -> None:
        """Answer what waits, write a snapshot, and let go of the store."""
        if self.demo is not None:
            self.demo.cancel()
        self.commit.stop()
        with suppress(StoreUnavailable):  # the journal has everything; only the next start takes a little longer
            self.guard.save()
        self.guard.store.close()

    # -- rows ----------------------------------------------------------------------------------------------------

    async def score(self, request: Request) -> Response:
        """``POST /v1/score``."""
        began = time.perf_counter()
        client = self._client(request, "score")
        body = _body(request)
        outputs = read_outputs(
            body,
            _header(request, b"content-type"),
            widths=self.guard.widths,
            max_rows=self.settings.bounds.max_rows,
            finite=False,
        )
        return await self._answer(request, "/v1/score", client, outputs, body, began)

    async def classify(self, request: Request) -> Response:
        """``POST /v1/classify``."""
        began = time.perf_counter()
        client = self._client(request, "score")
        if self.classifier is None:
            raise BadRequest(
                404, "this server has no model; start it with --model m.onnx, or send logits to /v1/score."
            )
        body = _body(request)
        inputs = read_inputs(
            body,
            _header(request, b"content-type"),
            shape=self.classifier.shape,
            dtype=self.classifier.dtype,
            max_elements=self.settings.bounds.max_body,
        )
        most = self.settings.bounds.max_rows
        if len(inputs) > most:
            raise BadRequest(413, f"{len(inputs)} inputs in one request; at most {most} are taken.")
        try:
            outputs = self.guard.checked(await asyncio.to_thread(self.classifier.outputs, inputs))
        except Exception as error:  # onnxruntime's errors have no common class; the inputs made it fail
            raise BadRequest(422, f"the model refused these inputs ({shown(str(error))}).") from error
        return await self._answer(request, "/v1/classify", client, outputs, body, began)

    async def _answer(
        self, request: Request, path: str, client: str, outputs: ModelOutputs, body: bytes, began: float
    ) -> Response:
        key = _key(request)
        wants_scaled = _flag(request, "scaled")
        asked = f"{path} {_header(request, b'content-type')} {wants_scaled}\n".encode()
        digest = b"" if key is None else hashlib.sha256(asked + body).digest()
        verdict = await self.commit.submit(GuardRequest(outputs, client, key, digest, wants_scaled))
        content, content_type, headers = encode(verdict, _header(request, b"accept"))
        if verdict.repeated:
            headers["Idempotent-Replayed"] = "true"
        self.instruments.answered(path, len(verdict.scores), time.perf_counter() - began)
        return BytesResponse(content, content_type, headers)

    # -- looking -------------------------------------------------------------------------------------------------

    async def state(self, request: Request) -> Response:
        """``GET /v1/state``."""
        self._client(request, "read")
        return _json(await self.commit.run(_refreshed(state_document)))

    async def quarantine(self, request: Request) -> Response:
        """``GET /v1/quarantine``."""
        self._client(request, "read")
        parts = await self.commit.run(lambda guard: guard.quarantine())
        fields = ("at", "client", "cause", "rows", "flagged")
        return _json({"quarantine": [{name: getattr(part, name) for name in fields} for part in parts]})

    async def live(self, request: Request) -> Response:
        """``GET /v1/live``."""
        self._client(request, "read")
        return StreamingResponse(self._events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _events(self) -> AsyncIterator[bytes]:
        last: tuple[Any, ...] | None = None
        pause = silent = 0.0
        while not await self.shutdown.within(pause):
            pause = _LIVE_SECONDS
            silent += pause
            try:
                view = await self.commit.run(_refreshed(live_document))
            except StoreUnavailable as error:
                yield b"event: trouble\ndata: " + _encode_json({"error": str(error)}) + b"\n\n"
                continue
            view |= self.instruments.summary()
            view["detector_file"], view["workers"] = self.settings.detector, self.settings.workers
            now = (view["entry"], view["throughput"], view["timeline"]["start"])
            if now != last:
                yield b"event: view\ndata: " + _encode_json(view) + b"\n\n"
                last, silent = now, 0.0
            elif silent >= _KEEP_ALIVE_SECONDS:
                yield b": still here\n\n"
                silent = 0.0

    async def metrics(self, request: Request) -> Response:
        """``GET /metrics``."""
        self._client(request, "read")
        state = await self.commit.run(_refreshed(state_document))
        return Response(self.instruments.exposition(state), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(self) -> Response:
        """``GET /healthz``: the process is alive."""
        return _json({"status": "alive"})

    async def ready(self) -> Response:
        """``GET /readyz``: rows can be taken in."""
        if not self.commit.alive:
            raise BadRequest(503, "the guard is shutting down.")
        await self.commit.run(lambda guard: guard.refresh())
        return _json({"status": "ready"})

    async def page(self, request: Request) -> Response:
        """``GET /`` and ``GET /page/...``: what needs no token, for there is nothing of the guard in it."""
        found = self.files[request.url.path]
        return Response(found.content, media_type=found.content_type, headers={"Cache-Control": "no-cache"})

    # -- decisions -----------------------------------------------------------------------------------------------

    async def set_threshold(self, request: Request) -> Response:
        """``PUT /v1/threshold``."""
        self._client(request, "admin")
        wanted = _read_json(request, _NewThreshold)
        state = await self.commit.run(lambda guard: guard.set_threshold(wanted.value))
        return _json({"threshold": threshold_document(state.threshold, self.guard.start.threshold)})

    async def freeze(self, request: Request) -> Response:
        """``POST /v1/freeze``."""
        return await self._decide(request, _Reason, lambda guard, wanted: guard.freeze(wanted.reason))

    async def thaw(self, request: Request) -> Response:
        """``POST /v1/thaw``."""
        return await self._decide(request, _Nothing, lambda guard, _: guard.thaw())

    async def reset(self, request: Request) -> Response:
        """``POST /v1/reset``."""
        return await self._decide(request, _Nothing, lambda guard, _: guard.reset())

    async def accept(self, request: Request) -> Response:
        """``POST /v1/quarantine/accept``."""
        return await self._decide(request, _OfClient, lambda guard, wanted: guard.accept(wanted.client))

    async def discard(self, request: Request) -> Response:
        """``POST /v1/quarantine/discard``."""
        return await self._decide(request, _OfClient, lambda guard, wanted: guard.discard(wanted.client))

    async def _decide(
        self, request: Request, body_type: type[Wanted], decision: Callable[[Guard, Wanted], Any]
    ) -> Response:
        self._client(request, "admin")
        wanted = _read_json(request, body_type)

        def decide(guard: Guard) -> dict[str, Any]:
            decision(guard, wanted)
            return state_document(guard)

        state = await self.commit.run(decide)
        return _json({name: state[name] for name in ("mode", "rows", "quarantined", "frozen_because")})

    def _client(self, request: Request, action: str) -> str:
        """Who asks, if they may."""
        if not len(self.tokens):
            address = request.scope.get("client")
            return str(address[0]) if address else "local"
        client = self.tokens.identify(_header(request, b"authorization"))
        if client is None:
            raise BadRequest(401, "this needs a token that is known: send the header Authorization: Bearer TOKEN.")
        if not may(client.role, action):
            raise BadRequest(403, f"a token of role {client.role} may not do this; it needs {action} or admin.")
        return client.name


class _NewThreshold(msgspec.Struct, forbid_unknown_fields=True):
    value: float | None


class _Reason(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = "a person said so"

    def __post_init__(self) -> None:
        if len(self.reason) > 500:
            raise ValueError("a reason has at most 500 characters")


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _OfClient(msgspec.Struct, forbid_unknown_fields=True):
    client: str | None = None

    def __post_init__(self) -> None:
        name = self.client
        if name is not None and not (0 < len(name) <= 64 and name.isascii() and name.isprintable()):
            raise ValueError("a client has 1 to 64 printable ASCII characters")


def _read_json(request: Request, body_type: type[Wanted]) -> Wanted:
    try:
        return msgspec.json.decode(_body(request) or b"{}", type=body_type)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(422, f"the body is not what is expected here: {shown(str(error))}.") from error


def _json(document: Any) -> Response:
    return Response(_encode_json(document), media_type="application/json")


def _body(request: Request) -> bytes:
    """The body, which the limits have read already."""
    body: bytes = request.scope.get(BODY, b"")
    return body


def _header(request: Request, name: bytes) -> str | None:
    """A header by its name in lower case; starlette's own way decodes all of them first."""
    for known, value in request.scope["headers"]:
        if known == name:
            return str(value, "latin-1")
    return None


def _key(request: Request) -> str | None:
    key = _header(request, b"idempotency-key")
    if key is not None and not (0 < len(key) <= _LONGEST_KEY and key.isascii() and key.isprintable()):
        raise BadRequest(400, f"an Idempotency-Key has 1 to {_LONGEST_KEY} printable ASCII characters.")
    return key


def _flag(request: Request, name: str) -> bool:
    if not request.scope["query_string"]:
        return False
    value = request.query_params.get(name, "false").lower()
    if value not in ("true", "false"):
        raise BadRequest(422, f"{name} must be true or false; got {shown(value)}.")
    return value == "true"


def _refreshed(describe: Callable[[Guard], dict[str, Any]]) -> Callable[[Guard], dict[str, Any]]:
    def run(guard: Guard) -> dict[str, Any]:
        guard.refresh()
        return describe(guard)

    return run
