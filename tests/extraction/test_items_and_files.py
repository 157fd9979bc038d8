"""Pictures and texts in folders and files, ONNX files, scikit-learn's classifiers, and what is wrong with them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from needed_extras import need
from normscale import FileFormatError, InvalidInput
from normscale.extraction import Preprocessing, extract
from normscale.extraction.items import open_items

torch.set_num_threads(1)
PLAIN = Preprocessing(8, mean=(0.5,), std=(0.25,))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)).eval()


def pixels(n: int = 9) -> Any:
    return np.random.default_rng(0).integers(0, 256, (n, 8, 8, 3), dtype=np.uint8)


def quiet(_: str) -> None:
    pass


def encoded(picture: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("kind", ("folder", "bytes", "struct", "shards", "npz", "npy"))
def test_every_place_of_pictures_gives_the_same(kind: str, tmp_path: Path) -> None:
    images, labels, path = pixels(), np.arange(9) % 4, tmp_path / "data"
    if kind == "folder":
        for i, image in enumerate(images):
            (path / "abcd"[labels[i]]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path / "abcd"[labels[i]] / f"{i}.png")
        images, labels = images[np.argsort(labels, kind="stable")], np.sort(labels)
    elif kind in ("npz", "npy"):
        path = tmp_path / f"data.{kind}"
        np.savez(path, images=images, labels=labels) if kind == "npz" else np.save(path, images)
    else:
        need("pyarrow")
        import pyarrow
        from pyarrow import parquet

        contents: list[Any] = [encoded(image) for image in images]
        if kind == "struct":
            contents = [{"bytes": content, "path": f"{i}.png"} for i, content in enumerate(contents)]
        table = pyarrow.table({"image": contents, "caption": ["x"] * 9, "label": labels})
        path = tmp_path / "data.parquet"
        if kind == "shards":
            path = tmp_path
            parquet.write_table(table[:4], tmp_path / "0.parquet", row_group_size=3)
            parquet.write_table(table[4:], tmp_path / "1.parquet", row_group_size=2)
        else:
            parquet.write_table(table, path, row_group_size=2)
        items = open_items(str(path))
        assert [item.label for item in items.between(3, 8)] == labels[3:8].tolist()  # across groups and files
    found = extract(network(), path, preprocess=PLAIN, batch_size=4, workers=3, say=quiet)
    expected = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        np.testing.assert_allclose(found.logits, network()((expected - 0.5) / 0.25).numpy(), atol=1e-5)
    assert (found.labels is None) == (kind == "npy")
    if found.labels is not None:
        assert found.labels.tolist() == labels.tolist()


def test_a_torn_picture_is_named_or_left_out(tmp_path: Path) -> None:
    for i, image in enumerate(pixels(5)):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    whole = extract(network(), tmp_path, preprocess=PLAIN)
    (tmp_path / "2.png").write_bytes((tmp_path / "2.png").read_bytes()[:60])
    with pytest.raises(FileFormatError, match=r"2\.png cannot be read as a picture.*on_invalid"):
        extract(network(), tmp_path, preprocess=PLAIN)
    said: list[str] = []
    rest = extract(network(), tmp_path, preprocess=PLAIN, on_invalid="skip", say=said.append)
    np.testing.assert_allclose(rest.logits, whole.logits[[0, 1, 3, 4]], atol=1e-6)
    assert len(said) == 1
    assert "left out" in said[0]
    assert "2.png" in said[0]


def test_places_that_cannot_be_used_are_explained(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed" / "a").mkdir(parents=True)
    for path in ("mixed/0.png", "mixed/a/0.png"):
        Image.fromarray(pixels(1)[0]).save(tmp_path / path)
    (tmp_path / "table.csv").write_text("a,b\n")
    np.savez(tmp_path / "float.npz", images=np.zeros((2, 3, 4, 4)))
    (tmp_path / "bad.npz").write_bytes(b"PK\3\4 no zip")
    (tmp_path / "none.txt").write_text("")
    for name, message in (
        ("empty", "holds no pictures"),
        ("mixed", "both pictures and folders of pictures"),
        ("table.csv", r"no folder of pictures and no \.parquet"),
        ("float.npz", "must hold images, uint8"),
        ("bad.npz", "not a readable"),
        ("none.txt", "holds no inputs"),
    ):
        with pytest.raises((InvalidInput, FileFormatError), match=message):
            extract(network(), tmp_path / name, preprocess=PLAIN)


def test_columns_are_named_where_there_is_a_choice(tmp_path: Path) -> None:
    need("pyarrow")
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "texts.parquet"
    parquet.write_table(pyarrow.table({"question": ["a", "b"], "answer": ["c", "d"], "topic": [1, 0]}), path)
    with pytest.raises(InvalidInput, match=r"which column holds the inputs\? It has question \(texts\), answer"):
        open_items(str(path))
    with pytest.raises(InvalidInput, match="no column 'topic' of pictures or texts"):
        open_items(str(path), column="topic")
    with pytest.raises(InvalidInput, match="label column 'answer' must hold whole numbers"):
        open_items(str(path), column="question", label="answer")
    items = open_items(str(path), column="answer", label="topic")
    assert items.texts
    assert [(item.content, item.label) for item in items.between(0, 9)] == [("c", 1), ("d", 0)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch's exporter
def test_an_onnx_file_gives_what_torch_gives(tmp_path: Path) -> None:
    need("onnx", "onnxruntime", "onnxscript")
    import onnx

    model, path, images = network(), tmp_path / "net.onnx", torch.randn(5, 3, 8, 8)
    torch.onnx.export(model, (images,), path, dynamic_shapes=({0: torch.export.Dim("n")},), verbose=False)
    said: list[str] = []
    ours, theirs = extract(str(path), (images.numpy(), np.arange(5) % 4), say=said.append), extract(model, images)
    for name in ("logits", "features"):
        np.testing.assert_allclose(ours.array(name), theirs.array(name), rtol=1e-4, atol=1e-5)
    assert ours.head is not None
    assert theirs.head is not None
    np.testing.assert_allclose(ours.head.weight, theirs.head.weight, rtol=1e-6)
    np.testing.assert_allclose(ours.head.bias, theirs.head.bias, rtol=1e-6)
    assert ours.labels is not None
    assert said == []
    ended = onnx.load(path)
    (output,) = ended.graph.output
    ended.graph.node.append(onnx.helper.make_node("Softmax", [output.name], ["probabilities"], axis=1))
    output.name = "probabilities"
    onnx.save(ended, tmp_path / "ended.onnx")
    before = extract(str(tmp_path / "ended.onnx"), images.numpy(), say=said.append)
    for name in ("logits", "features"):
        np.testing.assert_array_equal(before.array(name), ours.array(name))
    assert any("comes out of a softmax" in text for text in said)
    apart = tmp_path / "apart.onnx"
    onnx.save_model(onnx.load(path), apart, save_as_external_data=True, size_threshold=0, location="apart.data")
    again = extract(str(apart), images.numpy(), say=said.append)
    np.testing.assert_array_equal(again.features, ours.features)
    assert again.head is not None
    assert again.head.equals(ours.head)
    with pytest.raises(InvalidInput, match="the model fails on inputs"):
        extract(str(path), np.zeros((2, 5, 8, 8), np.float32))
    with pytest.raises(InvalidInput, match="the model has no tensor 'nothing'"):
        extract(str(path), images.numpy(), layers=["nothing"])


def test_a_product_and_a_sum_are_a_head_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("onnx", "onnxruntime")
    import onnx

    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[n, 3] x) => (float[n, 2] z) { h = Relu(x)  p = MatMul(h, w)  z = Add(p, b) }""")
    weights = {"w": np.array([[1, 2], [3, 4], [5, 6]], np.float32), "b": np.array([0.5, -0.5], np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in weights.items())
    onnx.save(model, tmp_path / "net.onnx")
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(InvalidInput, match="this onnxruntime cannot run on the device 'cuda'"):
        extract(str(tmp_path / "net.onnx"), np.array([[1, -1, 2]], np.float32), device="cuda")
    found = extract(str(tmp_path / "net.onnx"), np.array([[1, -1, 2]], np.float32), layers=["p"])
    assert found.features.tolist() == [[1, 0, 2]]
    assert found.p.tolist() == [[11, 14]]
    assert found.head is not None
    np.testing.assert_array_equal(found.head.logits(found.features), found.logits)


def test_a_batch_that_is_too_large_is_halved() -> None:
    class Greedy(nn.Linear):
        sizes: list[int] = []  # noqa: RUF012

        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 3:
                raise torch.OutOfMemoryError("out of memory")
            self.sizes.append(len(x))
            return super().forward(x)

    model, rows, said = Greedy(3, 2), torch.randn(10, 3), list[str]()
    found = extract(model, rows, batch_size=8, say=said.append)
    with torch.no_grad():
        np.testing.assert_allclose(
            found.logits, nn.functional.linear(rows, model.weight, model.bias).numpy(), atol=1e-6
        )
    assert Greedy.sizes[1:] == [2, 2, 2, 2, 2]  # after the look at two inputs
    assert ["too many for the memory of cpu; going on with 4" in said[0], "going on with 2" in said[1]] == [True, True]


def test_linear_classifiers_of_scikit_learn_have_features_and_a_head() -> None:
    need("sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = np.random.default_rng(0).normal(size=(60, 4))
    for n_classes in (2, 3):
        names = np.array(["cat", "dog", "owl"])[np.argsort(np.argsort(rows[:, 0])) * n_classes // 60]
        model = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, names)
        found = extract(model, (rows, names))
        assert found.head is not None
        np.testing.assert_allclose(found.head.logits(found.features), found.logits, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.features, model[:-1].transform(rows), rtol=1e-6, atol=1e-6)
        assert found.accuracy == model.score(rows, names)
    assert extract(GaussianNB().fit(rows, names), rows).names == ("logits",)
    assert set(extract(model, (rows, names), ood=True).labels.tolist()) == {-1}  # type: ignore[union-attr]


def test_texts_in_a_file_are_read_by_a_classifier_of_scikit_learn(tmp_path: Path) -> None:
    need("sklearn")
    (tmp_path / "net.py").write_text(
        "from sklearn.feature_extraction.text import TfidfVectorizer\n"
        "from sklearn.linear_model import LogisticRegression\n"
        "from sklearn.pipeline import make_pipeline\n"
        "net = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(['a cat', 'a dog', 'an owl'], [0, 1, 2])\n"
    )
    (tmp_path / "texts.txt").write_text("the cat\nthe owl")
    found = extract(f"{tmp_path}/net.py:net", tmp_path / "texts.txt")
    assert (found.predicted.tolist(), found.labels) == ([0, 2], None)
    assert extract(f"{tmp_path}/net.py:net", (["a dog", "cat"], [1, 0])).accuracy == 1.0
    assert extract(f"{tmp_path}/net.py:net", ["a dog"], features=False).names == ("logits",)


def test_a_tensor_data_set_without_labels_comes_in_batches() -> None:
    from torch.utils.data import TensorDataset

    sizes: list[int] = []
    model = network()
    model.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    extract(model, TensorDataset(torch.randn(9, 3, 8, 8)), batch_size=4)
    assert sizes == [2, 4, 4, 1]  # after the look at two inputs
