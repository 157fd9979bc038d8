"""Throw damaged bodies at the parsers of the HTTP guard: each must be refused in words, or read as others read it.

    python tools/fuzz_parsers.py 100000           # 100 000 inputs; --seed for others, --only for one of them again

Bodies that are whole (JSON, .npy, Arrow streams and files) are damaged: bytes flipped, numbers set to extremes, pieces
cut, doubled, moved, taken from others. What is accepted is read a second time with Python's json, numpy.load and
pyarrow, and must give the same numbers. Arrow may be accepted where pyarrow refuses, when the damage is in a part that
rows of logits do not need; such inputs are counted as "lenient". The work is done in a child process, so that a crash
would be seen too. Exit code 1 when anything but a refusal or a right answer came out.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import resource
import struct
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from normscale.guard.server.parsing import ARROW_STREAM, JSON, NPY, BadRequest, read_inputs, read_outputs

ARROW_FILE = "application/vnd.apache.arrow.file"
WIDTH, MAX_ROWS = 3, 64
EXTREMES = (0, 1, 2, 3, 7, 8, 63, 64, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1)
WORDS = (
    b"[", b"]", b"[[", b"{", b"}", b'"', b",", b":", b"null", b"NaN", b"Infinity", b"1e400", b"-", b"e", b".",
    b"\\u0069", b"\xef\xbb\xbf", b"\xff", b"\0", b"logits", b"inputs", b"(", b")", b"True", b"descr", b"|O", b"<f4",
    b">f8", b"ARROW1", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\0\0\0\0", b"9" * 30, b"'", b" " * 9,
)  # fmt: skip


def npy(array: np.ndarray, version: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def arrow(table: pa.Table, *, file: bool = False, chunk: int | None = None, **options: Any) -> bytes:
    sink = io.BytesIO()
    make = pa.ipc.new_file if file else pa.ipc.new_stream
    with make(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return sink.getvalue()


def whole_bodies(kind: str) -> list[tuple[str, bytes]]:
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 5, (4, WIDTH))
    columns = pa.table({f"c{index}": np.ascontiguousarray(rows[:, index]) for index in range(WIDTH)})
    halves = pa.table({f"c{index}": np.ascontiguousarray(rows[:, index]).astype("f2") for index in range(WIDTH)})
    fixed = pa.table({"logits": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), WIDTH)})
    lists = pa.table({"logits": pa.array(rows.tolist(), pa.list_(pa.float32()))})
    large = pa.table({"logits": pa.array(rows.tolist(), pa.large_list(pa.float64()))})
    nulls = pa.table({"a": [1.0, None], "b": [2.0, 3.0], "c": [None, 1.0]})
    found = [
        (JSON, json.dumps({"logits": rows.tolist()}).encode()),
        (JSON, b'{"logits": [1, -2.5e3, 0.125]}'),
        (JSON, b'{"logits": [[1, 2, 3], [4, 5, 6]]}'),
    ]
    for dtype in ("<f2", "<f4", ">f8", "<i8", "|u1"):
        for version in ((1, 0), (2, 0), (3, 0)):
            found.append((NPY, npy(np.abs(rows).astype(dtype), version)))
            found.append((NPY, npy(np.asfortranarray(np.abs(rows).astype(dtype)), version)))
    found.append((NPY, npy(rows[0], (1, 0))))
    found.append((NPY, npy(np.ones((MAX_ROWS + 1, WIDTH)), (1, 0))))
    for table in (columns, halves, fixed, lists, large, nulls):
        found.append((ARROW_STREAM, arrow(table)))
        found.append((ARROW_STREAM, arrow(table, chunk=2)))
        found.append((ARROW_FILE, arrow(table, file=True, chunk=3)))
    others = (pa.array(["a"]), pa.array([{"x": 1.0}]), pa.array([1.0]).dictionary_encode(), pa.array([[[1.0]]]))
    found += [(ARROW_STREAM, arrow(pa.table({"logits": other}))) for other in others]
    found.append((ARROW_STREAM, arrow(columns, compression="lz4")))
    found.append((ARROW_STREAM, arrow(columns, compression="zstd")))
    return [seed for seed in found if kind in seed[0]]


def damaged(rng: np.random.Generator, seeds: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    content_type, body = seeds[rng.integers(len(seeds))]
    data = bytearray(body)
    for _ in range(int(rng.geometric(0.5))):
        at = int(rng.integers(len(data) + 1))
        action = rng.integers(9)
        if action == 0 and data:
            data[at % len(data)] ^= 1 << int(rng.integers(8))
        elif action == 1 and data:
            data[at % len(data)] = int(rng.integers(256))
        elif action in (2, 3):
            size, kind = ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))[rng.integers(4)]
            at -= at % size  # as the fields of a flatbuffer lie
            value = int(rng.choice(EXTREMES)) * (1 if rng.random() < 0.7 else -1)
            if at + size <= len(data):
                struct.pack_into("<" + kind, data, at, value % (1 << (8 * size)))
        elif action == 4:
            piece = WORDS[rng.integers(len(WORDS))]
            data[at : at + (len(piece) if rng.random() < 0.5 else 0)] = piece
        elif action == 5:
            del data[at : at + int(rng.integers(1, 64))]
        elif action == 6:
            start = int(rng.integers(len(data) + 1))
            data[at:at] = data[start : start + int(rng.integers(1, 64))]
        elif action == 7 and rng.random() < 0.3:
            del data[at:]
        elif action == 8:
            other = seeds[rng.integers(len(seeds))][1]
            start = int(rng.integers(len(other)))
            piece = other[start : start + int(rng.integers(1, 64))]
            data[at : at + len(piece)] = piece
    return content_type, bytes(data)


def read_by_others(content_type: str, body: bytes) -> np.ndarray:
    if content_type == JSON:
        return np.array(json.loads(body)["logits"], dtype=np.float64).reshape(-1, WIDTH)
    if content_type == NPY:
        return np.asarray(np.load(io.BytesIO(body), allow_pickle=False)).reshape(-1, WIDTH)
    stream = body[8:] if content_type == ARROW_FILE else body
    table = pa.ipc.open_stream(stream).read_all()
    if table.column_names == ["logits"]:
        return np.array(table["logits"].to_pylist())
    return np.stack([column.to_numpy() for column in table.columns], axis=1)


def judged(content_type: str, body: bytes, rows: np.ndarray) -> tuple[str, str | None]:
    """The outcome of rows that were accepted, and what is wrong with them."""
    if rows.ndim != 2 or rows.shape[1] != WIDTH or not 1 <= len(rows) <= MAX_ROWS or not np.isfinite(rows).all():
        return "read", f"accepted {rows.shape} {rows.dtype}, finite: {np.isfinite(rows).all()}"
    if not (rows.flags.c_contiguous and rows.flags.writeable and rows.flags.aligned and rows.dtype in ("f4", "f8")):
        return "read", f"accepted {rows.dtype} with flags {rows.flags}"
    try:
        others = read_by_others(content_type, body)
    except Exception as error:
        if content_type in (ARROW_STREAM, ARROW_FILE):
            return "lenient", None
        return "read", f"accepted what others refuse: {error!r}"
    return "read", None if np.array_equal(rows, others) else f"read {rows.tolist()}, others read {others.tolist()}"


def attempt(content_type: str, body: bytes) -> tuple[str, str | None]:
    """The outcome in a word, and what is wrong with it."""
    try:
        rows = read_outputs(body, content_type, widths={"logits": WIDTH}, max_rows=MAX_ROWS).logits
    except BadRequest as error:
        fine = error.status in (400, 413, 415, 422) and str(error).isascii() and len(str(error)) < 400
        outcome: tuple[str, str | None] = str(error.status), None if fine else f"an odd refusal: {error.status} {error}"
    except BaseException as error:
        return "escaped", repr(error)[:500]
    else:
        outcome = judged(content_type, body, rows)
    if outcome[1] is None and content_type in (JSON, NPY):
        try:
            body = body.replace(b"logits", b"inputs")
            inputs = read_inputs(body, content_type, shape=(None, WIDTH), dtype="f4", max_elements=MAX_ROWS * WIDTH)
        except BadRequest:
            pass
        except BaseException as error:
            return "escaped", f"read_inputs: {error!r}"[:500]
        else:
            if not np.isfinite(inputs).all() or inputs.shape[1:] != (WIDTH,) or inputs.dtype != np.float32:
                return "read", f"read_inputs accepted {inputs!r}"
    return outcome


def work(seed: int, kind: str, start: int, stop: int, position: Any, report: Any) -> None:
    seeds = whole_bodies(kind)
    counts: Counter[tuple[str, str]] = Counter()
    escapes, slowest = [], (0.0, -1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for index in range(start, stop):
        position.value = index
        content_type, body = damaged(np.random.default_rng([seed, index]), seeds)
        began = time.perf_counter()
        outcome, problem = attempt(content_type, body)
        slowest = max(slowest, (time.perf_counter() - began, index))
        counts[content_type, outcome] += 1
        if problem is not None:
            escapes.append((index, content_type, problem))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    report.send((counts, escapes, slowest, grown))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=10_000, help="how many inputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="this input again; its bytes are written to fuzz-NUMBER.bin")
    parser.add_argument("--kind", choices=("json", "npy", "arrow"), default="", help="only bodies of this kind")
    chosen = parser.parse_args()
    start, stop = 0, chosen.count
    if chosen.only is not None:
        start, stop = chosen.only, chosen.only + 1
        content_type, body = damaged(np.random.default_rng([chosen.seed, start]), whole_bodies(chosen.kind))
        Path(f"fuzz-{start}.bin").write_bytes(body)
        print(content_type, len(body), "bytes")
    totals: Counter[tuple[str, str]] = Counter()
    escapes: list[tuple[int, str, str]] = []
    slowest, grown = (0.0, -1), 0
    began = time.perf_counter()
    context = multiprocessing.get_context("fork")
    while start < stop:
        position = context.Value("q", start)
        receiver, sender = context.Pipe(duplex=False)
        # One child for every piece: its memory starts anew, and its death costs no more than the piece.
        child = context.Process(
            target=work, args=(chosen.seed, chosen.kind, start, min(start + 20_000, stop), position, sender)
        )
        child.start()
        sender.close()
        try:
            counts, found, slow, more = receiver.recv()
            totals += counts
            escapes += found
            slowest, grown = max(slowest, slow), max(grown, more)
            start = min(start + 20_000, stop)
        except EOFError:
            child.join()
            escapes.append((position.value, "?", f"the process died with exit code {child.exitcode}"))
            start = position.value + 1
        child.join()
    for (content_type, outcome), number in sorted(totals.items()):
        print(f"{number:>9}  {outcome:<8} {content_type}")
    seconds = time.perf_counter() - began
    print(f"{sum(totals.values())} inputs in {seconds:.1f} s; memory grew by {grown / 1024:.1f} MB at most")
    print(f"slowest {slowest[0] * 1e3:.1f} ms (number {slowest[1]})")
    for index, content_type, problem in escapes[:20]:
        print(f"ESCAPE number {index} {content_type}: {problem}")
    print(f"{len(escapes)} escapes")
    return 1 if escapes else 0


if __name__ == "__main__":
    sys.exit(main())
