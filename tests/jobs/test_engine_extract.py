"""A network's outputs made by workers: the rows of one process, in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from needed_extras import need
from normscale import InvalidInput, jobs
from normscale.extraction import extract
from normscale.extraction.to_tables import extract_to
from normscale.jobs.running import Engine
from small_network import NET

need("torch", "PIL", "pyarrow")
import torch  # noqa: E402 - before the clock of a test begins: on a busy machine this takes a minute

torch.set_num_threads(1)


def test_workers_make_the_rows_of_one_process(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    images = np.random.default_rng(0).integers(0, 256, (65, 14, 14, 3), dtype=np.uint8)
    np.savez(tmp_path / "test.npz", images=images, labels=np.arange(65) % 4)
    model, data = f"{tmp_path}/net.py:net", f"{tmp_path}/test.npz"
    options: dict[str, Any] = {"piece_rows": 10, "batch_size": 10}
    said: list[str] = []
    done = extract_to(model, data, str(tmp_path / "out"), engine=engine, say=said.append, **options)
    assert (done.n_rows, done.n_made) == (65, 7)
    assert said == ["preprocessing: resized to 12 x 12 (bilinear), mean 0 0 0, std 1 1 1"]
    found, whole = jobs.read(str(tmp_path / "out")), extract(model, data, batch_size=10, say=lambda _: None)
    np.testing.assert_allclose(found.logits, whole.logits, atol=1e-6)
    np.testing.assert_allclose(found.features, whole.features, atol=1e-6)
    np.testing.assert_array_equal(found.labels, whole.labels)
    (tmp_path / "out" / "part-000003.parquet").unlink()
    assert extract_to(model, data, str(tmp_path / "out"), engine=engine, **options).n_made == 1
    np.testing.assert_array_equal(jobs.read(str(tmp_path / "out")).logits, found.logits)
    np.savez(tmp_path / "wrong.npz", images=images, labels=np.full(65, 9))
    with pytest.raises(InvalidInput, match=r"the label of row .* is 9; the model's classes are 0 to 3"):
        extract_to(model, f"{tmp_path}/wrong.npz", str(tmp_path / "bad"), engine=engine, **options)
