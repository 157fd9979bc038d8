"""CSV: headers, separators, the two parsers' agreement, and lines to blame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normscale.errors import FileFormatError
from normscale.rows import open_table, read_table
from normscale.rows import streams as line_blocks
from normscale.rows.formats import delimited

PARSERS = ["arrow", "slow"]


def use(monkeypatch: pytest.MonkeyPatch, parser: str) -> None:
    """Let one parser do all the work, whatever the size of the text."""
    if parser == "arrow":
        pytest.importorskip("pyarrow")
        monkeypatch.setattr(delimited, "_ARROW_PAYS", 0)
    else:
        monkeypatch.setattr(delimited, "has_arrow", lambda: False)


@pytest.fixture(params=PARSERS)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use(monkeypatch, request.param)
    name: str = request.param
    return name


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "1,2,3\n4,5,6\n",
        "1,2,3\n4,5,6",  # the last line break is missing
        "1,2,3\r\n4,5,6\r\n",
        "\n\n1,2,3\n\n   \n4,5,6\n\n",
        "1\t2\t3\n4\t5\t6\n",
        "1;2;3\n4;5;6\n",
        " 1 , 2,3\n4,+5 , 6.0\n",
        '"1","2","3"\n"4",5,6\n',
        "cat,dog,bird\n1,2,3\n4,5,6\n",
        '"cat, tabby","dog; big",bird\n1,2,3\n4,5,6\n',
        "0,1,2\n1,2,3\n4,5,6\n",  # what pandas writes above a matrix
        "\ufeff1,2,3\n4,5,6\n",
        "\ufeffcat,dog,bird\n1,2,3\n4,5,6\n",
        "\ncat,dog,bird\n1,2,3\n4,5,6\n",
        "id,logit_a,logit_b,logit_c\nx,1,2,3\n'y',4,5,6\n",
        'id,logit_a,logit_b,logit_c\n"x, y",1,2,3\n,4,5,6\n',
    ],
)
def test_spellings_of_one_table(tmp_path: Path, parser: str, text: str) -> None:
    read = read_table(written(tmp_path, text))
    np.testing.assert_array_equal(read.logits, [[1, 2, 3], [4, 5, 6]])
    assert read.labels is None


def test_columns_are_found_by_name(tmp_path: Path, parser: str) -> None:
    text = "when,feature_0,logit_cat,label,logit_dog,feature_1\n09:00,1,2,0,3,4\n09:01,5,6,-1,7,8\n"
    table = open_table(written(tmp_path, text))
    assert table.class_names == ("cat", "dog")
    read = table.read()
    assert read.features is not None
    assert read.labels is not None
    np.testing.assert_array_equal(read.logits, [[2, 3], [6, 7]])
    np.testing.assert_array_equal(read.features, [[1, 4], [5, 8]])
    assert read.labels.tolist() == [0, -1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n4,5\n", r"a\.csv, line 2: expected 3 fields, got 2"),
        ("1,2,3\n\n4,5,6\n7,8,9,10\n", "line 4: expected 3 fields, got 4"),
        ("a,b\n1,2\n3,oops\n", r"line 3: expected a number in column 1 \('b'\), got 'oops'"),
        ("a,b\n1,2\n3,\n", "line 3: .* got an empty field"),
        ("a,b\n1,2\n3,1_000\n", "line 3: .* got '1_000'"),
        ("a,b\n1,2\n3,nan(4)\n", "line 3: .* got 'nan\\(4\\)'"),
        ("a,b\n1,2\n3,NA\n", "line 3: .* got 'NA'"),
        ("\n\na,b\n1,2\nx,3\n", "line 5: .* column 0"),
        ("id,logit_a,logit_b\nx,1,2\ny,3\n", "line 3: expected 3 fields, got 2"),
        ("1;2\n1,5;2\n", "line 2: .* got '1,5'"),
        ("a,b\n1,2\n3,\u0664\n", "line 3"),
        ("a,b\n1,2\r3,4\n", "line 2: a carriage return stands alone"),
    ],
)
def test_the_line_to_blame_is_named(tmp_path: Path, parser: str, text: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        read_table(written(tmp_path, text))


def test_line_numbers_count_across_blocks(tmp_path: Path, parser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "_BLOCK_BYTES", 64)
    lines = ["cat,dog", *(f"{i},{i / 7}" for i in range(500))]
    np.testing.assert_array_equal(
        read_table(written(tmp_path, "\n".join(lines))).logits, [[i, i / 7] for i in range(500)]
    )
    lines[321] += ",1"
    with pytest.raises(FileFormatError, match="line 322: expected 2 fields, got 3"):
        read_table(written(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a .csv file"),
        ("\n \n\n", "no line with anything on it"),
        ("1\n2\n", "at least two numbers"),
        ("cat\n1\n", "at least two columns of logits; got 1"),
        ("logit_a,b,c\n1,2,3\n", "at least two columns of logits; got 1 among the columns 'logit_a', 'b', 'c'"),
        (",0,1\n0,3,4\n", "column 0, without a name, looks like row numbers.*index=False"),
        ("id,cat,dog\n0,3,4\n", "column 0, named 'id', looks like row numbers.*score --keep-columns id"),
        ("a,b,label,labels\n1,2,0,1\n", "2 label columns"),
        ("a,b,a\n1,2,3\n", "two columns of logits named 'a'"),
        (b"a,b\0\n1,2\n", "not text"),
        ("1,2\r3,4\r", "carriage return"),
        (b"\xff\xfea,b\n1,2\n", "not UTF-8 text"),
    ],
)
def test_unusable_heads(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        open_table(written(tmp_path, text))


def test_no_endless_search_for_a_first_line(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="first line is too long"):
        open_table(written(tmp_path, b"1" * (17 << 20)))


number = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.floats(width=32).map(lambda x: f"{x:.6g}"),
    st.integers(-(10**20), 10**20).map(str),
    st.from_regex(r"[+-]?[0-9]{1,25}\.[0-9]{0,25}([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(["inf", "-Infinity", "NaN", "1e400", "-1e-400", "4.9e-324", "2.2250738585072011e-308", ".5"]),
)


@given(rows=st.lists(st.tuples(number, number, number), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parsers_agree_to_the_bit(tmp_path: Path, rows: list[tuple[str, str, str]]) -> None:
    path = written(tmp_path, "logit_x,logit_y,logit_z\n" + "\n".join(map(",".join, rows)) + "\n")
    results = []
    for parser in PARSERS:
        with pytest.MonkeyPatch.context() as patch:
            use(patch, parser)
            results.append(read_table(path).logits)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
        np.testing.assert_array_equal(np.signbit(results[0]), np.signbit(other))


@given(text=st.text(alphabet="019.,-+e \n\r\t\";nax_()'é", max_size=40))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parsers_agree_on_nonsense(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, "1.5,2.5\n" + text)
    results: list[Any] = []
    for parser in PARSERS:
        with pytest.MonkeyPatch.context() as patch:
            use(patch, parser)
            try:
                results.append(read_table(path).logits.tobytes())
            except FileFormatError as error:
                results.append(str(error))
    assert results[0] == results[1]


def test_arrow_is_imported_only_where_it_pays(tmp_path: Path) -> None:
    import subprocess
    import sys

    path = written(tmp_path, "1,2\n3,4\n")
    code = (
        f"import sys; from normscale.rows import read_table; read_table({str(path)!r}); "
        "assert not any(name.startswith('pyarrow') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("0,1\n1.5,2\n3,4\n", [[1.5, 2.0], [3.0, 4.0]]),
        ("0,1\n3,4\n", [[0.0, 1.0], [3.0, 4.0]]),
        ("0,1\n-3,4\n0.5,1\n", [[0.0, 1.0], [-3.0, 4.0], [0.5, 1.0]]),
        ("0,1,2\n3,4,5\n", [[3.0, 4.0, 5.0]]),
    ],
)
def test_columns_that_are_numbered_from_0_have_a_header(tmp_path: Path, text: str, rows: list[list[float]]) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert read_table(tmp_path / "t.csv").logits.tolist() == rows


def test_a_quote_that_is_never_closed_ends_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,b,size\n1.5,2,"5 inch\n3,4,6 inch\n5,6,7\n')
    reader = open_table(tmp_path / "t.csv", keep=["size"])
    kept = [columns["size"].tolist() for _, columns, _ in reader.blocks()]
    assert kept == [["5 inch", "6 inch", "7"]]


def test_a_quote_ends_with_its_line(tmp_path: Path, parser: str) -> None:
    lines = [f'{i}.5,2,"{i} inch' if i in (3, 7) else f"{i}.5,2,{i}" for i in range(10)]
    path = written(tmp_path, "logit_a,logit_b,id\n" + "\n\n".join(lines) + "\n")
    ((chunk, kept, _),) = open_table(path, keep=["id"]).blocks()
    assert chunk.logits[:, 0].tolist() == [i + 0.5 for i in range(10)]
    assert kept["id"].tolist() == [f"{i} inch" if i in (3, 7) else str(i) for i in range(10)]
    path = written(tmp_path, 'logit_a,logit_b,id\n1,2,"a\nb"\n')
    with pytest.raises(FileFormatError, match="line 3: expected 3 fields, got 1"):
        read_table(path)
