"""The short way to the routes that take rows: past the framework's layers, which cost more than the guard itself.

The same handlers are registered with FastAPI, which documents them and answers everything else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from normscale.errors import NormscaleError
from normscale.serve.limits import App, Receive, Scope, Send

Handler = Callable[["BareRequest"], Awaitable[Response]]


class BareRequest(Request):
    """A request with nothing but its scope, where the limits have put its body."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope


class BytesResponse(Response):
    """A response whose body is bytes already, and whose headers need no framework."""

    def __init__(self, body: bytes, content_type: str, headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self.body = body
        self.raw_headers = [
            (b"content-length", b"%d" % len(body)),
            (b"content-type", content_type.encode("latin-1")),
            *((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()),
        ]


class FastPath:
    """ASGI: call a handler for some paths, and hand the others on.

    Parameters
    ----------
    app : ASGI application
        For everything else.
    posts : mapping of path to handler
        Of requests with the method POST.
    refuse : what an error of ours becomes
    """

    def __init__(
        self,
        app: App,
        posts: Mapping[str, Handler],
        refuse: Callable[[Request, Exception], Awaitable[Response]],
    ) -> None:
        self._app = app
        self._posts = dict(posts)
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        handler = self._posts.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if handler is None:
            await self._app(scope, receive, send)
            return
        request = BareRequest(scope)
        try:
            response = await handler(request)
        except NormscaleError as error:
            response = await self._refuse(request, error)
        await response(scope, receive, send)
