"""The least that a service does: read the body, parse it and return it. What the guard's server is compared with."""

from typing import Any

import msgspec


class Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class Body(msgspec.Struct):
    inputs: list[Tensor]


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    parsed = msgspec.json.decode(body, type=Body) if body else Body([])
    answer = msgspec.json.encode(parsed)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
