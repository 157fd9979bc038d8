from __future__ import annotations

import copy
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscale.errors import InvalidInput, MissingOutput
from normscale.outputs import ModelOutputs, as_outputs


def make(n: int = 6, n_classes: int = 3, n_features: int = 2, seed: int = 0) -> ModelOutputs:
    rng = np.random.default_rng(seed)
    return ModelOutputs(
        rng.normal(size=(n, n_classes)).astype(np.float32),
        rng.normal(size=(n, n_features)).astype(np.float16),
        rng.integers(0, n_classes, n),
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_logits_keep_their_dtype_and_memory(dtype: Any) -> None:
    logits, features = np.zeros((4, 3), dtype), np.zeros((4, 2), dtype)
    outputs = ModelOutputs(logits, features)
    assert outputs.logits is logits
    assert outputs.features is features


def test_labels_become_int64_and_minus_one_means_unknown() -> None:
    outputs = ModelOutputs(np.eye(4), labels=np.array([0, -1, 2, 0], np.int8))
    assert outputs.labels is not None
    assert outputs.labels.dtype == np.int64
    assert outputs.labels.tolist() == [0, -1, 2, 0]
    assert outputs.accuracy == pytest.approx(2 / 3)  # the unknown one does not count
    assert ModelOutputs(np.eye(2), labels=np.array([1.0, -1.0])).labels is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logits": [1.0, 2.0]}, r"logits must have shape \(n, n_classes\)"),
        ({"logits": [[1.0], [2.0]]}, "n_classes >= 2"),
        ({"logits": np.eye(3), "features": np.zeros(3)}, r"features must have shape \(n, n_columns\)"),
        ({"logits": np.eye(3), "features": np.zeros((2, 5))}, r"features must have one row per row of logits \(3\)"),
        ({"logits": np.eye(3), "labels": [0, 1]}, r"labels must have one entry per row \(3\); got 2"),
        ({"logits": np.eye(3), "labels": [0, 1, 3]}, r"labels\[2\] is 3; class numbers must be from 0 to 2"),
        ({"logits": np.eye(3), "labels": [0, -1, -2]}, r"labels\[2\] is -2"),
        ({"logits": np.eye(3), "labels": [0, 0.5, 1]}, "whole class numbers"),
        ({"logits": np.eye(3), "labels": [[0], [1], [2]]}, r"labels must have shape \(n,\)"),
        ({"logits": [["a", "b"]]}, "must hold real numbers"),
    ],
)
def test_refusals_name_the_rule(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ModelOutputs(**arguments)


def test_nan_is_not_looked_for_here() -> None:
    assert len(ModelOutputs([[np.nan, 0.0]])) == 1


def test_record_is_frozen() -> None:
    outputs = make()
    with pytest.raises(AttributeError, match="frozen"):
        outputs.logits = np.zeros((1, 2))  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del outputs.labels
    with pytest.raises(AttributeError):
        outputs.colour = "red"


def test_rows_are_selected_from_all_three_arrays() -> None:
    outputs = make()
    assert outputs.labels is not None
    mask = outputs.predicted == outputs.predicted[0]
    for selection in (slice(1, 5, 2), mask, np.array([5, 0, 0]), [3, -1], -2):
        part = outputs[selection]
        rows = [selection] if isinstance(selection, int) else selection
        np.testing.assert_array_equal(part.logits, outputs.logits[rows])
        assert part.features is not None
        assert part.labels is not None
        np.testing.assert_array_equal(part.features, outputs.features[rows])
        np.testing.assert_array_equal(part.labels, outputs.labels[rows])
    assert np.shares_memory(outputs[1:3].logits, outputs.logits)
    assert len(outputs[[]]) == 0
    assert [len(row) for row in outputs] == [1] * 6


def test_bad_selections_are_refused() -> None:
    outputs = make()
    with pytest.raises(InvalidInput, match=r"mask must have one entry per row \(6\); got 5"):
        outputs[np.ones(5, bool)]
    with pytest.raises(InvalidInput, match="whole numbers"):
        outputs[np.array([0.5])]
    with pytest.raises(IndexError, match="row 6 is out of range"):
        outputs[6]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_concatenate_undoes_slicing(lengths: list[int]) -> None:
    outputs = make(sum(lengths))
    edges = np.cumsum([0, *lengths])
    again = ModelOutputs.concatenate(outputs[a:b] for a, b in pairwise(edges))
    np.testing.assert_array_equal(again.logits, outputs.logits)
    np.testing.assert_array_equal(again.features, outputs.features)
    np.testing.assert_array_equal(again.labels, outputs.labels)
    assert again.logits.dtype == np.float32


def test_concatenate_marks_missing_labels_and_refuses_what_does_not_fit() -> None:
    known, unknown = ModelOutputs(np.eye(3), labels=[0, 1, 2]), ModelOutputs(np.eye(3))
    joined = ModelOutputs.concatenate([known, unknown])
    assert joined.labels is not None
    assert joined.labels.tolist() == [0, 1, 2, -1, -1, -1]
    assert ModelOutputs.concatenate([unknown, unknown]).labels is None
    with pytest.raises(InvalidInput, match="same number of logits; got 3 and 2"):
        ModelOutputs.concatenate([known, ModelOutputs(np.eye(2))])
    with pytest.raises(InvalidInput, match="same arrays; got logits and logits, features"):
        ModelOutputs.concatenate([known, ModelOutputs(np.eye(3), np.eye(3))])
    with pytest.raises(InvalidInput, match="at least one"):
        ModelOutputs.concatenate([])


def test_predicted_takes_the_first_of_equals() -> None:
    outputs = ModelOutputs([[1, 1, 0], [0, 2, 2]])
    assert outputs.predicted.tolist() == [0, 1]
    assert outputs.predicted.dtype == np.int64


def test_accuracy_needs_a_known_label() -> None:
    with pytest.raises(InvalidInput, match="needs labels"):
        _ = ModelOutputs(np.eye(2)).accuracy
    with pytest.raises(InvalidInput, match="at least one known label"):
        _ = ModelOutputs(np.eye(2), labels=[-1, -1]).accuracy


def test_copies_and_travels_between_processes() -> None:
    outputs = make()
    for again in (copy.deepcopy(outputs), pickle.loads(pickle.dumps(outputs))):  # noqa: S301
        np.testing.assert_array_equal(again.logits, outputs.logits)
        np.testing.assert_array_equal(again.labels, outputs.labels)


def test_as_outputs_takes_records_arrays_and_mappings() -> None:
    outputs = make()
    assert as_outputs(outputs) is outputs
    assert as_outputs(outputs.logits).logits is outputs.logits
    assert as_outputs([[1.0, 2.0]]).n_classes == 2
    assert as_outputs([[1.0]], "embedding").names == ("embedding",)
    mapped = as_outputs({"logits": outputs.logits, "labels": outputs.labels, "scores": np.ones((6, 1))})
    assert mapped.names == ("logits", "scores")
    np.testing.assert_array_equal(mapped.labels, outputs.labels)
    with pytest.raises(InvalidInput, match="extra must have shape"):
        as_outputs({"logits": np.eye(2), "extra": 1})
    with pytest.raises(InvalidInput, match=r"arrays by name; got the keys 'logits', 3"):
        as_outputs({"logits": np.eye(2), 3: np.eye(2)})


def test_any_arrays_by_name_and_none_compulsory() -> None:
    layer3, embedding = np.ones((4, 7), np.float16), np.zeros((4, 1))
    outputs = ModelOutputs(layer3=layer3, embedding=embedding)
    assert outputs.names == ("layer3", "embedding")
    assert outputs.layer3 is outputs.array("layer3") is outputs.get("layer3") is layer3
    assert outputs.get("logits") is None
    assert len(outputs) == 4
    assert repr(outputs) == "ModelOutputs(n=4, layer3=7, embedding=1)"
    assert not hasattr(outputs, "logits")
    for name in ("logits", "features", "n_classes", "predicted", "layer4"):
        with pytest.raises(MissingOutput, match=r"these outputs have no \w+; they have layer3, embedding"):
            getattr(outputs, name)
    with pytest.raises(InvalidInput, match="at least one array"):
        ModelOutputs(labels=[0, 1])


@pytest.mark.parametrize("name", ("a b", "1st", "_hidden", "names", "replace", "class-3", "array", ""))
def test_names_that_cannot_be_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="an array's name is a word"):
        ModelOutputs(**{name: np.eye(2)})


def test_the_head_makes_logits_of_features_and_must_fit() -> None:
    rng = np.random.default_rng(0)
    features, weight, bias = rng.normal(size=(5, 3)), rng.normal(size=(2, 3)), rng.normal(size=2)
    outputs = ModelOutputs(features=features, head=(weight, bias), labels=[0, 1, 1, 0, -1])
    assert outputs.head is not None
    assert outputs.n_classes == 2
    expected = [[sum(w * f for w, f in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
                for x in features]  # fmt: skip
    np.testing.assert_allclose(outputs.head.logits(features), expected, rtol=1e-12)
    assert outputs[1:3].head is outputs.head
    whole = ModelOutputs(features=np.eye(2), head=(np.eye(2, dtype=int), [0.5, 1.5])).head
    assert whole is not None
    assert whole.bias.tolist() == [0.5, 1.5]
    for head, message in (
        ((weight[:, :2], bias), "a column for each of 3 features"),
        ((weight, bias[:1]), "one number for each of 2 classes"),
        ((weight * np.nan, bias), "finite numbers"),
        (weight[0], "must be a pair|head weight"),
    ):
        with pytest.raises(InvalidInput, match=message):
            ModelOutputs(features=features, head=head)
    with pytest.raises(InvalidInput, match="head has 2 classes and logits have 3"):
        ModelOutputs(np.zeros((5, 3)), features, head=(weight, bias))
    with pytest.raises(InvalidInput, match=r"labels\[0\] is 2"):
        ModelOutputs(features=features, head=(weight, bias), labels=[2, 0, 0, 0, 0])
    with pytest.raises(InvalidInput, match="the same head"):
        ModelOutputs.concatenate([outputs, outputs.replace(head=(2 * weight, bias))])


@given(st.permutations(["logits", "features", "layer3", "embedding"]), st.lists(st.integers(0, 9), min_size=1))
def test_selecting_and_concatenating_keep_every_array(names: list[str], rows: list[int]) -> None:
    rng = np.random.default_rng(1)
    arrays = {name: rng.normal(size=(10, 2 + i)) for i, name in enumerate(names)}
    outputs = ModelOutputs(**arrays, labels=rng.integers(0, 2, 10))
    some = ModelOutputs.concatenate([outputs[rows], outputs[:0], outputs[rows[::-1]]])
    for name, array in arrays.items():
        np.testing.assert_array_equal(some.array(name), array[rows + rows[::-1]])
    assert set(outputs.only(*names[:2]).names) == set(names[:2])
    assert outputs.replace(**{names[0]: None}).get(names[0]) is None
