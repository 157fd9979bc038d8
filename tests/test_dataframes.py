"""DataFrames by their columns: with stand-ins, for neither package is needed, and with the real ones where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.dataframes import flat_records, is_dataframe, read_dataframe


class Frame:
    """What pandas and polars have in common, as far as it is used."""

    def __init__(self, **columns: Any) -> None:
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]


def frame_of(outputs: ns.ModelOutputs, names: str, make: Any = Frame, prefix: str = "") -> Any:
    columns: dict[str, Any] = {prefix + name: outputs.logits[:, i] for i, name in enumerate(names)}
    return make(**columns)


def reversed_frame(outputs: ns.ModelOutputs, names: str) -> Any:
    return Frame(**{names[i]: outputs.logits[:, i] for i in reversed(range(len(names)))}, extra=np.zeros(len(outputs)))


def test_columns_of_a_frame_are_matched_by_the_names_of_fit() -> None:
    sample = ns.load_sample()
    plain = ns.NormScaling().fit(sample.train)
    detector = ns.NormScaling().fit(frame_of(sample.train, "abcdefgh", prefix="logit_"))
    assert detector.class_names == tuple("abcdefgh")
    expected = plain.score(sample.test)
    assert np.array_equal(detector.score(frame_of(sample.test, "abcdefgh")), expected)
    assert np.array_equal(detector.score(reversed_frame(sample.test, "abcdefgh")), expected)
    assert np.array_equal(detector.score(sample.test.logits), expected)
    with pytest.raises(ns.InvalidInput, match=r"the DataFrame has no column of logits for 'h'; .* it has 'z' instead"):
        detector.score(frame_of(sample.test, "abcdefgz"))


def test_what_else_a_frame_may_hold() -> None:
    frame = Frame(
        when=np.array(["monday", "tuesday"]), logit_a=[1, 2], feature_0=[0.5, 0.25], logit_b=[3.0, None], label=[1, 0]
    )
    outputs, names = read_dataframe(frame)
    assert (repr(outputs), names) == ("ModelOutputs(n=2, logits=2, features=1, labels)", ("a", "b"))
    assert np.isnan(outputs.logits[1, 1])
    bare, names = read_dataframe(Frame(x=[1.0], y_0=[2.0], label=[1]), "features")
    assert (repr(bare), names) == ("ModelOutputs(n=1, features=2, labels)", None)
    with pytest.raises(ns.InvalidInput, match="column 'when' does not hold numbers"):
        read_dataframe(Frame(when=np.array(["monday"]), a=[1.0], b=[2.0]))
    with pytest.raises(ns.FileFormatError, match="'target', looks like labels"):
        read_dataframe(Frame(a=[1.0], b=[2.0], target=[1]))
    assert not is_dataframe(np.zeros((2, 2)))
    assert not is_dataframe({"logits": 1})


def test_results_are_flat_records() -> None:
    sample = ns.load_sample()
    rows = ns.compare(sample.test, {"noise": sample.ood["uniform_noise"]}, detectors=[ns.MSP(), ns.Energy()])
    (first, _) = flat_records(rows)
    assert (first["method"], first["auroc"], first["n_ood"]) == ("msp", rows[0].auroc, 400)
    assert first["temperature"] == rows[0].parameters["temperature"] if rows[0].parameters else True
    with pytest.raises(ns.InvalidInput, match="got float"):
        flat_records([1.0])


def test_without_pandas_the_way_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ns.MissingExtra, match="pip install pandas"):
        ns.to_dataframe([{"a": 1}])


def test_real_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    sample = ns.load_sample()
    frame = pandas.DataFrame(sample.train.logits, columns=list("abcdefgh"))
    detector = ns.NormScaling().fit(frame)
    test = pandas.DataFrame(sample.test.logits, columns=list("abcdefgh"))
    assert np.array_equal(detector.score(test[list("hgfedcba")]), detector.score(sample.test))
    rows = ns.compare(sample.test, {"noise": sample.ood["uniform_noise"]}, detectors=[ns.MSP()])
    assert ns.to_dataframe(rows)["auroc"].tolist() == [rows[0].auroc]


def test_real_polars() -> None:
    polars = pytest.importorskip("polars")
    sample = ns.load_sample()
    detector = ns.NormScaling().fit(polars.DataFrame(sample.train.logits, schema=list("abcdefgh")))
    test = polars.DataFrame(sample.test.logits, schema=list("abcdefgh"))
    assert np.array_equal(detector.score(test.select(list("hgfedcba"))), detector.score(sample.test))


def test_torch_tensors_come_in() -> None:
    torch = pytest.importorskip("torch")
    sample = ns.load_sample()
    detector = ns.Energy().fit(torch.tensor(np.asarray(sample.train.logits)))
    assert np.array_equal(detector.score(torch.tensor(np.asarray(sample.test.logits))), detector.score(sample.test))
