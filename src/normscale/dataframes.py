"""DataFrames of pandas or polars and tables of pyarrow: outputs come in, result tables go out.

None of these packages is imported to read one.

Columns mean what they mean in files, see :mod:`normscale.rows.columns`: ``logit_<class>`` or all columns of numbers,
``feature_...``, ``label``. Columns of texts and dates are left out where the logits are marked by ``logit_``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from normscale._validate import Rows
from normscale.errors import InvalidInput, MissingExtra
from normscale.outputs import FEATURES, LABEL_NAMES, LOGITS, ModelOutputs, column_names
from normscale.rows.columns import FEATURE, LOGIT, ColumnLayout, class_order, in_class_order, label_numbers

if TYPE_CHECKING:
    import pandas


DataFrameOutputs: TypeAlias = tuple[ModelOutputs, tuple[str, ...] | None]
"""What a DataFrame holds, and the names of its classes."""


def read_dataframe(frame: Any, array: str = LOGITS, class_names: Sequence[str] | None = None) -> DataFrameOutputs:
    """Read the outputs in a DataFrame of pandas or polars, or a Table of pyarrow.

    Columns without a mark are taken as ``array``. Columns of logits are matched by ``class_names``; without a column
    for one of them the frame is refused. So are labels that are texts, where the columns have no names of classes.

    Examples
    --------
    >>> class Frame(dict):                              # stands for a DataFrame
    ...     columns = property(lambda self: list(self))
    >>> outputs, names = read_dataframe(Frame(logit_dog=[1.0, 2.0], logit_cat=[3.0, 4.0]), class_names=["cat", "dog"])
    >>> outputs.logits.tolist(), names
    ([[3.0, 1.0], [4.0, 2.0]], ('cat', 'dog'))
    """
    columns = column_names(frame)
    names = [str(column) for column in columns]
    marked = any(name.startswith((LOGIT, FEATURE)) for name in names)
    if array != LOGITS and not marked:
        wanted = [i for i, name in enumerate(names) if name.lower() not in LABEL_NAMES]
        rows = _matrix(frame, columns, wanted)
        return ModelOutputs(labels=_labels(frame, columns, names, class_names), **{array: rows}), None
    has_logits = array == LOGITS or any(name.startswith(LOGIT) for name in names)
    layout = ColumnLayout("the DataFrame", names, beside_lists=not has_logits)
    arrays = {LOGITS: layout.logits, FEATURES: layout.features}
    matrices = {name: _matrix(frame, columns, places) for name, places in arrays.items() if places}
    labels = _labels(frame, columns, names, layout.class_names or class_names)
    outputs = ModelOutputs(labels=labels, **matrices)
    order = class_order(class_names, layout.class_names, "the DataFrame")
    if order is None or layout.class_names is None:
        return outputs, layout.class_names
    return in_class_order(outputs, order), tuple(layout.class_names[i] for i in order)


def to_dataframe(rows: Iterable[Any] | Any) -> pandas.DataFrame:
    """Put results into a pandas DataFrame, one row each.

    Parameters
    ----------
    rows : iterable, or one record
        Records such as :func:`normscale.compare` and :func:`normscale.evaluate` give, mappings, or anything that has
        ``rows`` of them, such as the result of a stress grid. Mappings inside a record become columns of their own;
        where a column has that name already, as with intervals, the mapping's name goes in front.

    Raises
    ------
    MissingExtra
        Where pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra(f"a DataFrame needs pandas ({error}). Run: pip install pandas") from error
    return pandas.DataFrame(flat_records(rows))


def flat_records(rows: Iterable[Any] | Any) -> list[dict[str, Any]]:
    """The records behind :func:`to_dataframe`: plain values by column.

    Examples
    --------
    >>> flat_records([{"method": "msp", "metrics": {"auroc": 0.9}, "parameters": {}}])
    [{'method': 'msp', 'auroc': 0.9}]
    >>> flat_records({"auroc": 0.9, "intervals": {"auroc": {"low": 0.8, "high": 1.0}}})
    [{'auroc': 0.9, 'intervals_auroc_low': 0.8, 'intervals_auroc_high': 1.0}]
    """
    records = getattr(rows, "rows", rows)
    records = [records] if isinstance(_fields(records), Mapping) else list(records)
    return [_flat(record) for record in records]


def _fields(record: Any) -> Any:
    """A record's values by name: of a named tuple, or of a result of the metrics; what is neither stays."""
    for method in ("_asdict", "to_dict"):
        if hasattr(record, method):
            return getattr(record, method)()
    return record


def _flat(record: Any) -> dict[str, Any]:
    named = _fields(record)
    if not isinstance(named, Mapping):
        raise InvalidInput(f"a result must be a record with named fields; got {type(record).__name__}.")
    flat: dict[str, Any] = {}
    for name, value in named.items():
        inner = _fields(value)
        if not isinstance(inner, Mapping):
            flat[name] = value
            continue
        for key, item in inner.items():
            column = f"{name}_{key}" if key in named else key
            parts = _fields(item)
            flat.update(
                {f"{column}_{part}": parts[part] for part in parts} if isinstance(parts, Mapping) else {column: item}
            )
    return flat


def _labels(frame: Any, columns: Sequence[Any], names: Sequence[str], class_names: Sequence[str] | None) -> Rows | None:
    found = [columns[i] for i, name in enumerate(names) if name.lower() in LABEL_NAMES]
    if not found:
        return None
    values = np.asarray(frame[found[0]])
    if values.dtype.kind in "OUT" and any(isinstance(value, str) for value in values.tolist()):
        texts = [value if isinstance(value, str) else None for value in values.tolist()]
        return label_numbers(texts, class_names)
    labels = _numbers(values, str(found[0]))
    return np.where(np.isnan(labels), -1.0, labels) if labels.dtype.kind == "f" else labels


def _matrix(frame: Any, columns: Sequence[Any], places: Sequence[int]) -> Rows:
    numbers = [_numbers(frame[columns[i]], str(columns[i])) for i in places]
    floats = [one if one.dtype.kind == "f" else one.astype(np.float64) for one in numbers]
    return np.stack(floats, axis=1)


def _numbers(column: Any, name: str) -> Rows:
    """A column as numbers; what is missing is NaN."""
    values = np.asarray(column)
    if values.dtype.kind == "O":  # nullable numbers; None and pandas.NA are no floats
        try:
            values = np.array([np.nan if _is_missing(value) else float(value) for value in values])
        except (TypeError, ValueError):
            values = np.empty(0, "U")
    if values.dtype.kind not in "fiub":
        raise InvalidInput(
            f"the DataFrame's column {name!r} does not hold numbers. Where it is no logit, leave it out or name the "
            "columns of logits logit_<class>."
        )
    return values


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ == "NAType"
