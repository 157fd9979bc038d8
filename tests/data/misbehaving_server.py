"""A web server on the loopback that does what real ones do on bad days."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """Serves ``content`` at every path; the path's first part says how it misbehaves."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.requests: list[tuple[str, str | None]] = []
        self.release = threading.Event()  # lets the hanging ones go when the test ends
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.requests.append((self.path, self.headers.get("Range")))
                outer.answer(self, self.path.strip("/").split("/")[0])

            def log_message(self, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def url(self, behaviour: str) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/{behaviour}/file.bin"

    def asked(self, behaviour: str) -> list[str | None]:
        """The Range header of each request."""
        return [wanted for path, wanted in self.requests if path.startswith(f"/{behaviour}/")]

    def close(self) -> None:
        self.release.set()
        self._http.shutdown()
        self._http.server_close()

    def answer(self, handler: BaseHTTPRequestHandler, behaviour: str) -> None:
        method: Callable[[BaseHTTPRequestHandler, int], None] = getattr(self, f"_{behaviour}")
        wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range") or "")
        method(handler, int(wanted[1]) if wanted else 0)

    def _send(
        self,
        handler: BaseHTTPRequestHandler,
        start: int,
        body: bytes,
        *,
        length: int | None = None,
        ranged: bool = True,
    ) -> None:
        partial = ranged and start > 0
        handler.send_response(206 if partial else 200)
        if partial:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)

    def _cut(self, handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    # --- behaviours -------------------------------------------------------------------------------------------

    def _good(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        if start >= len(self.content):
            handler.send_error(416)
        else:
            self._send(handler, start, self.content[start:])

    def _drops(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        """A third of the file at a time, then the connection is cut."""
        third = len(self.content) // 3 + 1
        rest = self.content[start:]
        self._send(handler, start, rest[:third], length=len(rest))
        if third < len(rest):
            self._cut(handler)

    def _dead(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        """Headers, and not one byte more, ever."""
        self._send(handler, start, b"", length=len(self.content) - start)
        self._cut(handler)

    def _ignores_range(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        self._send(handler, 0, self.content)

    def _drops_once_and_ignores_range(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        if len(self.asked("drops_once_and_ignores_range")) == 1:
            self._send(handler, 0, self.content[:1000], length=len(self.content))
            self._cut(handler)
        else:
            self._send(handler, 0, self.content)

    def _other_range(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        """Asked for the rest, sends it from the beginning and says so."""
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes 0-{len(self.content) - 1}/{len(self.content)}")
        handler.send_header("Content-Length", str(len(self.content)))
        handler.end_headers()
        handler.wfile.write(self.content)

    def _says_too_little(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        """Claims to be complete 100 bytes early, every time."""
        rest = self.content[start:-100]
        self._send(handler, start, rest)

    def _says_too_much(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        self._send(handler, start, self.content[start:], length=len(self.content) - start + 50)
        self._cut(handler)

    def _sends_too_much(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        self._send(handler, 0, self.content + bytes(10_000_000))

    def _wrong(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        body = bytes(byte ^ 1 for byte in self.content)
        self._send(handler, start, body[start:])

    def _page(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        self._send(handler, 0, b"<html>please log in</html>")

    def _missing(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        handler.send_error(404)

    def _broken(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        handler.send_error(500)

    def _broken_once(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        if len(self.asked("broken_once")) == 1:
            handler.send_error(503)
        else:
            self._send(handler, start, self.content[start:])

    def _hangs(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        self.release.wait(30)
        handler.close_connection = True

    def _slow(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        """A trickle at first; the rest of the file at once when asked to go on."""
        rest = self.content[start:]
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        handler.send_header("Content-Length", str(len(rest)))
        handler.end_headers()
        if start:
            handler.wfile.write(rest)
            return
        for position in range(0, len(rest), 20_000):
            try:
                handler.wfile.write(rest[position : position + 20_000])
                handler.wfile.flush()
            except OSError:
                return
            time.sleep(0.02)

    def _redirects(self, handler: BaseHTTPRequestHandler, start: int) -> None:
        handler.send_response(302)
        handler.send_header("Location", self.url("drops"))
        handler.send_header("Content-Length", "0")
        handler.end_headers()


@contextmanager
def serve(content: bytes) -> Iterator[Server]:
    server = Server(content)
    try:
        yield server
    finally:
        server.close()
