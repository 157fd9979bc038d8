"""Outputs in tables, piece by piece, and the commands that make and compare them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from needed_extras import need
from normscale import jobs
from normscale.extraction import extract
from normscale.extraction.to_tables import extract_to
from program import normscale, normscale_here
from small_network import NET

need("pyarrow")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network in a Python file, and four sets of pictures."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "net.py").write_text(NET)
    rng = np.random.default_rng(0)
    for name, n in (("train", 120), ("test", 60), ("dark", 30), ("grey", 30)):
        images = rng.integers(0, 256, (n, 14, 14, 3))
        if name == "dark":
            images //= 8
        if name == "grey":
            images[...] = images.mean(axis=3, keepdims=True)
        labels: Any = {"labels": np.arange(n) % 4} if name in ("train", "test") else {}
        np.savez(folder / f"{name}.npz", images=images.astype(np.uint8), **labels)
    return folder


def same(one: Any, other: Any) -> None:
    assert one.names == other.names
    for name in one.names:
        np.testing.assert_array_equal(one.array(name), other.array(name))
    np.testing.assert_array_equal(one.labels, other.labels)
    assert one.head.equals(other.head)


def test_pieces_are_kept_and_an_interrupted_run_goes_on(place: Path, tmp_path: Path) -> None:
    model, data = f"{place}/net.py:net", f"{place}/train.npz"
    options: dict[str, Any] = {"piece_rows": 50, "batch_size": 25}
    whole = extract(model, data, batch_size=25, say=lambda _: None)
    first = extract_to(model, data, str(tmp_path / "out"), **options)
    assert (first.n_rows, first.n_made) == (120, 3)
    same(jobs.read(str(tmp_path / "out")), whole)
    kept = (tmp_path / "out" / "part-000000.parquet").stat().st_mtime_ns
    (tmp_path / "out" / "part-000001.parquet").unlink()
    said: list[str] = []
    again = extract_to(model, data, str(tmp_path / "out"), say=said.append, **options)
    assert (again.n_rows, again.n_made) == (120, 1)
    assert "going on: 2 of 3 pieces are there." in said
    assert (tmp_path / "out" / "part-000000.parquet").stat().st_mtime_ns == kept
    same(jobs.read(str(tmp_path / "out")), whole)
    os.utime(place / "net.py", (1, 1))  # a new checkout of the same file is the same model
    assert extract_to(model, data, str(tmp_path / "out"), **options).n_made == 0
    with pytest.raises(ns.InvalidInput, match="another job"):
        extract_to(model, f"{place}/test.npz", str(tmp_path / "out"), **options)
    one = extract_to(model, data, str(tmp_path / "out.safetensors"), **options)
    assert one.n_rows == 120
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.safetensors"]
    same(ns.read_table(tmp_path / "out.safetensors"), whole)


def test_one_parquet_file_says_which_picture_a_row_came_from(place: Path, tmp_path: Path) -> None:
    from PIL import Image
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    for name in ("b/2.png", "b/1.png", "a/deep/3.png", "a/0.png"):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (14, 14, 3), dtype=np.uint8)).save(tmp_path / "pictures" / name)
    (tmp_path / "pictures" / "a" / "1.png").write_bytes(b"torn")
    model, data, output = f"{place}/net.py:net", str(tmp_path / "pictures"), str(tmp_path / "out.parquet")
    done = extract_to(model, data, output, piece_rows=2, on_invalid="skip", ood=True)
    assert done.n_rows == 4
    found = parquet.ParquetFile(output)
    assert found.read(["path"]).column(0).to_pylist() == ["a/0.png", "a/deep/3.png", "b/1.png", "b/2.png"]
    assert found.num_row_groups == 3  # written piece by piece
    outputs = ns.read_table(output)
    whole = extract(model, data, on_invalid="skip", ood=True, say=lambda _: None)
    np.testing.assert_allclose(outputs.logits, whole.logits, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.parquet", "pictures"]
    ns.Energy().fit(outputs).save(tmp_path / "energy.safetensors")
    words = ["score", "energy.safetensors", "out.parquet", "-o", "scores.csv", "--keep-columns", "path"]
    scored = normscale_here(*words, cwd=tmp_path)
    assert scored.exit_code == 0, scored.stderr
    assert "b/2.png" in (tmp_path / "scores.csv").read_text()


def test_half_precision_tables_and_what_is_wrong_leave_nothing_behind(place: Path, tmp_path: Path) -> None:
    model, data = f"{place}/net.py:net", f"{place}/test.npz"
    said: list[str] = []
    extract_to(model, data, str(tmp_path / "a.npz"), keep="float16", dtype="bfloat16", piece_rows=20, say=said.append)
    found = ns.read_table(tmp_path / "a.npz")
    assert found.logits.dtype == found.features.dtype == np.float16
    assert sum("bfloat16: on the first" in text for text in said) == 1
    (tmp_path / "large.py").write_text(NET.replace("8, 4)),", "8, 4), Large()),") + "\nclass Large(nn.Module):\n"
                                       "    def forward(self, x): return x * 1e9\n")  # fmt: skip
    for given, output, message in (
        ({"model": f"{tmp_path}/large.py:net", "keep": "float16"}, "b.npz", "beyond 65504, where float16 ends"),
        ({"layers": ["nowhere"]}, "c.parquet", "no layer 'nowhere'"),
        ({"data": f"{tmp_path}/none"}, "d", "no file or folder"),
        ({"feature_layer": "0", "keep": "int8"}, "e.npz", "keep must be"),
        ({"device": "gpu"}, "g.npz", "nothing runs on the device 'gpu' here .*Leave device out"),
    ):
        with pytest.raises(ns.InvalidInput, match=message):
            extract_to(**{"model": model, "data": data, "output": str(tmp_path / output), **given})  # type: ignore[arg-type]
    with pytest.raises(ns.FileFormatError, match="suffix"):
        extract_to(model, data, str(tmp_path / "f.xyz"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "large.py"]


def test_processes_give_the_same_rows(place: Path, tmp_path: Path) -> None:
    words = ["extract", "net.py:net", "test.npz", "--piece-rows", 25, "--engine", "local", "--workers", 2, "-o"]
    done = normscale_here(*words, tmp_path / "out", "--device", "cpu,cpu", cwd=place)
    assert done.exit_code == 0, done.stderr
    assert "60 rows in" in done.stderr
    assert "preprocessing: resized to 12 x 12" in done.stderr
    whole = extract(f"{place}/net.py:net", place / "test.npz", batch_size=25, say=lambda _: None)
    found = jobs.read(str(tmp_path / "out"))
    np.testing.assert_allclose(found.logits, whole.logits, atol=1e-6)
    np.testing.assert_array_equal(found.labels, whole.labels)


def test_compare_goes_from_a_model_to_a_saved_detector(place: Path, tmp_path: Path) -> None:
    need("jinja2")
    words = ["compare", "--model", "net.py:net", "--train", "train.npz", "--id", "test.npz", "--ood", "dark.npz"]
    words += ["--ood", "pale=grey.npz", "--outputs", str(tmp_path / "outputs"), "-d", "msp", "-d", "knn"]
    written = ["--report", tmp_path / "report", "--no-figures", "--save", tmp_path / "best.safetensors"]
    done = normscale(*words, *written, cwd=place)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report" / "report.html").exists()
    assert "pale" in done.stdout
    best = ns.load_detector(tmp_path / "best.safetensors")
    assert best.threshold_ is not None
    model = f"{place}/net.py:net"
    train, test, *ood = (
        extract(model, place / f"{name}.npz", say=lambda _: None) for name in ("train", "test", "dark", "grey")
    )
    means = {
        name: np.mean(
            [row.auroc for row in ns.compare(test, dict(zip("ab", ood, strict=True)), train=train, detectors=[name])]
        )
        for name in ("msp", "knn")
    }
    assert best.name == max(means, key=lambda name: means[name])
    again = normscale_here(*words, "-o", tmp_path / "rows.csv", cwd=place)
    assert again.exit_code == 0, again.stderr
    assert "train: 120 rows, as they were" in again.stderr
    refused = normscale_here(
        *words[:3], "--id", "test.npz", "--ood", "dark.npz", "--save", tmp_path / "x.safetensors", cwd=place
    )
    assert "--save fits a detector; give --train" in str(refused.exception)
