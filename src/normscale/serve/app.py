"""The ASGI application: routes, limits, and what errors become."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from normscale._processes import end_with_parent
from normscale._version import __version__
from normscale.errors import InvalidInput, MissingExtra, NormscaleError, StoreUnavailable
from normscale.serve import openapi
from normscale.serve.bad_request import BadRequest, error_body, shown
from normscale.serve.fast_path import FastPath
from normscale.serve.handlers import Handlers
from normscale.serve.hosts import Hosts
from normscale.serve.instruments import CountRequests
from normscale.serve.limits import SERVER_ERROR, App, RequestLimits
from normscale.serve.settings import ServerSettings


def make_app(settings: ServerSettings) -> App:
    """The ASGI application of one worker."""
    handlers = Handlers(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await handlers.start()
        try:
            yield
        finally:
            await handlers.stop()

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
            getattr(handlers, route.handler),
            methods=[route.method],
            summary=route.summary,
            response_class=Response,
            responses=route.responses,
            openapi_extra=route.extra,
            operation_id=route.handler,
        )
    for path in handlers.files:
        api.add_api_route(path, handlers.page, methods=["GET"], include_in_schema=False)
    _complete_document(api, handlers)
    api.add_exception_handler(NormscaleError, _refuse)
    api.add_exception_handler(Exception, _failed)
    api.add_exception_handler(404, _not_found)
    api.add_exception_handler(405, _not_found)
    posts = {"/v1/score": handlers.score} | ({"/v1/classify": handlers.classify} if settings.model else {})
    limited = RequestLimits(
        FastPath(api, posts, _refuse),
        hosts=Hosts(settings.host, settings.hosts),
        bounds=settings.bounds,
        origins=settings.origins,
    )
    paths = frozenset(route.path for route in openapi.ROUTES) | frozenset(handlers.files)
    return CountRequests(limited, handlers.instruments, paths)


def _complete_document(api: FastAPI, handlers: Handlers) -> None:
    """Add what FastAPI cannot know: which arrays the detector reads, and what a token is."""
    plain = api.openapi

    def document() -> dict[str, Any]:
        made = plain()
        made.setdefault("components", {})["securitySchemes"] = openapi.SECURITY
        openapi.describe_arrays(made, handlers.guard.widths)
        return made

    api.openapi = document  # type: ignore[method-assign]


def app_from_environment() -> App:
    """What a worker process runs."""
    end_with_parent(gently=True)
    return make_app(ServerSettings.from_environment())


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
    elif isinstance(error, MissingExtra):  # of a format that this server cannot read
        status = 415
    else:
        status = 422 if isinstance(error, InvalidInput) else 500
    return Response(error_body(str(error)), status, headers, "application/json")


async def _failed(_: Request, error: Exception) -> Response:
    """A bug of ours; the server's log has its traceback."""
    return Response(error_body(SERVER_ERROR), 500, None, "application/json")


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    headers = getattr(error, "headers", None)
    sentence = (
        f"there is nothing at {shown(request.url.path)}; the paths are in /openapi.json."
        if status == 404
        else f"{shown(request.method)} is not allowed here; the methods are in /openapi.json."
    )
    return Response(error_body(sentence), status, headers, "application/json")
