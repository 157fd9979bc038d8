"""Tokens: who is known, what they may do, and that secrets stay secret."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from normscale.cli import app
from normscale.errors import FileFormatError, InvalidInput
from normscale.guard.server import tokens as tokens_module
from normscale.guard.server.tokens import ROLES, Client, Tokens, add_token

DIGEST = hashlib.sha256(b"x").hexdigest()


def line(**changes: object) -> str:
    return json.dumps({"name": "a", "role": "score", "sha256": DIGEST, **changes})


def load(path: Path, environment: dict[str, str] | None = None) -> Tokens:
    return Tokens(str(path), environment or {})


def who(tokens: Tokens, secret: str) -> tuple[str, str]:
    client = tokens.identify(f"Bearer {secret}")
    assert client is not None
    return client[:2]


def test_roles_are_no_ladder() -> None:
    actions = ("score", "read", "admin", "anything")
    allowed = {(role, action) for role in ROLES for action in actions if Client("a", role, DIGEST).may(action)}
    assert allowed == {
        ("score", "score"),
        ("read", "read"),
        ("admin", "score"),
        ("admin", "read"),
        ("admin", "admin"),
    }


def test_everyone_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    secrets = {(name, role): add_token(path, name, role) for name in ("a", "b", "c.-_9") for role in ["score"]}
    secrets["d", "admin"] = add_token(path, "d", "admin")
    tokens = load(path)
    for (name, role), secret in secrets.items():
        assert secret.startswith("nsk_")
        assert len(secret) == 47
        assert who(tokens, secret) == who(tokens, f" {secret} ") == (name, role)
        for wrong in (secret, f"Basic {secret}", f"Bearer {secret[:-1]}", f"Bearer {secret}x", f"Bearer{secret}"):
            assert tokens.identify(wrong) is None
        assert secret not in path.read_text()
    for nothing in (None, "", "Bearer", "Bearer ", f"Bearer {DIGEST}", "Bearer \ud800\u00e9"):
        assert tokens.identify(nothing) is None
    assert len(tokens) == len(secrets)
    path.write_text("")
    assert tokens.identify(f"Bearer {secrets['a', 'score']}") is None


@given(st.text(max_size=80))
def test_strangers_stay_strangers(header: str) -> None:
    assert Tokens(None, {"NORMSCALE_TOKEN": "nsk_" + "x" * 40}).identify(header) is None


def test_every_hash_is_compared_also_after_the_right_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens.jsonl"
    secrets = [add_token(path, f"client-{index}", "read") for index in range(5)]
    tokens, compared = load(path), list[str]()

    def compare(a: str, b: str) -> bool:
        compared.append(a)
        return a == b

    monkeypatch.setattr("normscale.guard.server.tokens.hmac.compare_digest", compare)
    for index, secret in enumerate(secrets):
        compared.clear()
        assert who(tokens, secret) == (f"client-{index}", "read")
        assert len(compared) == 5
        assert secret not in repr(tokens)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: it is not JSON"),
        ("[" * 5000, "line 1: it is not JSON"),
        (line() + "\n\n[]", "line 3: it must have the fields name, role and sha256"),
        (line(extra=1), "and no others"),
        (line()[:-1] + ', "role": "admin"}', "each once"),
        ('"name role sha256"', "must have the fields"),
        ('{"name": "a"}', "must have the fields"),
        (line(role="root"), "its role must be one of score, read, admin"),
        (line(role=["score"]), "its role must be"),
        (line(sha256=DIGEST[:-1]), "64 hexadecimal digits"),
        (line(sha256=DIGEST.upper()), "64 hexadecimal digits"),
        (line(sha256="\u0661" * 64), "64 hexadecimal digits"),
        (line(sha256=None), "64 hexadecimal digits"),
        (line(name=""), "its name must be"),
        (line(name="a\n"), "its name must be"),
        (line(name="a b"), "its name must be"),
        (line(name="x" * 65), "its name must be"),
        (line(name=3), "its name must be"),
        (line() + "\n" + line(), r"two clients have one name \(a, a\)"),
        (line() + "\n" + line(name="b"), r"two clients have one secret \(a, b\)"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileFormatError, match=rf"tokens\.jsonl.*{message}") as caught:
        load(path)
    assert DIGEST not in str(caught.value)
    with pytest.raises(FileFormatError, match=message):
        add_token(path, "new", "read")
    assert path.read_text(encoding="utf-8") == text


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"No such file.*Make it: normscale token"):
        load(tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(FileFormatError, match="not UTF-8 text"):
        load(tmp_path / "binary")
    with pytest.raises(FileFormatError, match="line 1"):
        add_token(tmp_path / "binary", "a", "read")
    assert (tmp_path / "binary").read_bytes() == b"\xff\xfe"


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_modes(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    old = os.umask(0)
    try:
        add_token(path, "a", "read")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)  # hashes of 256 random bits may be seen
    assert len(load(path)) == 1
    path.chmod(0o646)
    with pytest.raises(FileFormatError, match="can be written by everyone"):
        load(path)


def test_the_environment_holds_an_administrator(tmp_path: Path) -> None:
    secret = add_token(tmp_path / "other.jsonl", "x", "admin")
    assert who(Tokens(None, {"NORMSCALE_TOKEN": secret}), secret) == ("environment", "admin")
    assert len(Tokens(None, {})) == 0
    path = tmp_path / "tokens.jsonl"
    other = add_token(path, "a", "score")
    both = load(path, {"NORMSCALE_TOKEN": secret})
    assert who(both, other) == ("a", "score")
    assert who(both, secret) == ("environment", "admin")
    for weak in ("", "hunter2", "x" * 19, " " * 30, secret + "\n"):
        with pytest.raises(InvalidInput, match=r"NORMSCALE_TOKEN must be at least 20 characters") as caught:
            Tokens(None, {"NORMSCALE_TOKEN": weak})
        assert "hunter2" not in str(caught.value)
    with pytest.raises(FileFormatError, match="two clients have one secret"):
        load(path, {"NORMSCALE_TOKEN": other})


def test_a_last_line_without_its_end_is_not_joined(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text(line())
    secret = add_token(path, "b", "read")
    tokens = load(path)
    assert len(tokens) == 2
    assert who(tokens, secret) == ("b", "read")


def test_many_at_once_all_get_in(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    with ThreadPoolExecutor(8) as pool:
        secrets = list(pool.map(lambda index: add_token(path, f"c{index}", "score"), range(40)))
    tokens = load(path)
    assert {who(tokens, secret) for secret in secrets} == {(f"c{i}", "score") for i in range(40)}


def test_one_of_many_with_one_name_gets_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens.jsonl"
    parse = tokens_module._parse

    def slowly(text: str, shown: str) -> list[Client]:
        entries = parse(text, shown)
        time.sleep(0.01)  # others have time to look, too
        return entries

    monkeypatch.setattr(tokens_module, "_parse", slowly)

    def attempt(_: int) -> bool:
        try:
            add_token(path, "a", "score")
        except InvalidInput:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(16))) == 1
    assert len(load(path)) == 1


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    result = CliRunner().invoke(app, ["token", "camera-7", "--file", str(path)])
    assert result.exit_code == 0
    secret = result.stdout.strip()
    assert who(load(path), secret) == ("camera-7", "score")
    assert "shown once" in result.stderr
    assert secret not in result.stderr
    for arguments, message in (
        (["token", "camera-7", "--file", str(path)], "knows 'camera-7' already"),
        (["token", "x y", "--file", str(path)], "1 to 64 letters"),
        (["token", "x", "--role", "root", "--file", str(path)], "role must be one of score, read, admin; got 'root'"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, InvalidInput)
        assert message in str(result.exception)
        assert "nsk_" not in result.output


def test_the_command_needs_no_extra() -> None:
    """Tokens are often made on another machine than the server's."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('msgspec', 'uvicorn', 'pyarrow'))); "
        "import normscale.cli.token, normscale.guard.server.tokens"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
