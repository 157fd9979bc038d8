"""JSON lines: a number a column or lists, from files, compressed files and pipes; strict about what JSON is."""

from __future__ import annotations

import gzip
import json
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import normscale as ns
from needed_extras import need
from normscale.cli import app
from normscale.rows import format_of, open_sink, open_table
from normscale.rows.formats import jsonl

need("pyarrow")

RNG = np.random.default_rng(0)
LOGITS, FEATURES = RNG.normal(size=(23, 3)), RNG.normal(size=(23, 2))
LABELS = RNG.integers(-1, 3, 23)


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".jsonl.gz"])
def test_outputs_come_back_as_they_were(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"table{suffix}"
    outputs = ns.ModelOutputs(LOGITS, features=FEATURES, labels=LABELS)
    ns.write_table(path, outputs, class_names=["cat", "dog", "big owl"])
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == suffix.endswith(".gz")
    table = open_table(path, chunk_rows=5)
    assert (table.class_names, table.widths) == (("cat", "dog", "big owl"), {"logits": 3, "features": 2})
    parts = list(table.chunks())
    assert [len(part) for part in parts] == [5, 5, 5, 5, 3]
    back = ns.ModelOutputs.concatenate(parts)
    for name in ("logits", "features"):
        np.testing.assert_array_equal(back.array(name), outputs.array(name))
    assert np.array_equal(back.labels, LABELS)  # type: ignore[arg-type]
    assert ns.read_table(path, names=["features"]).names == ("features",)


def test_a_pipe_is_recognised_and_read_as_it_comes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    first_is_read = threading.Event()

    def write() -> None:
        with pipe.open("wb", buffering=0) as file:
            file.write(b'{"logits": [1, 2]}\n')
            first_is_read.wait(60)
            file.write(b'{"logits": [1.5, 2]}\n{"logits": [0, "-Infinity"]}\n')

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    with open_table(pipe, chunk_rows=1) as table:
        chunks = table.chunks()
        assert next(chunks).logits.tolist() == [[1.0, 2.0]]
        first_is_read.set()
        assert [chunk.logits.tolist() for chunk in chunks] == [[[1.5, 2.0]], [[0.0, -np.inf]]]
    writer.join(60)


def test_lists_nulls_and_kept_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines: list[dict[str, object]] = [
        {"id": 7, "logits": [1, 2], "layer1": [0.5], "label": 1, "note": "nan"},
        {"id": 8, "logits": [1.5, None], "layer1": None, "label": None, "note": None},
        {"id": 9, "logits": ["NaN", "Infinity"], "layer1": [2], "note": "x, NaN: Infinity"},
    ]
    path.write_text("".join(json.dumps(line) + "\n\n" for line in lines))
    ((outputs, kept, _),) = open_table(path, keep=["id"]).blocks()
    np.testing.assert_array_equal(outputs.logits, [[1, 2], [1.5, np.nan], [np.nan, np.inf]])
    np.testing.assert_array_equal(outputs.array("layer1"), [[0.5], [np.nan], [2]])
    assert outputs.labels is not None
    assert (outputs.labels.tolist(), kept["id"].tolist()) == ([1, -1, -1], [7, 8, 9])


def test_labels_are_names_of_classes_and_blocks_are_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    line = '{"logit_cat": 1, "logit_dog": 2, "label": "dog"}\n'
    path.write_text(line + line.replace("1", "1.25").replace('dog"}', 'cat"}'))
    monkeypatch.setattr("normscale.rows.streams._BLOCK_BYTES", 1)  # every line is a block: the first decides the types
    outputs = ns.read_table(path)
    assert (outputs.logits.tolist(), outputs.labels.tolist()) == ([[1, 2], [1.25, 2]], [1, 0])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": NaN, "b": 1}\n', 'NaN is not JSON; write the text "NaN", or null'),
        ('{"a": 1, "b": -Infinity}\n', "Infinity is not JSON"),
        ('{"a": 1, "b": 2}\nnot json\n', "from line 1 on: .*Is each line one object"),
        ('{"a": 1, "b": 2}\n{"a": 1, "b": "two"}\n', "from line 1 on: .*Is each line one object"),
        ("[1, 2]\n", "is each line one object"),
        ("", "is empty"),
        ("\n\n", "nothing|no line"),
        ('{"logits": [1, 2]}\n{"logits": [1, 2, 3]}\n', "logits row 1 has 3 numbers; all rows must have 2"),
        ('{"logit_a": "x", "logit_b": 2}\n', "column 'logit_a' holds string"),
        ('{"id": 1, "b": 2, "c": 3}\n', "looks like row numbers"),
        ('{"logit_a": 1, "logit_b": 2, "label": 0.5}\n', "column 'label' holds double"),
    ],
)
def test_what_is_not_a_table_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises((ns.FileFormatError, ns.InvalidInput), match=f"(?i){says}"):
        ns.read_table(path)


def test_a_field_that_comes_later_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1, "b": 2}\n{"a": 1, "b": 2, "c": 3}\n')
    assert ns.read_table(path).logits.shape == (2, 3)  # one block shows all of its keys
    monkeypatch.setattr("normscale.rows.streams._BLOCK_BYTES", 1)
    with pytest.raises(ns.FileFormatError, match=r"from line 2 on: .*unexpected field"):
        ns.read_table(path)


def test_compressed_text_that_breaks_off(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1, "b": 2}\n' * 1000)[:40])
    with pytest.raises(ns.FileFormatError, match="is damaged, or is not"):
        ns.read_table(path)


def test_scores_are_written_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    columns = {"when": np.dtype("M8[s]"), "id": np.dtype(object), "score": np.dtype(float), "is_ood": np.dtype(bool)}
    with open_sink(path, columns) as sink:
        for score, is_ood in ((0.5, True), (float("nan"), False)):
            row = {"when": "2026-01-02", "id": "ü", "score": score, "is_ood": is_ood}
            sink.write({name: np.array([row[name]], kind) for name, kind in columns.items()})
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert found[0] == {"when": "2026-01-02T00:00:00", "id": "ü", "score": 0.5, "is_ood": True}
    assert found[1]["score"] == "NaN"
    with pytest.raises(ns.InvalidInput, match=r"a \.jsonl file holds no head"):
        ns.write_table(path, ns.ModelOutputs(LOGITS, head=(np.ones((3, 2)), np.ones(3))))


def test_the_commands_read_and_write_it(tmp_path: Path) -> None:
    table, detector, out = tmp_path / "t.jsonl", tmp_path / "d.safetensors", tmp_path / "s.jsonl"
    ns.write_table(table, ns.ModelOutputs(LOGITS, labels=LABELS), class_names=["a", "b", "c"])
    for words in (["fit", table, "-d", "energy", "-o", detector], ["score", detector, table, "-o", out]):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.exception
    scores = [json.loads(line)["score"] for line in out.read_text().splitlines()]
    np.testing.assert_allclose(scores, ns.Energy().score(LOGITS), rtol=1e-12)


def test_it_is_listed_where_formats_are() -> None:
    assert jsonl.JsonLines.begins(b' \n{"a": 1')
    with pytest.raises(ns.FileFormatError, match=re.escape(".jsonl, .ndjson")):
        format_of("a.txt")
