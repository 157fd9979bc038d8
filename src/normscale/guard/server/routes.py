"""The routes, the types of their bodies, and the OpenAPI document made of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from normscale._version import __version__
from normscale.guard.server.request import JSON
from normscale.guard.server.tensors import HEADER, InferAnswer, InferRequest, ModelResponse

DESCRIPTION = (
    "Tells, for every row of a classifier's outputs, whether the input was one it was trained for. Rows are sent by "
    "the Open Inference Protocol. A row that was answered is on disk, and in the running statistics unless the answer "
    "says otherwise."
)
_HEADERS: dict[Any, tuple[str, ...]] = {
    InferRequest: (HEADER,),
    ModelResponse: ("ce-specversion", "ce-type", "ce-source", "ce-id"),
}
_SECURITY = {"bearer": {"type": "http", "scheme": "bearer", "description": "A token, where the server was given any."}}


class NewThreshold(Struct, forbid_unknown_fields=True):
    """Flag scores above this; null: above the detector file's own threshold."""

    value: float | None


class Reason(Struct, forbid_unknown_fields=True):
    """Why somebody decides so."""

    reason: Annotated[str, Meta(max_length=500)] = "a person said so"


class Nothing(Struct, forbid_unknown_fields=True):
    """No fields."""


class ErrorAnswer(Struct):
    """Refused; nothing was taken in. Or 504: it may still be done; look at /v1/state, or send the same key again."""

    error: str


class Route(NamedTuple):
    """One route: of the server, or of each guard (below ``/v1`` and ``/v2/models/NAME``)."""

    method: str
    path: str
    handler: str
    """A method of ``GuardApp`` or ``Handlers`` or, for a decision, of ``Guard``."""
    summary: str
    role: str = ""
    """Who may: ``score``, ``read`` or ``admin``; empty: anyone."""
    body: Any = None
    example: Any = None
    answer: Any = None
    """The type of its answer; None: any object."""
    content_type: str = JSON

    @property
    def is_free(self) -> bool:
        """Whether it is answered also when all others have too much to do."""
        return self.body is None and not self.path.startswith("/v1")

    def at(self, name: str, prefix: str) -> Route:
        """The route of a guard of that name."""
        path = prefix + self.path if self.path.startswith("/v1") else self.path.replace("NAME", name)
        return self._replace(path=path)


SERVER_ROUTES = (
    Route("GET", "/v2", "server_metadata", "Which server this is"),
    Route("GET", "/v2/health/live", "health", "The process is alive"),
    Route("GET", "/v2/health/ready", "all_ready", "All guards can take rows in"),
    Route("GET", "/metrics", "metrics", "For Prometheus; also when the store is down", "read",
          content_type="text/plain"),
)  # fmt: skip
GUARD_ROUTES = (
    Route("GET", "/v2/models/NAME", "model_metadata", "Which tensors the guard reads and gives"),
    Route("GET", "/v2/models/NAME/ready", "ready", "The guard can take rows in"),
    Route("POST", "/v2/models/NAME/infer", "infer", "Score rows: logits and whatever else the detector reads, or "
          "inputs of the model that the server runs", "score", InferRequest, None, InferAnswer),
    Route("POST", "/v1/events", "take_event", "What KServe's inference logger tells of another model (CloudEvents)",
          "score", ModelResponse, None, InferAnswer),
    Route("GET", "/v1/state", "state", "What the guard knows", "read"),
    Route("GET", "/v1/live", "live", "The same and the recent past, as server-sent events", "read",
          content_type="text/event-stream"),
    Route("PUT", "/v1/threshold", "set_threshold", "Flag scores above another value; null: the detector file's own",
          "admin", NewThreshold, {"value": -0.7}),
    Route("POST", "/v1/freeze", "freeze", "Score by the detector file's statistics and take nothing in", "admin",
          Reason, {"reason": "a new camera"}),
    Route("POST", "/v1/thaw", "thaw", "Take rows in again", "admin", Nothing, {}),
    Route("POST", "/v1/reset", "reset", "Forget the stream: back to the detector file's statistics", "admin", Nothing,
          {}),
)  # fmt: skip


def openapi_document(guards: Mapping[str, Iterable[Route]]) -> dict[str, Any]:
    """The document of guards by name: their routes."""
    used = {one: None for route in GUARD_ROUTES for one in (route.body, route.answer) if isinstance(one, type)}
    types = [ErrorAnswer, *used]
    references, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    reference = dict(zip(types, references, strict=True))
    paths: dict[str, Any] = {route.path: {"get": _operation(route, reference)} for route in SERVER_ROUTES}
    for name, routes in guards.items():
        for route in routes:
            operation = _operation(route, reference)
            operation["operationId"] += "" if len(guards) == 1 else f"_{name}"
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "normscale guard", "version": __version__, "description": DESCRIPTION},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SECURITY},
    }


def _operation(route: Route, reference: Mapping[Any, Any]) -> dict[str, Any]:
    error = {"description": ErrorAnswer.__doc__, "content": {JSON: {"schema": reference[ErrorAnswer]}}}
    good = {"schema": reference.get(route.answer, {"type": "object"} if route.content_type == JSON else {})}
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    also = binary if route.body is InferRequest else {}
    done = {"description": "Done.", "content": {route.content_type: good, **also}}
    operation: dict[str, Any] = {"operationId": route.handler, "summary": route.summary}
    operation["responses"] = {"2XX": done, "default": error}
    operation["parameters"] = [
        {"name": name, "in": "header", "required": route.body is ModelResponse, "schema": {"type": "string"}}
        for name in _HEADERS.get(route.body, ())
    ]
    if route.role:
        operation["security"] = [{}, {"bearer": []}]
    if route.body is not None:
        example = {} if route.example is None else {"example": route.example}
        content = {JSON: {"schema": reference[route.body], **example}, **also}
        operation["requestBody"] = {"required": route.body not in (Nothing, Reason), "content": content}
    return operation
