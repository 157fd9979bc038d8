"""Fetch a file: mirrors in order, resumed where it broke off, checked, and put in place whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from normscale._progress import Bar, bar
from normscale.errors import NormscaleError

CONNECT_SECONDS = 3.0
READ_SECONDS = 15.0
ATTEMPTS = 3  # in a row without a single new byte, per mirror
BACKOFF_SECONDS = 0.5  # doubled after each
_BLOCK = 1 << 18
_AGENT = "normscale"


class DownloadFailed(NormscaleError, OSError):
    """No mirror gave the file; the message says how to get it by hand."""


@dataclass(frozen=True)
class RemoteFile:
    """A file somewhere else: its addresses in the order to try them, and what is known of its content."""

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    md5: str | None = None
    sha256: str | None = None
    splits: tuple[str, ...] = ("train", "test")
    """Which splits need it."""
    optional: bool = False
    """Used when it is there, never fetched on its own."""

    def describe(self) -> str:
        """Size and checksum, for a person who fetches it by hand."""
        parts = [] if self.size is None else [f"{self.size} bytes"]
        if self.sha256:
            parts.append(f"SHA-256 {self.sha256}")
        elif self.md5:
            parts.append(f"MD5 {self.md5}")
        return ", ".join(parts) or "size and checksum not published"

    def mismatch(self, path: Path) -> str | None:
        """What is wrong with a file that should be this one; None when nothing is."""
        size = path.stat().st_size
        if self.size is not None and size != self.size:
            return f"it has {size} bytes instead of {self.size}"
        hashes = [hashlib.new(kind, usedforsecurity=False) for kind in ("md5", "sha256") if getattr(self, kind)]
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                for digest in hashes:
                    digest.update(block)
        for digest in hashes:
            if digest.hexdigest() != getattr(self, digest.name):
                return f"its {digest.name.upper()} is {digest.hexdigest()} instead of {getattr(self, digest.name)}"
        return None


class _MirrorFailed(Exception):
    """This mirror will not give the file; go to the next."""


class _BrokeOff(Exception):
    """The transfer stopped half-way; it may be taken up again."""


def fetch(file: RemoteFile, folder: str | os.PathLike[str]) -> tuple[Path, list[str]]:
    """Make sure that ``folder`` holds the file.

    Returns
    -------
    path : Path
        Of the file, which is there only when the second value is empty.
    failures : list of str
        Why each mirror failed. Empty when the file is in place.
    """
    path = Path(folder) / file.name
    if path.exists() and file.mismatch(path) is None:
        return path, []
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    failures: list[str] = []
    silent: set[str] = set()  # hosts that do not answer; another address there will not either
    with bar(file.name, file.size, unit="bytes") as line:
        if part.exists():
            line.advance(part.stat().st_size)
        for url in file.urls:
            host = urllib.parse.urlsplit(url).hostname or url
            if host in silent:
                continue
            try:
                _reach(url)
                _from_mirror(url, file, part, line)
            except ConnectionError as error:
                silent.add(host)
                failures.append(f"{host}: {error}")
            except _MirrorFailed as error:
                failures.append(f"{url}: {error}")
            else:
                os.replace(part, path)
                return path, []
    return path, failures


def _reach(url: str) -> None:
    """Raise ConnectionError soon when the host cannot be reached, rather than after the time-out for reading."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if urllib.request.getproxies().get(parts.scheme) and not urllib.request.proxy_bypass(host):
        return  # the proxy finds the host
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except socket.gaierror:
        raise ConnectionError("the name is not known (no network?)") from None
    except OSError as error:
        raise ConnectionError(f"no answer ({error.strerror or error})") from None


def _from_mirror(url: str, file: RemoteFile, part: Path, line: Bar) -> None:
    """Fill ``part`` from one mirror until it is the whole, checked file."""
    failures = 0
    started_over = False
    while True:
        before = part.stat().st_size if part.exists() else 0
        if file.size is not None and before > file.size:
            _drop(part, line)
            before = 0
        try:
            if file.size is None or before < file.size:
                _transfer(url, file, part, line)
        except _BrokeOff as error:
            after = part.stat().st_size if part.exists() else 0
            failures = 1 if after > before else failures + 1
            if failures >= ATTEMPTS:
                raise _MirrorFailed(f"{error} ({failures} times without a new byte)") from None
            time.sleep(BACKOFF_SECONDS * 2 ** (failures - 1))
            continue
        wrong = file.mismatch(part)
        if wrong is None:
            return
        if file.size is not None and part.stat().st_size < file.size and not started_over:
            failures += 1  # the mirror called it complete; ask once more for the rest
            if failures < ATTEMPTS:
                continue
        _drop(part, line)
        if started_over or before == 0:
            raise _MirrorFailed(f"it sent something else: {wrong}")
        started_over = True  # the first half may have come from elsewhere


def _transfer(url: str, file: RemoteFile, part: Path, line: Bar) -> None:
    """One request: append to ``part`` what it lacks, or start it anew when the mirror cannot resume."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=READ_SECONDS) as response:
            resumes = response.status == 206 and _first_byte(response.headers.get("Content-Range")) == have
            if have and not resumes:
                if response.status == 206:  # not the part that was asked for
                    _drop(part, line)
                    raise _BrokeOff("it sent another part of the file than asked for")
                line.advance(-have)
            with open(part, "ab" if resumes else "wb") as target:
                while block := response.read1(_BLOCK):
                    target.write(block)
                    line.advance(len(block))
                    if file.size is not None and target.tell() > file.size:
                        target.truncate(0)
                        raise _MirrorFailed(f"it sends more than the {file.size} bytes of the file")
                target.flush()
                os.fsync(target.fileno())
            if response.length:  # a promise that was not kept; read1 does not complain
                raise _BrokeOff(f"the connection broke off, {response.length} bytes short")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing after what we have: the part is whole, or not from here
            if file.size is None or have != file.size:
                _drop(part, line)
                raise _BrokeOff("it has fewer bytes than were already there") from None
            return
        if error.code in (408, 425, 429) or error.code >= 500:
            raise _BrokeOff(f"HTTP {error.code} {error.reason}") from None
        raise _MirrorFailed(f"HTTP {error.code} {error.reason}") from None
    except (TimeoutError, http.client.HTTPException, urllib.error.URLError, ConnectionError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        if isinstance(reason, socket.gaierror):
            raise _MirrorFailed("it leads to a host whose name is not known") from None
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise _MirrorFailed(f"its certificate is not trusted ({reason.verify_message})") from None
        raise _BrokeOff(f"the connection broke off ({reason})") from None


def _first_byte(content_range: str | None) -> int | None:
    """The start in ``bytes 100-199/200``."""
    with suppress(AttributeError, ValueError, IndexError):
        return int((content_range or "").split()[1].split("-")[0])
    return None


def _drop(part: Path, line: Bar) -> None:
    with suppress(FileNotFoundError):
        size = part.stat().st_size
        part.unlink()
        line.advance(-size)
