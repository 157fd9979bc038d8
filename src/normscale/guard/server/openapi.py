"""The OpenAPI document: the routes, with schemas made of the types that read and write their bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from normscale._version import __version__
from normscale.guard.server.bodies import Decided, ErrorAnswer, NewThreshold, Nothing, OfClient, Reason, Scores
from normscale.guard.server.parsing import ARROW_STREAM, JSON, NPY
from normscale.guard.server.settings import GuardSettings
from normscale.outputs import LOGITS
from normscale.rows.format import media_types

DESCRIPTION = (
    "Tells, for every row of a classifier's outputs, whether the input was one it was trained for. A row that was "
    "answered is on disk, and in the running statistics unless the answer says otherwise."
)
_SECURITY = {"bearer": {"type": "http", "scheme": "bearer", "description": "A token, where the server was given any."}}
_UNKNOWN = "No answer in time. It may still be done: ask again with the same Idempotency-Key, or look at /v1/state."
_LONGEST_EXAMPLE = 64
_BINARY = {"schema": {"type": "string", "format": "binary"}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    """An object that has all of these fields and no others."""
    return {"type": "object", "required": list(properties), "additionalProperties": False, "properties": properties}


_INPUTS = {"schema": _object({"inputs": {"type": "array"}}), "example": {"inputs": [[0.0, 0.5, 1.0]]}}
_PARAMETERS = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "A retry with the same key, query and bytes gets the first answer and counts once (kept 24 h).",
        "schema": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[ -~]+$"},
    },
    {
        "name": "scaled",
        "in": "query",
        "required": False,
        "description": "Also answer the scaled logits, where the detector scales them.",
        "schema": {"type": "boolean", "default": False},
    },
]
_READ_ERRORS = (400, 401, 403, 503)
_BODY_ERRORS = (400, 401, 403, 408, 413, 415, 422, 503, 504, 507)


class Route(NamedTuple):
    """One route of a guard."""

    method: str
    path: str
    handler: str
    """A method of ``Handlers`` or, for a decision, of ``Guard``."""
    summary: str
    role: str = ""
    """Who may: ``score``, ``read`` or ``admin``; empty: anyone."""
    body: Any = None
    """The type of its body; ``rows`` and ``inputs`` have further forms."""
    example: Any = None
    """Of the body."""
    answer: Any = None
    """The type of its answer; None: any object."""
    content_type: str = JSON
    """Of the answer."""
    needs: str = ""
    """Which setting of a guard it is of no use without."""

    @property
    def is_free(self) -> bool:
        """Whether it is answered also when all others have too much to do."""
        return self.body is None and self.path in ("/healthz", "/readyz", "/metrics", "/openapi.json")


ROUTES = (
    Route("POST", "/v1/score", "score", "Score rows: logits, and whatever else the detector reads", "score", "rows",
          None, Scores),
    Route("POST", "/v1/classify", "classify", "Run the model on inputs and score its logits", "score", "inputs",
          None, Scores, needs="model"),
    Route("GET", "/v1/state", "state", "What the guard knows", "read"),
    Route("GET", "/v1/live", "live", "The same and the recent past, as server-sent events", "read",
          content_type="text/event-stream"),
    Route("PUT", "/v1/threshold", "set_threshold", "Flag scores above another value; null: the detector file's own",
          "admin", NewThreshold, {"value": -0.7}),
    Route("POST", "/v1/freeze", "freeze", "Score by the detector file's statistics and take nothing in", "admin",
          Reason, {"reason": "a new camera"}, Decided),
    Route("POST", "/v1/thaw", "thaw", "Take rows in again", "admin", Nothing, {}, Decided),
    Route("POST", "/v1/reset", "reset", "Forget the stream: back to the detector file's statistics", "admin", Nothing,
          {}, Decided),
    Route("POST", "/v1/switch", "switch", "Let the shadow serve from now on", "admin", Nothing, {},
          needs="shadow"),
    Route("GET", "/v1/quarantine", "quarantine", "Rows that were answered but not taken in", "read"),
    Route("POST", "/v1/quarantine/accept", "accept", "Take quarantined rows in", "admin", OfClient,
          {"client": "camera-7"}, Decided),
    Route("POST", "/v1/quarantine/discard", "discard", "Drop quarantined rows", "admin", OfClient,
          {"client": "camera-7"}, Decided),
    Route("GET", "/healthz", "health", "The process is alive"),
    Route("GET", "/readyz", "ready", "Rows can be taken in"),
    Route("GET", "/metrics", "metrics", "For Prometheus; also when the store is down", "read",
          content_type="text/plain"),
)  # fmt: skip


def routes_of(settings: GuardSettings) -> list[Route]:
    """The routes that a guard has."""
    return [route for route in ROUTES if not route.needs or getattr(settings, route.needs) is not None]


def openapi_document(widths: Mapping[str, int], settings: GuardSettings) -> dict[str, Any]:
    """The document of a guard that reads arrays of these widths."""
    routes = routes_of(settings)
    types = [
        ErrorAnswer,
        *{one: None for route in routes for one in (route.body, route.answer) if isinstance(one, type)},
    ]
    references, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    reference = dict(zip(types, references, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, reference, widths)
    return {
        "openapi": "3.1.0",
        "info": {"title": "normscale guard", "version": __version__, "description": DESCRIPTION},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SECURITY},
    }


def _operation(route: Route, reference: Mapping[Any, Any], widths: Mapping[str, int]) -> dict[str, Any]:
    error = {"description": ErrorAnswer.__doc__, "content": {JSON: {"schema": reference[ErrorAnswer]}}}
    good = {"schema": reference.get(route.answer, {"type": "object"} if route.content_type == JSON else {})}
    responses: dict[str, Any] = {"200": {"description": "Done.", "content": {route.content_type: good}}}
    if route.answer is Scores:
        responses["200"]["content"] |= {NPY: _BINARY, ARROW_STREAM: _BINARY}
    errors = _BODY_ERRORS if route.body is not None else _READ_ERRORS if route.role else (503, 507)
    responses |= {str(status): error for status in errors}
    if 504 in errors:  # nobody knows what became of it
        responses["504"] = {**error, "description": _UNKNOWN}
    operation: dict[str, Any] = {"operationId": route.handler, "summary": route.summary, "responses": responses}
    if route.role:
        operation["security"] = [{}, {"bearer": []}]
    if route.body in ("rows", "inputs"):
        content = {JSON: _INPUTS, NPY: _BINARY}
        if route.body == "rows":
            one_array = list(widths) == [LOGITS]  # which is all that an .npy holds
            binary = [kind for kind in media_types() if kind != JSON and (one_array or kind != NPY)]
            content = {JSON: _rows(widths), **dict.fromkeys(binary, _BINARY)}
        operation |= {"requestBody": {"required": True, "content": content}, "parameters": _PARAMETERS}
    elif route.body is not None:
        content = {JSON: {"schema": reference[route.body], "example": route.example}}
        operation["requestBody"] = {"required": route.body is NewThreshold, "content": content}
    return operation


def _rows(widths: Mapping[str, int]) -> dict[str, Any]:
    """The JSON of rows: one or many for each array. No type of ours can be both."""
    properties: dict[str, Any] = {}
    for name, width in widths.items():
        row = {"type": "array", "items": {"type": "number"}, "minItems": width, "maxItems": width}
        properties[name] = {"oneOf": [{"type": "array", "items": row, "minItems": 1}, row]}
    made: dict[str, Any] = {"schema": _object(properties)}
    if sum(widths.values()) <= _LONGEST_EXAMPLE:
        first = {name: [4.2, -1.0, *(0.3,) * (width - 2)][:width] for name, width in widths.items()}
        second = {name: [0.1, 0.2, *(0.4,) * (width - 2)][:width] for name, width in widths.items()}
        many = {name: [first[name], second[name]] for name in widths}
        made["examples"] = {"many": {"summary": "Many rows", "value": many}, "one": {"value": first}}
    return made
