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
from normscale.guard.server.tokens import ROLES, Client, Tokens, add_token, load_tokens, may, new_token, parse_line

DIGEST = hashlib.sha256(b"x").hexdigest()


def line(**changes: object) -> str:
    return json.dumps({"name": "a", "role": "score", "sha256": DIGEST, **changes})


def test_roles_are_no_ladder() -> None:
    allowed = {(role, action) for role in ROLES for action in ("score", "read", "admin") if may(role, action)}
    assert allowed == {
        ("score", "score"),
        ("read", "read"),
        ("admin", "score"),
        ("admin", "read"),
        ("admin", "admin"),
    }
    assert not may("nobody", "read")
    assert not may("admin", "anything")


def test_everyone_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    secrets = {(name, role): add_token(path, name, role) for name in ("a", "b", "c.-_9") for role in ["score"]}
    secrets["d", "admin"] = add_token(path, "d", "admin")
    tokens = load_tokens(path, {})
    for (name, role), secret in secrets.items():
        assert secret.startswith("nsk_")
        assert len(secret) == 47
        assert tokens.identify(f"Bearer {secret}") == Client(name, role)
        assert tokens.identify(f"bearer  {secret} ") == Client(name, role)
        for wrong in (secret, f"Basic {secret}", f"Bearer {secret[:-1]}", f"Bearer {secret}x", f"Bearer{secret}"):
            assert tokens.identify(wrong) is None
        assert secret not in path.read_text()
    for nothing in (None, "", "Bearer", "Bearer ", f"Bearer {DIGEST}", "Bearer \ud800\u00e9"):
        assert tokens.identify(nothing) is None
    assert len(tokens) == len(secrets)
    assert Tokens([]).identify(f"Bearer {secrets['a', 'score']}") is None


@given(st.text(max_size=80))
def test_strangers_stay_strangers(header: str) -> None:
    assert Tokens([parse_line(line())]).identify(header) is None


def test_every_hash_is_compared_also_after_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [new_token(f"client-{index}", "read") for index in range(5)]
    tokens = Tokens(parse_line(entry) for _, entry in made)
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr("normscale.guard.server.tokens.hmac.compare_digest", compare)
    for index, (secret, _) in enumerate(made):
        compared.clear()
        assert tokens.identify(f"Bearer {secret}") == Client(f"client-{index}", "read")
        assert len(compared) == 5


def test_secrets_do_not_show() -> None:
    secret, entry = new_token("a", "read")
    tokens = Tokens([parse_line(entry)])
    assert repr(tokens) == str(tokens) == "Tokens(1 clients)"
    assert secret not in entry
    assert new_token("a", "read")[0] != secret


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
        load_tokens(path, {})
    assert DIGEST not in str(caught.value)
    with pytest.raises(FileFormatError, match=message):
        add_token(path, "new", "read")
    assert path.read_text(encoding="utf-8") == text


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"No such file.*Make it: normscale token"):
        load_tokens(tmp_path / "none.jsonl", {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(FileFormatError, match="not UTF-8 text"):
        load_tokens(tmp_path / "binary", {})
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
    assert len(load_tokens(path, {})) == 1
    path.chmod(0o646)
    with pytest.raises(FileFormatError, match="can be written by everyone"):
        load_tokens(path, {})


def test_the_environment_holds_an_administrator(tmp_path: Path) -> None:
    secret, _ = new_token("x", "admin")
    tokens = load_tokens(None, {"NORMSCALE_TOKEN": secret})
    assert tokens.identify(f"Bearer {secret}") == Client("environment", "admin")
    assert len(load_tokens(None, {})) == 0
    path = tmp_path / "tokens.jsonl"
    other = add_token(path, "a", "score")
    both = load_tokens(path, {"NORMSCALE_TOKEN": secret})
    assert both.identify(f"Bearer {other}") == Client("a", "score")
    assert both.identify(f"Bearer {secret}") == Client("environment", "admin")
    for weak in ("", "hunter2", "x" * 19, " " * 30, secret + "\n"):
        with pytest.raises(InvalidInput, match=r"NORMSCALE_TOKEN must be at least 20 characters") as caught:
            load_tokens(None, {"NORMSCALE_TOKEN": weak})
        assert "hunter2" not in str(caught.value)
    with pytest.raises(FileFormatError, match="two clients have one secret"):
        load_tokens(path, {"NORMSCALE_TOKEN": other})


def test_a_last_line_without_its_end_is_not_joined(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text(line())
    secret = add_token(path, "b", "read")
    tokens = load_tokens(path, {})
    assert len(tokens) == 2
    assert tokens.identify(f"Bearer {secret}") == Client("b", "read")


def test_many_at_once_all_get_in(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    with ThreadPoolExecutor(8) as pool:
        secrets = list(pool.map(lambda index: add_token(path, f"c{index}", "score"), range(40)))
    tokens = load_tokens(path, {})
    assert {tokens.identify(f"Bearer {secret}") for secret in secrets} == {Client(f"c{i}", "score") for i in range(40)}


def test_one_of_many_with_one_name_gets_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens.jsonl"
    parse = tokens_module._parse

    def slowly(text: str, shown: str) -> list[tuple[str, str, str]]:
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
    assert len(load_tokens(path, {})) == 1


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    result = CliRunner().invoke(app, ["token", "camera-7", "--file", str(path)])
    assert result.exit_code == 0
    secret = result.stdout.strip()
    assert load_tokens(path, {}).identify(f"Bearer {secret}") == Client("camera-7", "score")
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
    subprocess.run([sys.executable, "-c", code], check=True)
