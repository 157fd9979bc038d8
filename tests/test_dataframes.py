"""DataFrames by their columns: with stand-ins, for neither package is needed, and with the real ones where they are."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

import normscale as ns
from normscale.dataframes import flat_records, read_dataframe
from normscale.outputs import is_dataframe


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


@pytest.mark.parametrize("intervals", [None, "delong"])
def test_one_result_is_one_record(intervals: Literal["delong"] | None) -> None:
    sample = ns.load_sample()
    scores = [ns.MSP().score(side) for side in (sample.test, sample.ood["uniform_noise"])]
    found = ns.evaluate(scores[0], scores[1], intervals=intervals)
    (record,) = flat_records(found)
    assert (record["auroc"], record["n_id"]) == (found.auroc, 362)
    if found.intervals is not None:
        assert record["intervals_auroc_low"] == found.intervals.auroc.low
    assert flat_records([found]) == [record]
    assert flat_records({"auroc": 0.5}) == [{"auroc": 0.5}]
    pandas = pytest.importorskip("pandas")
    frame = ns.to_dataframe(found)
    assert isinstance(frame, pandas.DataFrame)
    assert frame["auroc"].tolist() == [found.auroc]


def test_compare_takes_frames_arrays_mappings_and_names() -> None:
    sample = ns.load_sample()
    near = sample.ood["unseen_digits"]

    def plain(outputs: ns.ModelOutputs) -> Any:
        return np.asarray(outputs.logits)

    def aurocs(*sides: Any, **more: Any) -> list[tuple[str, str, float]]:
        rows = ns.compare(sides[1], {"near": sides[2]}, train=sides[0], **more)
        return [(row.method, row.setting, row.auroc) for row in rows]

    logits = [side.only("logits") for side in (sample.train, sample.test, near)]
    expected = aurocs(*logits, detectors=[ns.MSP(), ns.NormScaling()])
    names = ["msp", "norm_scaling"]
    assert aurocs(*logits, detectors=names) == expected
    assert aurocs(*map(plain, logits), detectors=names) == expected
    assert aurocs(*({"logits": plain(side)} for side in logits), detectors=names) == expected
    train, test, ood = (frame_of(side, "abcdefgh", prefix="logit_") for side in logits)
    assert aurocs(train, test, ood, detectors=names) == expected
    turned = [reversed_frame(side, "abcdefgh") for side in logits[1:]]
    assert aurocs(train, *turned, detectors=names) == expected
    fitted = ns.NormScaling().fit(train)
    assert aurocs(None, *turned, detectors=["msp", fitted]) == expected
    assert aurocs(*logits, detectors="msp") == expected[:1]
    with pytest.raises(ns.UnknownDetector):
        aurocs(*logits, detectors=["mps"])


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
    test, noise = (torch.tensor(np.asarray(side.logits)) for side in (sample.test, sample.ood["uniform_noise"]))
    (row,) = ns.compare(test, {"noise": noise}, detectors=["energy"])
    assert row.auroc == ns.evaluate(detector.score(test), detector.score(noise)).auroc


def test_a_second_fit_forgets_the_names_of_the_first() -> None:
    pd = pytest.importorskip("pandas")
    rows = np.random.default_rng(0).normal(size=(50, 3)) * [1.0, 2.0, 3.0]
    frame = pd.DataFrame(rows, columns=["a", "b", "c"])
    detector = ns.NormScaling().fit(frame)
    assert detector.class_names == ("a", "b", "c")
    assert detector.fit(rows[:, [2, 0, 1]]).class_names is None
    assert ns.NormScaling().fit(frame).fit(np.hstack([rows, rows])).class_names is None


def test_a_label_that_is_missing_is_not_known() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [0.0, 1.0], "label": pd.array([1, None], dtype="Int64")})
    np.testing.assert_array_equal(ns.Energy().score(frame), ns.Energy().score([[1.0, 0.0], [2.0, 1.0]]))


def test_a_dataframe_inside_outputs_or_a_mapping_is_refused() -> None:
    """There its columns would be taken in their own order, in silence."""
    frame: Any = Frame(ant=np.ones(5), bee=np.zeros(5))
    for make in (lambda: ns.ModelOutputs(frame), lambda: ns.NormScaling().fit({"logits": frame})):
        with pytest.raises(ns.InvalidInput, match=r"logits is a DataFrame, .* fit\(frame\)"):
            make()
