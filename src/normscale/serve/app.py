"""The HTTP interface: routes, who may use them, and what errors become."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from normscale._kernels import load_in_background
from normscale._processes import end_with_parent
from normscale._version import __version__
from normscale.errors import InvalidInput, NormscaleError, StoreUnavailable
from normscale.guard import Guard
from normscale.guard import Request as Rows
from normscale.serve import openapi
from normscale.serve.answers import encode
from normscale.serve.bad_request import BadRequest, error_body, shown
from normscale.serve.classifier import Classifier
from normscale.serve.describing import describe_state, describe_threshold, describe_view
from normscale.serve.direct import Direct, Told
from normscale.serve.group_commit import GroupCommit
from normscale.serve.hosts import Hosts
from normscale.serve.instruments import CountRequests, Instruments
from normscale.serve.leaving import Leaving
from normscale.serve.limits import BODY, App, Bounds, Limits
from normscale.serve.page_files import page_files
from normscale.serve.parsing import read_inputs, read_rows
from normscale.serve.settings import Settings
from normscale.serve.tokens import Tokens, load_tokens, may

_READY_FIRST = 0.3
"""Seconds until the compiled kernels are loaded: answering that the server is ready comes first."""
_LIVE_SECONDS = 1.0
_KEEP_ALIVE_SECONDS = 10.0
_LONGEST_KEY = 128

Wanted = TypeVar("Wanted")
_encode_json = msgspec.json.Encoder().encode


class GuardApp:
    """One worker's side of the guard."""

    def __init__(self, settings: Settings) -> None:
        """Read what must be right before anything listens."""
        self.settings = settings
        self.tokens: Tokens = load_tokens(settings.tokens)
        self.instruments = Instruments()
        self.files = page_files()
        self.guard: Guard
        self.commit: GroupCommit
        self.leaving: Leaving
        self.classifier: Classifier | None = None
        self.demo: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the store and get ready."""
        load_in_background(after=_READY_FIRST)
        self.guard = self.settings.open_guard()
        if self.settings.model is not None:
            self.classifier = Classifier(self.settings.model, self.guard.n_classes)
        self.commit = GroupCommit(self.guard)
        self.leaving = Leaving()
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
        rows = read_rows(
            body,
            _header(request, b"content-type"),
            width=self.guard.n_classes,
            max_rows=self.settings.max_rows,
            finite=False,
        )
        return await self._answer(request, "/v1/score", client, rows, body, began)

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
            max_elements=self.settings.max_body,
        )
        if len(inputs) > self.settings.max_rows:
            raise BadRequest(413, f"{len(inputs)} inputs in one request; at most {self.settings.max_rows} are taken.")
        try:
            rows = self.guard.checked(await asyncio.to_thread(self.classifier.logits, inputs))
        except Exception as error:  # onnxruntime's errors have no common class; the inputs made it fail
            raise BadRequest(422, f"the model refused these inputs ({shown(str(error))}).") from error
        return await self._answer(request, "/v1/classify", client, rows, body, began)

    async def _answer(self, request: Request, path: str, client: str, rows: Any, body: bytes, began: float) -> Response:
        key = _key(request)
        wants_scaled = _flag(request, "scaled")
        digest = b"" if key is None else hashlib.sha256(body).digest()
        verdict = await self.commit.submit(Rows(rows, client, key, digest, wants_scaled))
        content, kind, headers = encode(verdict, _header(request, b"accept"))
        if verdict.repeated:
            headers["Idempotent-Replayed"] = "true"
        self.instruments.answered(path, len(verdict.scores), time.perf_counter() - began)
        return Told(content, kind, headers)

    # -- looking -------------------------------------------------------------------------------------------------

    async def state(self, request: Request) -> Response:
        """``GET /v1/state``."""
        self._client(request, "read")
        return _json(await self.commit.run(_refreshed(describe_state)))

    async def aside(self, request: Request) -> Response:
        """``GET /v1/aside``."""
        self._client(request, "read")
        parts = await self.commit.run(lambda guard: guard.aside())
        fields = ("at", "client", "cause", "rows", "flagged")
        return _json({"aside": [{name: getattr(part, name) for name in fields} for part in parts]})

    async def live(self, request: Request) -> Response:
        """``GET /v1/live``."""
        self._client(request, "read")
        return StreamingResponse(self._events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _events(self) -> AsyncIterator[bytes]:
        last: tuple[Any, ...] | None = None
        pause = silent = 0.0
        while not await self.leaving.within(pause):
            pause = _LIVE_SECONDS
            silent += pause
            try:
                view = await self.commit.run(_refreshed(describe_view))
            except StoreUnavailable as error:
                yield b"event: trouble\ndata: " + _encode_json({"error": str(error)}) + b"\n\n"
                continue
            view |= self.instruments.summary()
            view["guard"], view["workers"] = self.settings.guard, self.settings.workers
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
        state = await self.commit.run(_refreshed(describe_state))
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
        return Response(found.content, media_type=found.kind, headers={"Cache-Control": "no-cache"})

    # -- decisions -----------------------------------------------------------------------------------------------

    async def set_threshold(self, request: Request) -> Response:
        """``PUT /v1/threshold``."""
        self._client(request, "admin")
        wanted = _read_json(request, _NewThreshold)
        state = await self.commit.run(lambda guard: guard.set_threshold(wanted.value))
        return _json({"threshold": describe_threshold(state.threshold, self.guard.start.threshold)})

    async def freeze(self, request: Request) -> Response:
        """``POST /v1/freeze``."""
        return await self._decide(request, _Reason, lambda guard, wanted: guard.freeze(wanted.reason))

    async def thaw(self, request: Request) -> Response:
        """``POST /v1/thaw``."""
        return await self._decide(request, _Nothing, lambda guard, _: guard.thaw())

    async def reset(self, request: Request) -> Response:
        """``POST /v1/reset``."""
        return await self._decide(request, _Nothing, lambda guard, _: guard.reset())

    async def take_in(self, request: Request) -> Response:
        """``POST /v1/aside/take-in``."""
        return await self._decide(request, _OfClient, lambda guard, wanted: guard.take_in(wanted.client))

    async def discard(self, request: Request) -> Response:
        """``POST /v1/aside/discard``."""
        return await self._decide(request, _OfClient, lambda guard, wanted: guard.discard(wanted.client))

    async def _decide(self, request: Request, kind: type[Wanted], decision: Callable[[Guard, Wanted], Any]) -> Response:
        self._client(request, "admin")
        wanted = _read_json(request, kind)

        def decide(guard: Guard) -> dict[str, Any]:
            decision(guard, wanted)
            return describe_state(guard)

        state = await self.commit.run(decide)
        return _json({name: state[name] for name in ("mode", "rows", "aside", "frozen_because")})

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


def make_app(settings: Settings) -> App:
    """The ASGI application of one worker."""
    guard_app = GuardApp(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await guard_app.start()
        try:
            yield
        finally:
            await guard_app.stop()

    api = FastAPI(
        title="normscale guard",
        version=__version__,
        description=openapi.DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    for route in openapi.ROUTES:
        if route.path == "/v1/classify" and settings.model is None:
            continue
        api.add_api_route(
            route.path,
            getattr(guard_app, route.handler),
            methods=[route.method],
            summary=route.summary,
            response_class=Response,
            responses=route.responses,
            openapi_extra=route.extra,
            operation_id=route.handler,
        )
    for path in guard_app.files:
        api.add_api_route(path, guard_app.page, methods=["GET"], include_in_schema=False)
    _name_security(api)
    api.add_exception_handler(NormscaleError, _refuse)
    api.add_exception_handler(Exception, _failed)
    api.add_exception_handler(404, _not_found)
    api.add_exception_handler(405, _not_found)
    bounds = Bounds(settings.max_body, settings.max_seconds, settings.max_seconds, settings.max_requests)
    posts = {"/v1/score": guard_app.score} | ({"/v1/classify": guard_app.classify} if settings.model else {})
    limited = Limits(Direct(api, posts, _refuse), hosts=Hosts(settings.host, settings.hosts), bounds=bounds)
    paths = frozenset(route.path for route in openapi.ROUTES) | frozenset(guard_app.files)
    return CountRequests(limited, guard_app.instruments, paths)


def _name_security(api: FastAPI) -> None:
    """The routes say that a token will do; the document must say what a token is."""
    plain = api.openapi

    def document() -> dict[str, Any]:
        made = plain()
        made.setdefault("components", {})["securitySchemes"] = openapi.SECURITY
        return made

    api.openapi = document  # type: ignore[method-assign]


def app_from_environment() -> App:
    """What a worker process runs."""
    end_with_parent(gently=True)
    return make_app(Settings.from_environment())


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


def _read_json(request: Request, kind: type[Wanted]) -> Wanted:
    try:
        return msgspec.json.decode(_body(request) or b"{}", type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(422, f"the body is not what is expected here: {shown(str(error))}.") from error


async def _refuse(_: Request, error: Exception) -> Response:
    """An error of ours, as a status and a sentence."""
    headers: dict[str, str] = {}
    if isinstance(error, BadRequest):
        status = error.status
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
    elif isinstance(error, StoreUnavailable):
        status = 507 if error.full else 503
        headers["Retry-After"] = "1"
    else:
        status = 422 if isinstance(error, InvalidInput) else 500
    return Response(error_body(str(error)), status, headers, "application/json")


async def _failed(_: Request, error: Exception) -> Response:
    """A bug of ours; the server's log has its traceback."""
    return Response(error_body("the server made a mistake; nothing was taken in."), 500, None, "application/json")


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    headers = getattr(error, "headers", None)
    sentence = (
        f"there is nothing at {shown(request.url.path)}; the paths are in /openapi.json."
        if status == 404
        else f"{shown(request.method)} is not allowed here; the methods are in /openapi.json."
    )
    return Response(error_body(sentence), status, headers, "application/json")


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
