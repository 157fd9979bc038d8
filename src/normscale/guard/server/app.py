"""The ASGI application: which route a request is for, what is refused before its body is read, what errors become.

In this order: host and origin, the route, token and role; then, for routes that take part in it, the limit of requests
at once, and the body within its bounds of size, time and memory. So strangers cost nothing but the head of a request,
and health and metrics are answered however much else is going on.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from normscale._processes import end_with_parent
from normscale._version import __version__
from normscale.errors import FileFormatError, InvalidInput, NormscaleError, StoreUnavailable
from normscale.guard.server.events import Refusals, Webhook
from normscale.guard.server.handlers import Handlers
from normscale.guard.server.hosts import SECURITY_HEADERS, Hosts
from normscale.guard.server.instruments import Instruments
from normscale.guard.server.protocol import DROPPED, KNOWN, LIVE
from normscale.guard.server.request import (
    BadRequest,
    ClientGone,
    Handler,
    HttpRequest,
    Receive,
    Reply,
    Scope,
    Send,
    Shares,
    error_body,
    shown,
)
from normscale.guard.server.routes import SERVER_ROUTES, Route, openapi_document
from normscale.guard.server.settings import ServerSettings
from normscale.guard.server.tensors import encode_json

_PRIVATE = (*SECURITY_HEADERS, (b"cache-control", b"no-store"))
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_WEBHOOK_SECONDS = 2.0
_PAGE = os.path.join(os.path.dirname(__file__), "page")
_PAGE_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_LOGGER = logging.getLogger("uvicorn.error")
_SERVER_ERROR = (
    "the server made a mistake, and its log says which. Whether it happened before or after rows were taken in is not "
    "known: ask again with the same idempotency_key, or look at /v1/state."
)
_Methods = dict[str, tuple[Route, Handlers | None, Handler]]


class GuardApp:
    """The application of one worker, for one guard or for several by name; docs/guard-http.md lists its statuses."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._hosts = Hosts(settings.host, settings.hosts)
        bounds, busy = settings.bounds, "the server is busy with other requests"
        self._scores, self._controls = Shares(bounds.max_requests, busy), Shares(bounds.max_controls, busy)
        self._streams = Shares(bounds.max_live, busy)
        self._memory = Shares(bounds.max_bodies, "bodies of other requests take all the memory there is for them")
        self._instruments = Instruments()
        self._refusals = Refusals()
        self._webhook: Webhook | None = None
        self.guards = {name: Handlers(name, settings, self._instruments) for name in settings.guards}
        self._routes: dict[str, _Methods] = {}
        fixed: dict[str, Any] = {
            "/v2": {"name": "normscale", "version": __version__, "extensions": ["binary_tensor_data"]},
            "/v2/health/live": {"live": True},
            "/": {"guards": {name: f"/{name}/" for name in self.guards}},  # one that nobody named has its page there
        }
        for route in (*SERVER_ROUTES, Route("GET", "/openapi.json", "openapi", ""), Route("GET", "/", "names", "")):
            document = fixed.get(route.path)
            handler = getattr(self, route.handler) if document is None else _always(Reply(encode_json(document)))
            self._routes[route.path] = {"GET": (route, None, handler)}
        for guard in self.guards.values():
            for route in guard.routes:
                self._routes.setdefault(route.path, {})[route.method] = (route, guard, guard.handler(route))
            for path, reply in _page_files():
                self._routes[guard.prefix + path] = {"GET": (Route("GET", path, "", "The page"), guard, _always(reply))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(HttpRequest(scope, receive), send)
        else:
            await send({"type": "websocket.close"})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except Exception as error:  # said once by the command already, unless something changed since
            _LOGGER.exception("the application did not start")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for guard in self.guards.values():
            await guard.stop()
        if self._webhook is not None:
            self._webhook.stop(_WEBHOOK_SECONDS)
        await send({"type": "lifespan.shutdown.complete"})

    async def start(self) -> None:
        """Open every guard."""
        self._webhook = Webhook(self._settings.webhook)
        for guard in self.guards.values():
            await guard.start(self._webhook)
        gc.collect()
        gc.freeze()  # what is loaded by now stays; looking through it again and again is felt in the answers' times

    async def _answer(self, request: HttpRequest, send: Send) -> None:
        methods = self._routes.get(request.path, {})
        path = request.path if methods else "other"
        with ExitStack() as held:
            try:
                reply = await self._reply(request, methods, held)
            except ClientGone:
                return
            except Exception as error:
                held.close()  # who is refused makes room for others, though it may be listened to for a while
                reply = refusal(error)
                guard = next((handlers for _, handlers, _ in methods.values() if handlers is not None), None)
                if isinstance(error, (StoreUnavailable, FileFormatError)) and guard is not None:
                    guard.store_failed(error)
                elif reply.status == 500:
                    _LOGGER.exception("a request was not answered")
                because = None if reply.status in (401, 404) else _sentence(error)  # of strangers' paths, nothing
                who = {"client": request.client, "address": request.address}
                self._refusals.log(guard=guard and guard.name, status=reply.status, path=path, **who, because=because)
            self._instruments.request(path, reply.status)
            await respond(request, reply, send)

    async def _reply(self, request: HttpRequest, methods: _Methods, held: ExitStack) -> Reply:
        self._check_head(request)
        found = methods.get(request.method)
        if not methods:
            raise BadRequest(404, f"there is nothing at {shown(request.path)}; the paths are in /openapi.json.")
        if found is None:
            known = ", ".join(sorted(methods))
            raise BadRequest(405, f"{shown(request.method)} is not allowed here, but {known}.")
        route, guard, handler = found
        request.client = request.address
        if guard is not None:
            guard.identify(request, route.role)
            request.scope[KNOWN] = bool(route.role)
        bounds, has_rows = self._settings.bounds, route.role == "score"

        def take(shares: Shares, amount: int = 1) -> None:
            shares.take(request.client, amount)
            held.callback(shares.give_back, request.client, amount)

        if route.role and not route.is_free:
            take(self._scores if has_rows else self._streams if route.handler == "live" else self._controls)
        clock = asyncio.timeout(bounds.max_seconds)
        try:
            async with clock:
                if route.body is not None:
                    if has_rows:
                        await request.read_body(bounds.max_body, partial(take, self._memory))
                    else:
                        await request.read_body(min(bounds.max_body, bounds.max_control_body))
                    clock.reschedule(asyncio.get_running_loop().time() + bounds.max_seconds)
                return await handler(request)
        except TimeoutError:
            if not clock.expired():  # one of the handler's own
                raise
            if route.body is not None and request.unread:
                raise BadRequest(408, f"the body did not arrive within {bounds.max_seconds:g} seconds.") from None
            raise BadRequest(
                504,
                f"no answer within {bounds.max_seconds:g} seconds; it may still be done. Ask again with the same "
                "idempotency_key, or look at /v1/state, and send fewer rows at once.",
            ) from None

    def _check_head(self, request: HttpRequest) -> None:
        headers = request.headers
        request.require_single_headers()
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host is None:
            raise BadRequest(400, "the request has no header Host.")
        if not self._hosts.allow(host):
            raise BadRequest(421, "this server does not answer to that Host. Use its own name, or allow this one.")
        if origin is not None and request.method not in _SAFE:
            # Behind a proxy that does TLS the page is of https; a page of http is one of ours only if we speak it.
            schemes = (b"https://",) if request.scope.get("scheme") == "https" else (b"https://", b"http://")
            if origin.lower() not in {scheme + host.lower() for scheme in schemes}:
                raise BadRequest(
                    403, "pages of another origin may not do this; a proxy must pass the header Host on as it came."
                )
        if headers.get(b"content-encoding", b"").strip().lower() not in (b"identity", b""):
            raise BadRequest(415, "compressed bodies are not read; send it without Content-Encoding.")

    async def all_ready(self, request: HttpRequest) -> Reply:
        """``GET /v2/health/ready``."""
        for name, guard in self.guards.items():
            try:
                await guard.ready(request)
            except (StoreUnavailable, FileFormatError) as error:
                guard.store_failed(error)
                raise BadRequest(refusal(error).status, f"{name}: {error}") from error
        return Reply(encode_json({"ready": True}))

    async def metrics(self, request: HttpRequest) -> Reply:
        """``GET /metrics``: of the guards that this client may look at, also when a store is down."""
        refused: BadRequest | None = None
        states = {}
        for name, guard in self.guards.items():
            try:
                guard.identify(request, "read")
            except BadRequest as error:
                refused = error if refused is None or refused.status == 401 else refused
                continue
            states[name] = await guard.last_state()
        if refused is not None and not states:
            raise refused
        return Reply(self._instruments.exposition(states), "text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, _: HttpRequest) -> Reply:
        """``GET /openapi.json``."""
        return Reply(encode_json(openapi_document({name: guard.routes for name, guard in self.guards.items()})))


def worker_app(settings: ServerSettings) -> GuardApp:
    """What a worker process runs."""
    end_with_parent(gently=True)
    if settings.workers > 1 and hasattr(signal, "SIGHUP"):  # the parent tells of it, once
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return GuardApp(settings)


def _always(reply: Reply) -> Handler:
    async def give(_: HttpRequest) -> Reply:
        return reply

    return give


def _page_files() -> Iterator[tuple[str, Reply]]:
    """``/`` is the page, ``/page/...`` what it loads; all of it is read once, at the start."""
    for name in sorted(os.listdir(_PAGE)):
        content_type = _PAGE_TYPES.get(os.path.splitext(name)[1])
        if content_type is not None:
            with open(os.path.join(_PAGE, name), "rb") as file:
                reply = Reply(file.read(), content_type, {"Cache-Control": "no-cache"})
            yield "/" if name == "index.html" else f"/page/{name}", reply


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, NormscaleError) else _SERVER_ERROR


def refusal(error: Exception) -> Reply:
    """An error as a status and a sentence."""
    headers: dict[str, str] = {}
    if isinstance(error, BadRequest):
        status = error.status
    elif isinstance(error, (StoreUnavailable, FileFormatError)):  # the latter: a store that is damaged
        status = 507 if getattr(error, "full", False) else 503
    else:
        status = 422 if isinstance(error, InvalidInput) else 500
    if status in (503, 507):
        headers["Retry-After"] = "1"
    elif status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Reply(error_body(_sentence(error)), headers=headers, status=status)


async def respond(request: HttpRequest, reply: Reply, send: Send) -> None:
    """Send a reply, and read what is left of a body that nobody wanted."""
    private = "/v1/" in request.path or request.path.endswith("/infer")
    headers = [
        (b"content-type", reply.content_type.encode("latin-1")),
        *((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.items()),
        *(_PRIVATE if private else SECURITY_HEADERS),
    ]
    content = reply.content
    if not isinstance(content, bytes):
        request.scope[LIVE] = True
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await _stream(request, content, send)
        return
    headers.append((b"content-length", b"%d" % len(content)))
    if request.unread:  # the connection's next bytes would be the rest of the body
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": request.unread})
    if request.unread:
        request.scope[DROPPED] = True
        await request.drop_body()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _stream(request: HttpRequest, pieces: AsyncIterator[bytes], send: Send) -> None:
    async def send_all() -> None:
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    sending, gone = asyncio.ensure_future(send_all()), asyncio.ensure_future(request.wait_until_gone())
    try:
        await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, gone):
            task.cancel()
        results = await asyncio.gather(sending, gone, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]
