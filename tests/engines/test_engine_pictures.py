"""Pictures through a model on actors, against the same model and detector in this process."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import normscale as ns
from normscale import engines
from normscale.detectors.threshold import Threshold
from normscale.engines.pictures import decode, to_unit_floats

needed = ("onnx", "onnxruntime", "PIL", "pandas", "ray")
missing = [name for name in needed if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"not installed, so no pictures are scored: {', '.join(missing)}")

SIZE = (4, 5)
WEIGHTS = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)


def png(seed: int) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (*SIZE, 3)).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from onnx import TensorProto, helper, numpy_helper, save

    nodes = [
        helper.make_node("Flatten", ["x"], ["features"]),
        helper.make_node("MatMul", ["features", "w"], ["logits"]),
    ]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])
        for name, width in (("logits", 3), ("features", 60))
    ]
    entry = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, *SIZE])
    graph = helper.make_graph(nodes, "net", [entry], outputs, [numpy_helper.from_array(WEIGHTS, "w")])
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def detector() -> ns.Energy:
    energy = ns.Energy()
    energy.threshold_ = Threshold(0.0)
    return energy


def wanted(detector: Any, seeds: range) -> Any:
    images = np.stack([decode(png(seed), SIZE) for seed in seeds])
    return detector.score(to_unit_floats(images).reshape(len(images), -1) @ WEIGHTS)


@pytest.mark.filterwarnings("ignore")
def test_a_folder_and_a_column_of_pictures(tmp_path: Path, model: Path, detector: Any, ray_cluster: Any) -> None:
    (tmp_path / "in").mkdir()
    for seed in range(9):
        (tmp_path / "in" / f"{seed}.png").write_bytes(png(seed))
    scores = wanted(detector, range(9))
    assert engines.score_pictures(tmp_path / "in", model, detector, tmp_path / "out", size=SIZE, batch_size=4) == 9
    table = pq.read_table(tmp_path / "out").to_pydict()
    places = [int(Path(path).stem) for path in table["path"]]
    assert sorted(places) == list(range(9))
    np.testing.assert_allclose(table["score"], scores[places], rtol=1e-5)
    np.testing.assert_array_equal(table["is_ood"], np.array(table["score"]) > 0.0)
    pq.write_table(pa.table({"image": [png(i) for i in range(9)], "id": range(9)}), tmp_path / "p.parquet")
    count = engines.score_pictures(
        tmp_path / "p.parquet", model, detector, tmp_path / "column", size=SIZE, keep=["id"], batch_size=4
    )
    assert count == 9
    table = pq.read_table(tmp_path / "column").to_pydict()
    np.testing.assert_allclose(table["score"], scores[table["id"]], rtol=1e-5)
    with pytest.raises(ns.FileFormatError, match=r"p\.parquet has no column 'photo'; its columns: image, id\."):
        engines.score_pictures(tmp_path / "p.parquet", model, detector, tmp_path / "x", size=SIZE, column="photo")
    (tmp_path / "none").mkdir()
    with pytest.raises(ns.FileFormatError, match=r"none holds no picture; expected files that end in \.png"):
        engines.score_pictures(tmp_path / "none", model, detector, tmp_path / "x", size=SIZE)
    with pytest.raises(ns.InvalidInput, match="is there already"):
        engines.score_pictures(tmp_path / "in", model, detector, tmp_path / "out", size=SIZE)


def test_the_actor_takes_torch_models_and_names_what_is_missing(model: Path, detector: Any) -> None:
    from normscale.engines.pictures import PictureJob, PictureScorer

    batch = {"image": np.array([png(seed) for seed in range(3)], dtype=object), "id": np.arange(3)}
    job = PictureJob(str(model), detector, SIZE, "image", ("id",), None)
    found = PictureScorer(job)(batch)
    np.testing.assert_allclose(found["score"], wanted(detector, range(3)), rtol=1e-5)
    assert found["id"].tolist() == [0, 1, 2]
    torch = pytest.importorskip("torch")

    def network() -> Any:
        linear = torch.nn.Linear(60, 3, bias=False)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(WEIGHTS.T.copy()))
        return torch.nn.Sequential(torch.nn.Flatten(), linear)

    np.testing.assert_allclose(PictureScorer(job._replace(model=network))(batch)["score"], found["score"], rtol=1e-5)
    with pytest.raises(ns.InvalidInput, match="odin reads perturbed_logits, and the outputs of"):
        PictureScorer(job._replace(detector=ns.ODIN()))
    with pytest.raises(ns.FileFormatError, match="a picture of 4 bytes cannot be read"):
        decode(b"none", SIZE)
