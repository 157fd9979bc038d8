"""What a client gets back for its rows: JSON, .npy or Arrow, as its header Accept asks.

JSON has no infinity and no NaN, and ``null`` would read as "no score": such a number is written as a word
(:mod:`normscale.encoding.json_text`). Scores of finite logits are finite, so a client will hardly meet one. The other
formats carry them as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from normscale.encoding.json_text import number_for_json
from normscale.encoding.npy_header import npy_header_bytes
from normscale.guard import Verdict
from normscale.guard.server.bodies import Scores, encode_json
from normscale.guard.server.parsing import ARROW_STREAM, JSON, NPY

_OFFERED = (JSON, NPY, ARROW_STREAM)
_LONGEST_ACCEPT = 256


def encode(
    answer: Verdict, accept: str | None, class_names: Sequence[str] | None = None
) -> tuple[bytes, str, dict[str, str]]:
    """The body of a response, its content type, and headers that say how the guard is where the body cannot.

    ``accept`` is the request's header. ``application/x-npy``: an array of records score, predicted, is_ood (and
    scaled); ``application/vnd.apache.arrow.stream``: a batch with these columns; JSON for anything else, with the
    names of the predicted classes where there are ``class_names``.

    Examples
    --------
    >>> answer = Verdict(np.array([0.5]), np.array([True]), np.array([3]), "running", 1, ("shift",), 120)
    >>> body, content_type, _ = encode(answer, "application/json")
    >>> print(body.decode())
    {"scores":[0.5],"is_ood":[true],"predicted":[3],"mode":"running","taken_in":1,"rows":120,"alarms":["shift"]}
    >>> encode(answer, "application/x-npy")[2]
    {'X-Guard-Mode': 'running', 'X-Guard-Taken-In': '1', 'X-Guard-Rows': '120', 'X-Guard-Alarms': 'shift'}
    >>> import io
    >>> np.load(io.BytesIO(encode(answer, "application/x-npy")[0]))["predicted"]
    array([3], dtype=int32)
    """
    chosen = JSON if accept is None else choose(accept)
    if chosen == NPY:
        body = _as_npy(answer)
    elif chosen == ARROW_STREAM:
        body = _as_arrow(answer)
    else:
        body = _as_json(answer, class_names)
    return body, chosen, {} if chosen == JSON else _guard_headers(answer)


def _guard_headers(answer: Verdict) -> dict[str, str]:
    headers = {
        "X-Guard-Mode": answer.mode,
        "X-Guard-Taken-In": str(answer.taken_in),
        "X-Guard-Rows": str(answer.rows),
    }
    if answer.alarms:  # a header is one line of ASCII, whatever an alarm is called
        headers["X-Guard-Alarms"] = ", ".join(answer.alarms).encode("unicode_escape").decode("ascii")
    return headers


def choose(accept: str) -> str:
    """The content type that a header Accept likes best; JSON when it likes none of them.

    Examples
    --------
    >>> choose("application/x-npy;q=0.5, application/json;q=0.1"), choose("text/html, */*;q=0.1")
    ('application/x-npy', 'application/json')
    """
    if accept in (JSON, "*/*") or len(accept) > _LONGEST_ACCEPT:
        return JSON
    return _choose(accept)


@lru_cache(maxsize=64)
def _choose(accept: str) -> str:
    said: dict[str, tuple[float, int]] = {}
    for place, item in enumerate(accept.lower().split(",")):
        name, *parameters = (part.strip() for part in item.split(";"))
        said.setdefault(name, (_quality(parameters), -place))
    liked: dict[str, tuple[float, int, int]] = {}
    for offered in _OFFERED:
        for specific, name in enumerate(("*/*", "application/*", offered)):  # the last decides (RFC 9110, 12.5.1)
            if name in said:
                quality, place = said[name]
                liked[offered] = (quality, specific, place)
    for best in sorted(liked, key=liked.__getitem__, reverse=True):  # among equals the one offered first
        if liked[best][0] > 0.0 and (best != ARROW_STREAM or _has_arrow()):
            return best
    return JSON


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                number = float(value)
            except ValueError:
                return 0.0
            return number if 0 <= number <= 1 else 0.0
    return 1.0


@lru_cache(maxsize=1)
def _has_arrow() -> bool:
    try:
        import pyarrow.ipc  # noqa: F401
    except ImportError:
        return False
    return True


def _as_json(answer: Verdict, class_names: Sequence[str] | None) -> bytes:
    scaled: Any = UNSET
    if answer.scaled is not None:
        rows = answer.scaled.tolist()
        scaled = rows if np.isfinite(answer.scaled).all() else [_plain(row) for row in rows]
    scores, flags, predicted = _plain(answer.scores.tolist()), answer.is_ood.tolist(), answer.predicted.tolist()
    mode: Any = answer.mode
    alarms = list(answer.alarms)
    names: Any = UNSET if class_names is None else [class_names[index] for index in predicted]
    return encode_json(Scores(scores, flags, predicted, mode, answer.taken_in, answer.rows, alarms, names, scaled))


def _plain(numbers: list[float]) -> list[Any]:
    """Numbers that JSON has; a sum that is finite shows that all of them are."""
    if math.isfinite(sum(numbers)):
        return numbers
    return [number_for_json(x) for x in numbers]


def _as_npy(answer: Verdict) -> bytes:
    n_classes = None if answer.scaled is None else answer.scaled.shape[1]
    dtype, text = _record(n_classes)
    records = np.empty(len(answer.scores), dtype)
    records["score"] = answer.scores
    records["predicted"] = answer.predicted
    records["is_ood"] = answer.is_ood
    if answer.scaled is not None:
        records["scaled"] = answer.scaled
    return npy_header_bytes(text, records.shape) + records.tobytes()


@lru_cache(maxsize=8)
def _record(n_classes: int | None) -> tuple[np.dtype[Any], str]:
    """The dtype of a record, and its description in the header of an .npy."""
    fields: list[Any] = [("score", "<f8"), ("predicted", "<i4"), ("is_ood", "|b1")]
    if n_classes is not None:
        fields.append(("scaled", "<f8", (n_classes,)))
    return np.dtype(fields), repr(fields)


def _as_arrow(answer: Verdict) -> bytes:
    import pyarrow as pa

    def array(numbers: NDArray[Any]) -> Any:  # pa.array would load pandas where it is installed: 40 MB
        bits = np.packbits(numbers, bitorder="little") if numbers.dtype == np.bool_ else np.ascontiguousarray(numbers)
        return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), numbers.size, [None, pa.py_buffer(bits)])

    columns = {
        "score": array(answer.scores),
        "predicted": array(answer.predicted.astype(np.int32)),
        "is_ood": array(answer.is_ood),
    }
    if answer.scaled is not None:
        columns["scaled"] = pa.FixedSizeListArray.from_arrays(array(answer.scaled), answer.scaled.shape[1])
    batch, sink = pa.record_batch(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    body: bytes = sink.getvalue().to_pybytes()
    return body
