"""What the OpenAPI document says of every route: summaries, bodies, examples, errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from normscale.outputs import LOGITS

DESCRIPTION = (
    "Tells, for every row of a classifier's outputs, whether the input was one it was trained for. A row that was "
    "answered is on disk, and in the running statistics unless the answer says otherwise."
)
SECURITY = {"bearer": {"type": "http", "scheme": "bearer", "description": "A token, where the server was given any."}}
_OBJECT = {"type": "object"}
_LONGEST_EXAMPLE = 64
_ERROR = {
    "description": "Refused; nothing was taken in.",
    "content": {
        "application/json": {
            "schema": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
            "example": {"error": '"logits" row 0 must hold 3 numbers, one for each class; got 2.'},
        }
    },
}
_UNKNOWN = "No answer in time. It may still be done: ask again with the same Idempotency-Key, or look at /v1/state."
_NUMBERS = {"type": "array", "items": {"type": "number"}, "minItems": 2}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_SCORES = {
    "type": "object",
    "required": ["scores", "is_ood", "predicted", "mode", "taken_in", "rows", "alarms"],
    "properties": {
        "scores": {"type": "array", "items": {"type": "number"}, "description": "Higher: more out-of-distribution."},
        "is_ood": {"type": "array", "items": {"type": "boolean"}},
        "predicted": {"type": "array", "items": {"type": "integer"}, "description": "The classifier's answer."},
        "scaled": {"type": "array", "items": _NUMBERS, "description": "With scaled=true."},
        "mode": {"enum": ["running", "frozen", "static"]},
        "taken_in": {"type": "integer", "description": "How many of the rows are in the running statistics now."},
        "rows": {"type": "integer", "description": "Rows in the statistics after this request."},
        "alarms": {"type": "array", "items": {"type": "string"}},
    },
}
_SCORES_EXAMPLE = {
    "scores": [-3.1, 1.4],
    "is_ood": [False, True],
    "predicted": [0, 2],
    "mode": "running",
    "taken_in": 2,
    "rows": 1042,
    "alarms": [],
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A retry with the same key and the same bytes gets the first answer and counts once (kept 24 h).",
    "schema": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[ -~]+$"},
}
_SCALED = {
    "name": "scaled",
    "in": "query",
    "required": False,
    "description": "Also answer the scaled logits, where the detector scales them.",
    "schema": {"type": "boolean", "default": False},
}


def outputs_schema(widths: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The JSON schema of the arrays that a guard reads, each with its width where that is known."""
    properties: dict[str, Any] = {}
    known: Mapping[str, int | None] = widths or {LOGITS: None}
    for name, width in known.items():
        row: dict[str, Any] = {"type": "array", "items": {"type": "number"}, "minItems": width or 2}
        if width is not None:
            row["maxItems"] = width
        properties[name] = {"oneOf": [{"type": "array", "items": row, "minItems": 1}, row]}
    return {
        "type": "object",
        "required": list(properties),
        "additionalProperties": False,
        "properties": properties,
    }


def describe_arrays(document: dict[str, Any], widths: Mapping[str, int]) -> None:
    """Put the arrays that this guard reads into the document of ``POST /v1/score``."""
    content = document["paths"]["/v1/score"]["post"]["requestBody"]["content"]
    body = {"schema": outputs_schema(widths)}
    if sum(widths.values()) <= _LONGEST_EXAMPLE:
        body["examples"] = _examples(widths)
    if list(widths) != [LOGITS]:
        content.pop("application/x-npy", None)  # it holds one array
    content["application/json"] = body


def _examples(widths: Mapping[str, int]) -> dict[str, Any]:
    first = {name: [4.2, -1.0, *(0.3,) * (width - 2)][:width] for name, width in widths.items()}
    second = {name: [0.1, 0.2, *(0.4,) * (width - 2)][:width] for name, width in widths.items()}
    return {
        "many": {"summary": "Many rows", "value": {name: [first[name], second[name]] for name in widths}},
        "one": {"summary": "One row", "value": first},
    }


class Route(NamedTuple):
    """One route: its handler, and what the document says of it."""

    method: str
    path: str
    handler: str
    summary: str
    extra: dict[str, Any]
    responses: dict[int | str, dict[str, Any]]


def _route(
    method: str,
    path: str,
    handler: str,
    summary: str,
    *,
    body: dict[str, Any] | None = None,
    parameters: tuple[dict[str, Any], ...] = (),
    answer: dict[str, Any] | None = None,
    example: Any = None,
    errors: tuple[int, ...] = (400, 401, 403, 503),
    content_type: str = "application/json",
    role: bool = True,
) -> Route:
    extra: dict[str, Any] = {}
    if body is not None:
        extra["requestBody"] = {"required": "x-optional" not in body, "content": body["content"]}
    if parameters:
        extra["parameters"] = list(parameters)
    if role:
        extra["security"] = [{}, {"bearer": []}]
    shown: dict[str, Any] = {"schema": answer or _OBJECT}
    if example is not None:
        shown["example"] = example
    responses: dict[int | str, dict[str, Any]] = {200: {"description": "Done.", "content": {content_type: shown}}}
    responses |= dict.fromkeys(errors, _ERROR)
    if 504 in errors:  # nobody knows what became of it
        responses[504] = {**_ERROR, "description": _UNKNOWN}
    return Route(method, path, handler, summary, extra, responses)


def _json_body(properties: dict[str, Any], required: tuple[str, ...], example: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
    if required:
        schema["required"] = list(required)
    body: dict[str, Any] = {"content": {"application/json": {"schema": schema, "example": example}}}
    return body if required else {**body, "x-optional": True}


_BODY_ERRORS = (400, 401, 403, 408, 413, 415, 422, 503, 504, 507)
_CLIENT = {
    "client": {
        "type": ["string", "null"],
        "minLength": 1,
        "maxLength": 64,
        "pattern": "^[ -~]+$",
        "description": "Only what this client sent.",
    }
}

ROUTES = (
    _route(
        "POST",
        "/v1/score",
        "score",
        "Score rows: logits, and whatever else the detector reads",
        body={
            "content": {
                "application/json": {
                    "schema": outputs_schema(),
                },
                "application/x-npy": _BINARY,
                "application/x-npz": _BINARY,
                "application/vnd.apache.arrow.stream": _BINARY,
                "application/vnd.apache.arrow.file": _BINARY,
            }
        },
        parameters=(_KEY, _SCALED),
        answer=_SCORES,
        example=_SCORES_EXAMPLE,
        errors=_BODY_ERRORS,
    ),
    _route(
        "POST",
        "/v1/classify",
        "classify",
        "Run the model on inputs and score its logits",
        body={
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["inputs"],
                        "additionalProperties": False,
                        "properties": {"inputs": {"type": "array"}},
                    },
                    "example": {"inputs": [[0.0, 0.5, 1.0]]},
                },
                "application/x-npy": _BINARY,
            }
        },
        parameters=(_KEY, _SCALED),
        answer=_SCORES,
        example=_SCORES_EXAMPLE,
        errors=_BODY_ERRORS,
    ),
    _route("GET", "/v1/state", "state", "What the guard knows", errors=(401, 403, 503)),
    _route(
        "GET",
        "/v1/live",
        "live",
        "The same and the recent past, as server-sent events",
        content_type="text/event-stream",
    ),
    _route(
        "PUT",
        "/v1/threshold",
        "set_threshold",
        "Flag scores above another value; null: the detector file's own",
        body=_json_body({"value": {"type": ["number", "null"]}}, ("value",), {"value": 0.7}),
        errors=_BODY_ERRORS,
    ),
    _route(
        "POST",
        "/v1/freeze",
        "freeze",
        "Score by the detector file's statistics and take nothing in",
        body=_json_body({"reason": {"type": "string", "maxLength": 500}}, (), {"reason": "a new camera"}),
        errors=_BODY_ERRORS,
    ),
    _route("POST", "/v1/thaw", "thaw", "Take rows in again", body=_json_body({}, (), {}), errors=_BODY_ERRORS),
    _route(
        "POST",
        "/v1/reset",
        "reset",
        "Forget the stream: back to the detector file's statistics",
        body=_json_body({}, (), {}),
        errors=_BODY_ERRORS,
    ),
    _route("GET", "/v1/quarantine", "quarantine", "Rows that were answered but not taken in", errors=(401, 403, 503)),
    _route(
        "POST",
        "/v1/quarantine/accept",
        "accept",
        "Take quarantined rows in",
        body=_json_body(_CLIENT, (), {"client": "camera-7"}),
        errors=_BODY_ERRORS,
    ),
    _route(
        "POST",
        "/v1/quarantine/discard",
        "discard",
        "Drop quarantined rows",
        body=_json_body(_CLIENT, (), {"client": "camera-7"}),
        errors=_BODY_ERRORS,
    ),
    _route("GET", "/healthz", "health", "The process is alive", role=False, errors=(503,)),
    _route("GET", "/readyz", "ready", "Rows can be taken in", role=False, errors=(503,)),
    _route("GET", "/metrics", "metrics", "For Prometheus", content_type="text/plain", errors=(401, 403, 503)),
)
