"""``normscale watch``: rows through a pipe."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guard.guards import detector, digits, guard, one_class, send
from normscale.errors import InvalidInput
from normscale.guard.pipe import watch_pipe


def lines(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_lines_are_answered_in_order_with_their_other_fields() -> None:
    rows = digits(30)
    text = b"".join(json.dumps({"id": i, "logits": row}).encode() + b"\n\n" for i, row in enumerate(rows.tolist()))
    out = io.BytesIO()
    totals = watch_pipe(guard(), io.BytesIO(text[:-2]), out)
    answers = lines(out.getvalue())
    expected = send(guard(), rows.astype(np.float64))
    assert [answer["id"] for answer in answers] == list(range(30))
    np.testing.assert_allclose([answer["score"] for answer in answers], expected.scores, rtol=1e-12, atol=1e-12)
    assert [answer["is_ood"] for answer in answers] == expected.is_ood.tolist()
    assert totals == (30, int(expected.is_ood.sum()), 0)


def test_a_bad_line_stops_or_is_passed_over() -> None:
    good = json.dumps(digits(1)[0].tolist()).encode()
    bad = [b"nonsense", b'{"logits": [1, 2]}', b'{"logits": "x"}', b"[NaN,0,0,0,0,0,0,0]", b"[true,0,0,0,0,0,0,0]"]
    bad += [b"[1e400,0,0,0,0,0,0,0]", b"[" * 100_000, b"[" + b"9" * 400 + b",0,0,0,0,0,0,0]"]
    for line in bad:
        on, out = guard(), io.BytesIO()
        with pytest.raises(InvalidInput, match="line 2: "):
            watch_pipe(on, io.BytesIO(good + b"\n" + line + b"\n" + good + b"\n"), out)
        assert len(lines(out.getvalue())) == on.state.stream.rows == 1  # what came before it is answered and counted
    on, out = guard(), io.BytesIO()
    totals = watch_pipe(on, io.BytesIO(b"\n".join([good, *bad, good])), out, skip=True)
    answers = lines(out.getvalue())
    assert totals == (2, totals.flagged, len(bad))
    assert ["error" in answer for answer in answers] == [False, *[True] * len(bad), False]
    assert on.state.stream.rows == 2


def test_freezing_is_said() -> None:
    said: list[str] = []
    text = b"".join(json.dumps(row).encode() + b"\n" for row in one_class(400).tolist())
    watch_pipe(guard(), io.BytesIO(text), io.BytesIO(), say=said.append)
    assert len(said) == 1
    assert said[0].startswith("frozen: ")


def test_the_command_answers_each_line_before_the_next_comes(tmp_path: Path) -> None:
    path, store = tmp_path / "guard.safetensors", tmp_path / "store.sqlite"
    detector().save(path)
    command = [sys.executable, "-m", "normscale", "watch", str(path), "--store", str(store)]
    for round_ in (1, 2):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        for row in digits(3, seed=round_).tolist():
            process.stdin.write(json.dumps(row).encode() + b"\n")
            process.stdin.flush()
            assert "score" in json.loads(process.stdout.readline())
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert f"{3 * round_} rows in the statistics" in errors.decode()


def test_the_command_counts_all_rows_of_a_detector_without_statistics(tmp_path: Path) -> None:
    path = tmp_path / "energy.safetensors"
    detector("energy").save(path)
    rows = np.vstack([digits(6), 1e4 * np.ones((1, 8))])  # the last one is far out
    text = "".join(json.dumps(row) + "\n" for row in rows.tolist())
    command = [sys.executable, "-m", "normscale", "watch", str(path), "--store", str(tmp_path / "store.sqlite")]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    assert "of 7 rows are out-of-distribution; 7 rows scored so far" in done.stderr


def test_probabilities_are_passed_over_like_any_other_bad_line() -> None:
    on = guard()
    rows = np.abs(digits(6)) + 1.0
    lines = [json.dumps((row / row.sum()).tolist()) for row in rows.astype(float)]
    target = io.BytesIO()
    totals = watch_pipe(on, io.BytesIO("\n".join(lines).encode() + b"\n"), target, skip=True)
    assert (totals.rows, totals.skipped) == (0, 6)
    assert all("softmax" in json.loads(line)["error"] for line in target.getvalue().splitlines())
    with pytest.raises(InvalidInput, match=r"line 1: .*softmax"):
        watch_pipe(on, io.BytesIO("\n".join(lines).encode() + b"\n"), io.BytesIO())
    on.store.close()
