"""Send bad inputs to a running guard over HTTP: none may be answered with a 5xx, and none may move the statistics.

    python tests/soak/fuzz_guard.py --inputs 100000

First what schemathesis makes of the OpenAPI document when it is asked for bad data; then damaged bodies, in JSON and
in the binary form, bad headers, paths, methods, events and decisions. Some damaged bodies are good rows all the same:
these are not counted, but must be in the statistics, and nothing else. So the state at the end is compared with a
detector in this process that streamed exactly the rows that were accepted. The result goes to
docs/results/guard-fuzz.json; exit code 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import normscale as ns  # noqa: E402
from guard.server.kills import Moments  # noqa: E402
from guard.server.models import CLASSES, three_class_guard  # noqa: E402
from guard.server.running import HEADER, IDLE, INFER, Server, binary_tensors, tensors  # noqa: E402
from normscale._provenance import environment  # noqa: E402

TARGET = ROOT / "docs" / "results" / "guard-fuzz.json"
OUTLIER = 30.0
GOOD = json.dumps(tensors(np.array([1.0, -2.0, 0.5]))).encode()
EXTREMES = (0, 1, 2, 3, 7, 8, 63, 64, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1)
WORDS = (
    b"[", b"]", b"[[", b"{", b"}", b'"', b",", b":", b"null", b"NaN", b"Infinity", b"1e400", b"-", b"e", b".", b"true",
    b"\\u0069", b"\xef\xbb\xbf", b"\xff", b"\0", b"logits", b"inputs", b"shape", b"data", b"FP32", b"FP64", b"BF16",
    b"BOOL", b"BYTES", b"INT8", b"binary_data_size", b"outputs", b"parameters", b"9" * 30, b" " * 9,
)  # fmt: skip
DECISIONS = (
    "/v1/freeze",
    "/v1/thaw",
    "/v1/reset",
    "/v1/threshold",
)


class Input(NamedTuple):
    """One request."""

    kind: str
    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    length: int | None = None
    """Of the JSON part of its body."""
    last: bool = False
    """Whether the connection is of no use afterwards."""


class Wire:
    """A connection that is kept as long as both sides can, and cares about nothing that a library would."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._left = b""
        self._used = 0.0

    def ask(self, one: Input) -> tuple[int, bytes]:
        """Status and body; status 0 when the server hung up without a word."""
        lines = [b"%s %s HTTP/1.1" % (one.method.encode(), one.path.encode("latin-1"))]
        names = {name.lower() for name, _ in one.headers}
        if b"host" not in names:
            lines.append(b"Host: 127.0.0.1:%d" % self._port)
        if not names & {b"content-length", b"transfer-encoding"} and (one.body or one.method != "GET"):
            lines.append(b"Content-Length: %d" % len(one.body))
        lines += [b"%s: %s" % header for header in one.headers]
        if time.monotonic() - self._used > IDLE:
            self.close()
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=30)
            self._socket.sendall(b"\r\n".join([*lines, b"", b""]) + one.body)
            status, body, ends = self._read(one.method == "HEAD")
        except (ConnectionError, EOFError):
            self.close()
            return 0, b""
        if ends or one.last:
            self.close()
        self._used = time.monotonic()
        return status, body

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._left = b""

    def _read(self, headless: bool) -> tuple[int, bytes, bool]:
        while b"\r\n\r\n" not in self._left:
            self._more()
        head, _, self._left = self._left.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), None)
        ends = b"connection: close" in lines
        if (
            length is None
        ):  # chunked, or until the end: only the page's files and /openapi.json, which are never asked for
            raise EOFError
        while not headless and len(self._left) < length:
            self._more()
        body, self._left = (b"", self._left) if headless else (self._left[:length], self._left[length:])
        return int(head[9:12]), body, ends

    def _more(self) -> None:
        assert self._socket is not None
        part = self._socket.recv(65536)
        if not part:
            raise EOFError
        self._left += part


def noise(random: np.random.Generator, longest: int, visible: bool = True) -> bytes:
    """Random bytes that fit into a line."""
    low, high = (33, 127) if visible else (1, 256)
    raw = random.integers(low, high, int(random.integers(1, longest + 1))).astype(np.uint8).tobytes()
    return raw.replace(b"\r", b"_").replace(b"\n", b"_")


def whole_bodies() -> list[tuple[int | None, bytes]]:
    """Bodies that are good, with the length of their JSON part where numbers follow it."""
    rows = np.random.default_rng(0).normal(0, 3, (4, CLASSES))
    found: list[tuple[int | None, bytes]] = [(None, GOOD)]
    for kind in ("f8", "f4", "f2", "i8"):
        array = np.abs(rows).astype(kind)
        found.append((None, json.dumps(tensors(array, binary_data_output=True)).encode()))
        nested = tensors(array, client="a", idempotency_key="")
        del nested["parameters"]["idempotency_key"]
        nested["inputs"][0]["data"] = array.tolist()
        found.append((None, json.dumps(nested).encode()))
        body, headers = binary_tensors(array)
        found.append((int(headers[HEADER]), body))
    return found


def damaged(random: np.random.Generator, seeds: list[tuple[int | None, bytes]]) -> tuple[int | None, bytes]:
    """One of them with bytes flipped, numbers set to extremes, pieces cut, doubled, moved or taken from others."""
    length, body = seeds[random.integers(len(seeds))]
    data = bytearray(body)
    for _ in range(int(random.geometric(0.5))):
        at = int(random.integers(len(data) + 1))
        action = random.integers(9)
        if action == 0 and data:
            data[at % len(data)] ^= 1 << int(random.integers(8))
        elif action == 1 and data:
            data[at % len(data)] = int(random.integers(256))
        elif action == 2:
            size, kind = ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))[random.integers(4)]
            value = int(random.choice(EXTREMES)) * (1 if random.random() < 0.7 else -1)
            if at + size <= len(data):
                struct.pack_into("<" + kind, data, at, value % (1 << (8 * size)))
        elif action in (3, 4):
            piece = WORDS[random.integers(len(WORDS))]
            data[at : at + (len(piece) if random.random() < 0.5 else 0)] = piece
        elif action == 5:
            del data[at : at + int(random.integers(1, 64))]
        elif action == 6:
            start = int(random.integers(len(data) + 1))
            data[at:at] = data[start : start + int(random.integers(1, 64))]
        elif action == 7 and random.random() < 0.3:
            del data[at:]
        elif action == 8:
            other = seeds[random.integers(len(seeds))][1]
            start = int(random.integers(len(other)))
            piece = other[start : start + int(random.integers(1, 64))]
            data[at : at + len(piece)] = piece
    if length is not None and random.random() < 0.3:
        length = max(0, length + int(random.integers(-3, 4)))
    return length, bytes(data)


def read_by_others(length: int | None, body: bytes) -> np.ndarray:
    """The rows of a body, by Python's json and numpy."""
    document = json.loads(body[:length])
    (tensor,) = document["inputs"]
    kinds = {"BOOL": "?", "BF16": "u2", **{f"FP{8 * size}": f"f{size}" for size in (2, 4, 8)}}
    kinds |= {f"{sign}INT{8 * size}": f"{sign.lower() or 'i'}{size}" for sign in ("", "U") for size in (1, 2, 4, 8)}
    dtype = np.dtype(kinds[tensor["datatype"]])
    if "data" in tensor:
        array = np.array(tensor["data"], np.float32 if tensor["datatype"] == "BF16" else dtype)
    else:
        array = np.frombuffer(body[length:], dtype)
        if tensor["datatype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.reshape(tensor["shape"]).astype(np.float64)


def make_input(random: np.random.Generator, seeds: list[tuple[int | None, bytes]]) -> Input:
    """Any of the kinds."""
    chance = random.random()
    if chance < 0.70:
        length, body = damaged(random, seeds)
        headers = () if length is None else ((HEADER.encode(), str(length).encode()),)
        return Input("body", "POST", INFER, headers, body, length)
    if chance < 0.80:
        return bad_header(random)
    if chance < 0.85:
        names = [b"ce-specversion", b"ce-id", b"ce-source", b"ce-type"]
        said = [(name, noise(random, 20)) for name in names if random.random() < 0.8]
        return Input("event", "POST", "/v1/events", tuple(said), GOOD)
    if chance < 0.92:
        return bad_path(random)
    return bad_decision(random)


def bad_header(random: np.random.Generator) -> Input:
    """Good rows behind a head that is wrong."""
    choice = int(random.integers(12))
    header = (
        (HEADER.encode(), noise(random, 60) + b"x"),
        (HEADER.encode(), b"9" * int(random.integers(4, 400))),
        (HEADER.encode(), b"\xc3" + noise(random, 20, visible=False)),
        (b"Content-Encoding", bytes(random.choice([b"gzip", b"br", b"deflate", b"zstd", b"x"]))),
        (b"Host", b"evil." + noise(random, 30).replace(b" ", b"")),
        (b"Origin", b"https://" + noise(random, 30)),
        (b"Content-Length", b"-" + noise(random, 10)),
        (b"Transfer-Encoding", b"x" + noise(random, 10)),
        (b"X-" + b"a" * int(random.integers(17_000, 60_000)), b"1"),
        (b"X-Long", b"a" * int(random.integers(17_000, 60_000))),
        (b"Content-Length", b"9" * int(random.integers(9, 40))),
        (b"X Y" + noise(random, 5), b"1"),
    )[choice]
    headers: tuple[tuple[bytes, bytes], ...] = (header,)
    if choice:
        headers = (*headers, (b"Content-Type", b"application/json"))
    return Input(f"header {header[0][:20].decode('latin-1').split()[0]}", "POST", INFER, headers, GOOD, last=True)


def bad_path(random: np.random.Generator) -> Input:
    """Where there is nothing, or not with this method."""
    if random.random() < 0.5:
        method = str(random.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"]))
        return Input("method", method, INFER, (), b"" if method == "GET" else GOOD)
    start = random.choice(["/v1/", "/page/../../", "/v2/models/", "/%2e%2e/", "//", "/v2//health", "/page/%00"])
    path = start + noise(random, 40).decode().replace("#", "").replace("?", "")
    return Input("path", str(random.choice(["GET", "POST", "HEAD"])), path, (), b"")


def bad_decision(random: np.random.Generator) -> Input:
    """A body that no decision takes."""
    path = str(random.choice(DECISIONS))
    body = (
        json.dumps({noise(random, 9).decode(): 1}),
        json.dumps([1, 2, {"value": 1}]),
        json.dumps({"value": "high", "reason": 3, "client": [1]}),
        '{"value": NaN}',
        '{"value": 1e999, "reason": null, "client": 7}',
        "[" * int(random.integers(1, 5000)),
        '{"reason": 1, "value": ' + "9" * int(random.integers(400, 2000)) + ', "client": {}}',
        noise(random, 200).decode() + "}",
        '{"reason": "' + "x" * int(random.integers(501, 3000)) + '", "value": "", "client": 0}',
    )[int(random.integers(9))]
    return Input("decision", "PUT" if path == "/v1/threshold" else "POST", path, (), body.encode())


class Twin:
    """What the statistics must be: a detector here that streams the rows that were accepted."""

    def __init__(self, guard: Path) -> None:
        detector = ns.load_detector(guard)
        assert isinstance(detector, ns.NormScaling)
        assert detector._baseline is not None
        self.detector = detector
        self._baseline = detector._baseline
        self.rows = 0

    def accept(self, one: Input) -> int:
        """Take in what the server answered; how many of the rows it must have taken in."""
        rows = read_by_others(one.length, one.body)
        training = self._baseline.moments
        near = (np.abs(rows - training.mean) / training.std).max(axis=1) <= OUTLIER
        taken = rows[near & ~self._baseline.far_outside(rows)]
        if len(taken):
            self.detector.stream(taken)
            self.rows += len(taken)
        return len(taken)

    @property
    def moments(self) -> Moments:
        running = self.detector.running_
        return Moments(self.rows, running.weight, running.mean, running.std)


class Tally:
    """Statuses by kind of input, and what was wrong."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self.problems: list[str] = []

    def count(self, kind: str, status: int) -> None:
        self.counts[kind, status] += 1

    def wrong(self, sentence: str) -> None:
        self.problems.append(sentence[:500])
        print("WRONG", sentence[:500], file=sys.stderr)

    @property
    def refused(self) -> int:
        return sum(number for (_, status), number in self.counts.items() if status != 200)

    def by_status(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for (_, status), number in self.counts.items():
            found[str(status) if status else "hung up"] += number
        return dict(sorted(found.items()))

    def by_kind(self) -> dict[str, dict[str, int]]:
        kinds: dict[str, dict[str, int]] = {}
        for (kind, status), number in sorted(self.counts.items()):
            kinds.setdefault(kind, {})[str(status) if status else "hung up"] = number
        return kinds


def think(server: Server, tally: Tally, cases: int, seed: int) -> None:
    """What schemathesis makes of the document."""
    import hypothesis
    import schemathesis

    client = server.client()
    schema = schemathesis.openapi.from_dict(client.ask("GET", "/openapi.json").json)
    operations = [one.ok() for one in schema.get_all_operations()]
    bodied = [one for one in operations if one.method.upper() != "GET"]
    for operation in bodied:

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=cases // len(bodied),
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
        def send(case: Any) -> None:
            before = client.state()["entry"]
            status = case.call(base_url=f"http://127.0.0.1:{server.port}", timeout=30).status_code
            tally.count("schemathesis", status)
            if status >= 500:
                tally.wrong(f"schemathesis: {status} for {case.as_curl_command()}")
            if status != 200 and client.state()["entry"] != before:
                tally.wrong(f"schemathesis: {status}, and yet the journal has grown: {case.as_curl_command()}")

        send()


def hurl(server: Server, tally: Tally, twin: Twin, inputs: int, seed: int) -> None:
    """Everything else, until that many were refused."""
    seeds = whole_bodies()
    wire = Wire(server.port)
    number = 0
    while tally.refused < inputs and len(tally.problems) < 20:
        one = make_input(np.random.default_rng([seed, number]), seeds)
        status, body = wire.ask(one)
        tally.count(one.kind, status)
        if status >= 500:
            tally.wrong(f"input {number} ({one.kind}): {status} {body!r}")
        if status in (200, 202) and one.kind not in ("body", "event"):
            if one.kind != "method" or one.method not in ("OPTIONS",):
                tally.wrong(f"input {number} ({one.kind}) was accepted: {one.method} {one.path} {one.headers} {body!r}")
        elif status == 200 and twin.accept(one) != taken_in(body):
            tally.wrong(f"input {number}: taken in otherwise than it should: {body!r}")
        number += 1
        if number % 5000 == 0:
            check(server, twin, tally, f"after input {number}")
            print(f"{tally.refused} refused", tally.by_status(), file=sys.stderr)
    wire.close()


def taken_in(body: bytes) -> int:
    """Of an answer, whose JSON may be followed by numbers."""
    document, _ = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    return int(document["parameters"]["taken_in"])


def check(server: Server, twin: Twin, tally: Tally, when: str) -> float:
    """Whether the state is that of the accepted rows."""
    client = server.client()
    told, expected = Moments.told(client.state()), twin.moments
    client.close()
    distance = told.distance(expected)
    if not distance < 1e-9:
        tally.wrong(f"{when}: {told.rows} rows, not {expected.rows}; distance {distance}")
    return distance


def memory(server: Server) -> float:
    """Of the server's process, in MB."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="how many must be refused")
    parser.add_argument("--thought", type=int, default=3000, help="how many of them schemathesis makes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    chosen = parser.parse_args()
    tally = Tally()
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="normscale-fuzz-")))
        guard = folder / "detector.safetensors"
        three_class_guard(guard)
        options = ("--store", str(folder / "store.sqlite"), "--on-drift", "ignore")
        server = stack.enter_context(Server(guard, folder / "log", *options, "--outlier", f"{OUTLIER:g}"))
        client = server.client()
        think(server, tally, chosen.thought, chosen.seed)
        for path in ("/v1/reset", "/v1/thaw"):  # some of what it thought of was good
            assert client.ask("POST", path).status == 200
        before, files = memory(server), server.open_files()
        twin = Twin(guard)
        hurl(server, tally, twin, chosen.inputs, chosen.seed)
        distance = check(server, twin, tally, "at the end")
        if "Traceback" in server.log:
            tally.wrong(server.log[-500:])
        result = {
            "command": f"python tests/soak/fuzz_guard.py --inputs {chosen.inputs} --seed {chosen.seed}",
            "date": date.today().isoformat(),
            "bad_inputs": tally.refused,
            "answered_5xx": sum(number for (_, status), number in tally.counts.items() if status >= 500),
            "problems": tally.problems,
            "good_by_chance": sum(number for (_, status), number in tally.counts.items() if status == 200),
            "rows_taken_in": twin.rows,
            "largest_difference": distance,
            "memory_grew_by_mb": round(memory(server) - before, 1),
            "open_files_more": server.open_files() - files,
            "by_status": tally.by_status(),
            "by_kind": tally.by_kind(),
            "seconds": round(time.monotonic() - began),
            "made_with": environment(),
        }
    print(json.dumps(result, indent=1))
    chosen.output.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
